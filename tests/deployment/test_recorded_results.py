"""Figures that are recorded are written over by nothing but a command that names their folder."""

from __future__ import annotations

import json
import re
import runpy
import sys

import pytest

from experiments.studies import exploration

ROW = {"env_steps": 5, "eval/residual_success": 0.5, "learner/q_out_of_bound": 0.0}
SUMMARY = {
    "residual_success": 0.5,
    "task": "a task",
    "seed": 0,
    "env_steps": 5,
    "n_episodes": 10,
    "base_success": 0.25,
    "validation_base_success": 0.25,
}
PROGRAMS = {
    "ablation": ("full-seed0", {"ablation.json", "ablation.png"}),
    "exploration": ("white_noise", {"exploration.csv", "exploration.png"}),
}
"""Program -> the folder of one of its runs, what it writes."""


def finished_run(folder):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "summary.json").write_text(json.dumps(SUMMARY))


@pytest.fixture
def report(root, monkeypatch):
    """Runs a program over runs that are there."""

    def run(name, *arguments):
        if name == "ablation":
            monkeypatch.setattr(sys, "argv", [name, "--report_only", "--cells=full", *arguments])
            path = root / "experiments/benchmarks/ablation.py"
            runpy.run_path(str(path), run_name="__main__")
        else:
            monkeypatch.setattr(sys, "argv", [name, "--only=white noise", *arguments])
            exploration.main()

    return run


def recorded(root):
    results = root / "experiments/results"
    return {path: path.stat().st_mtime_ns for path in results.glob("*.*")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_report_is_written_beside_its_runs(name, root, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = recorded(root)
    run, names = PROGRAMS[name]
    finished_run(tmp_path / "runs" / run)
    report(name, f"--output_dir={tmp_path / 'runs'}")
    assert recorded(root) == before
    assert names <= {path.name for path in (tmp_path / "runs").iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_report_is_written_where_it_is_asked_for(name, report, tmp_path):
    run, names = PROGRAMS[name]
    finished_run(tmp_path / "runs" / run)
    report(name, f"--output_dir={tmp_path / 'runs'}", f"--results_dir={tmp_path / 'results'}")
    assert {path.name for path in (tmp_path / "results").iterdir()} == names
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {run}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_report_of_nothing_is_refused(name, report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exploration, "pld_ray", lambda arguments: 0)  # trains nothing
    with pytest.raises(SystemExit) as refusal:
        report(name, f"--output_dir={tmp_path / 'runs'}", f"--results_dir={tmp_path / 'results'}")
    assert refusal.value.code == 2
    assert "has finished in" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_the_page_says_how_its_figures_are_written(root):
    page = (root / "experiments/results/README.md").read_text()
    commands = re.findall(r"`python (.*?(?:ablation\.py|studies\.exploration).*?)`", page)
    assert len(commands) == 2
    assert all("--results_dir=experiments/results" in command for command in commands)
