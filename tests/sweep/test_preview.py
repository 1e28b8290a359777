"""Sweeps that are only looked at, or refused, before Ray is there."""

from __future__ import annotations

import json
import os

import pytest
import ray
import yaml

from pld_ray.cli import main


@pytest.fixture
def sweep_file(tmp_path):
    content = {
        "set": {"env.entry_point": "envs.point:PointEnv", "policy.type": "none"},
        "space": {"algorithm.residual_scale": {"grid": [0.5, 1.0]}},
        "seeds": [0, 1],
    }
    content["set"]["runners.num_env_runners"] = 0
    file = tmp_path / "little.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def test_a_sweep_that_exists_is_not_overwritten_and_another_version_not_resumed(
    sweep_file, tmp_path, capsys
):
    folder = tmp_path / "my sweep"
    folder.mkdir()
    (folder / "sweep.json").write_text('{"format_version": 99, "pld_ray_version": "7.0"}')
    assert main(["sweep", str(sweep_file), f"--output_dir={folder}"]) == 2
    resume = f"pld-ray sweep --resume='{folder}'"
    assert f"already holds a sweep: continue it with `{resume}`" in capsys.readouterr().err
    assert main(["sweep", f"--resume={folder}"]) == 2
    assert "continue it with the version that began it (7.0)" in capsys.readouterr().err
    (folder / "sweep.json").write_text("{")
    assert main(["sweep", f"--resume={folder}"]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert main(["sweep", f"--resume={tmp_path}"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert sorted(p.name for p in folder.iterdir()) == ["sweep.json"]


def test_the_dry_run_shows_trials_and_resources_and_starts_nothing(sweep_file, tmp_path, capsys):
    assert main(["sweep", str(sweep_file), "--dry_run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["num_trials"] == len(shown["trials"]) == 4
    assert shown["resources_per_trial"] == {"CPU": 1.0}
    assert shown["trials_at_once"] == os.cpu_count()
    assert main(["sweep", str(sweep_file), "--dry_run", "--cpus_per_trial=1000"]) == 0
    assert "not one trial fits" in capsys.readouterr().out
    assert not ray.is_initialized()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["little.yaml"]
