"""What `pld-ray train` says at its end."""

import pytest

from pld_ray.cli import main

SUMMARY = {
    "base_success": 0.5,
    "residual_success": 0.9,
    "n_episodes": 100,
    "env_steps": 36_000,
    "total_wall_s": 60.0,
    "checkpoint": "run/checkpoints/best",
}


@pytest.mark.parametrize("tracked", [True, False])
def test_a_report_is_suggested_where_there_is_a_store_to_make_it_from(
    tracked, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("pld_ray.jobs.train.train", lambda *args: SUMMARY)
    folder = tmp_path / "run"
    settings = ["--env.entry_point=envs.point:PointEnv", "--policy.type=none"]
    tracking = f"--tracking.enabled={str(tracked).lower()}"
    assert main(["train", *settings, tracking, f"--output_dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert f"next: pld-ray show {folder}\n" in out
    assert (f"pld-ray report {folder}\n" in out) == tracked
    assert "pld-ray eval --checkpoint=run/checkpoints/best\n" in out  # it draws no pictures


def test_films_are_suggested_of_what_draws_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pld_ray.jobs.train.train", lambda *args: SUMMARY)
    assert main(["train", "--tracking.enabled=false", f"--output_dir={tmp_path / 'run'}"]) == 0
    assert "eval --checkpoint=run/checkpoints/best --videos=0\n" in capsys.readouterr().out
