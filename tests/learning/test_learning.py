"""The shipped default really learns; slow, run by `make test-learning`."""

import json

import pytest

from pld_ray.cli import main


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_repairs_the_base_policy(tmp_path, seed):
    folder = tmp_path / "run"
    argv = ["train", "--config_path=experiments/presets/tabletop.yaml", f"--seed={seed}"]
    assert main([*argv, f"--output_dir={folder}", "--tracking.enabled=false"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env_steps"] <= 40_000
    assert 0.35 <= summary["base_success"] <= 0.65
    assert summary["residual_success"] >= (0.9 if seed == 0 else 0.85)
