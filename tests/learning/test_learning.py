"""The shipped default really learns; slow, run by `make test-learning`."""

import csv
import json

import pytest
import torch
from update_fixtures import make_params, make_update, weights

from pld_ray.cli import main


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_repairs_the_base_policy(tmp_path, seed):
    folder = tmp_path / "run"
    argv = ["train", "--config_path=tabletop", f"--seed={seed}"]
    assert main([*argv, f"--output_dir={folder}", "--tracking.enabled=false"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env_steps"] <= 40_000
    assert 0.35 <= summary["base_success"] <= 0.65
    assert summary["residual_success"] >= (0.9 if seed == 0 else 0.85)


@pytest.mark.learning
def test_the_smoke_sweep_tells_who_learns_enough(tmp_path):
    folder = tmp_path / "smoke"
    assert main(["sweep", "experiments/sweeps/smoke.yaml", f"--output_dir={folder}"]) == 0
    with (folder / "trials.csv").open() as file:
        held = {(r["point"], r["seed"]): float(r["held_success"]) for r in csv.DictReader(file)}
    assert len(held) == 4
    for (point, _), success in held.items():
        assert success >= 0.9 if point == "algorithm.utd=1" else success <= 0.3


@pytest.mark.learning
@pytest.mark.parametrize("atoms", [1, 51])
def test_generated_code_makes_the_same_updates(atoms):
    """torch.compile with inductor, a minute of compilation, against eager."""
    options = {"critic_atoms": atoms, "otf_candidates": 2, "num_critics": 3}
    eager = make_update(make_params(**options))
    compiled = make_update(make_params(**options, compile_backend="inductor"))
    one, other = eager.run(4), compiled.run(4)
    for name, value in one.items():
        assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-3, atol=1e-4)
