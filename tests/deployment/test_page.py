"""docs/operations.md without running it: shell that parses, options and files that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

import click
import pytest


def commands(blocks, *program: str) -> list[list[str]]:
    """The arguments of every call of `program` in the page, variables left as they stand."""
    found = []
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
            words = shlex.split(line, comments=True)
            for i in range(len(words)):
                if tuple(words[i : i + len(program)]) == program:
                    rest = words[i + len(program) :]
                    ends = [j for j, word in enumerate(rest) if re.fullmatch(r"[|>&;]+|2>&1", word)]
                    found.append(rest[: min(ends, default=len(rest))])
    return found


def parse(command: click.Command, arguments: list[str]) -> dict:
    """What a click command makes of its arguments, numbers in place of variables."""
    known = [re.sub(r"\$\w+_PORT", "1234", word) for word in arguments]
    known = [re.sub(r"\$\([^)]*nproc\)", "2", word) for word in known]
    return command.make_context("command", known).params


def test_every_block_is_shell(blocks):
    assert len(blocks) > 10
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True)
        assert done.returncode == 0, f"docs/operations.md:{block.line}: {done.stderr}"


def test_what_is_not_run_says_why(blocks):
    assert [b.line for b in blocks if b.not_tested == ""] == []
    assert len([b for b in blocks if b.not_tested]) <= 4


def test_ray_knows_the_options_of_every_node(blocks):
    from ray.scripts.scripts import start

    nodes = [parse(start, arguments) for arguments in commands(blocks, "ray", "start")]
    assert [node["head"] for node in nodes] == [True, False, False]
    assert all(node["block"] for node in nodes)
    assert nodes[0]["dashboard_host"] == "127.0.0.1"


def test_a_node_offers_its_cores_whatever_the_environment_file_exports(blocks):
    (exports,) = [b.code for b in blocks if "END\n" in b.code]
    names = re.search(r"^export .*OMP_NUM_THREADS=.*$", exports, re.MULTILINE)
    (offered,) = re.findall(
        r"--resources=(.*nproc.*?) ", "".join(b.code.replace("\n", " ") for b in blocks)
    )
    script = f"{names[0]}\necho {offered}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    cores = len(os.sched_getaffinity(0))
    assert json.loads(done.stdout) == {"simulation": cores}
    if cores == 1:
        pytest.skip("on one core the answer is the same either way")


def test_the_environment_file_has_one_assignment_per_line(blocks):
    """Without `export` it is a systemd EnvironmentFile, where a value goes on to the line's end."""
    (exports,) = [b.code for b in blocks if "END\n" in b.code]
    lines = re.findall(r"^export (.*)$", exports, re.MULTILINE)
    assert len(lines) > 4
    assert [line for line in lines if not re.fullmatch(r"\w+=(\$\([^)]*\)|[^\s=]+)", line)] == []


def test_ray_knows_the_options_of_every_job_and_none_carries_a_secret(blocks):
    from ray.dashboard.modules.job.cli import submit

    jobs = [parse(submit, arguments) for arguments in commands(blocks, "ray", "job", "submit")]
    assert len(jobs) == 2
    for job in jobs:
        assert job["working_dir"] == "."
        assert (job["runtime_env"], job["runtime_env_json"]) == (None, "$COMMIT")


def test_mlflow_knows_the_options_of_its_server(blocks):
    from mlflow.cli import server

    known = {name for option in server.params for name in option.opts}
    ((*arguments,),) = commands(blocks, "mlflow", "server")
    assert {word.partition("=")[0] for word in arguments} <= known


def test_the_sweeps_of_the_page_can_be_read(root, blocks, monkeypatch):
    from pld_ray.sweep.config import load_sweep

    monkeypatch.chdir(root)
    sweeps = [s for s in commands(blocks, "pld-ray", "sweep") if not s[0].startswith("--resume")]
    assert len(sweeps) == 1
    for arguments in sweeps:
        assert load_sweep(list(arguments)).config.tracking.uri is not None


def test_the_pages_settings_are_keys_of_a_sweep(root, tmp_path):
    from pld_ray.sweep.config import load_sweep

    text = (root / "docs/operations.md").read_text()
    (settings,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    swept = "space: {algorithm.utd: {grid: [1, 2]}}"
    (tmp_path / "sweep.yaml").write_text(f"name: page\n{swept}\n{settings}")
    sweep = load_sweep([str(tmp_path / "sweep.yaml")])
    assert sweep.base.placement.learner == {"learning": 0.5}
    assert sweep.config.resources_per_trial == {"learning": 0.1}


@pytest.mark.parametrize("page", ["docs/operations.md", "docker/README.md"])
def test_what_the_pages_link_to_exists(root, page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (root / page).read_text()):
        assert ((root / page).parent / target).exists(), target
