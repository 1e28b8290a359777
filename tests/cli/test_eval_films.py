"""`pld-ray eval --videos`: what cannot be filmed costs no evaluation."""

from __future__ import annotations

import ctypes.util
import json
import shutil

import pytest

from envs.bootstrap import enable_rendering
from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.jobs import evaluate
from pld_ray.rllib.algorithm import ResidualSAC

TRAIN = [
    *("train", "--env.entry_point=drawn_env:DrawnEnv", "--env.kwargs={episode_length: 10}"),
    *("--policy.type=none", "--env.task=reach_the_goal", "--algorithm.compose_base=false"),
    *("--algorithm.residual_scale=1", "--algorithm.critic_atoms=1"),
    *("--algorithm.offline_episodes=0", "--algorithm.warmup_steps=20"),
    *("--algorithm.warmup_actions=random", "--algorithm.use_probing=false"),
    *("--algorithm.hidden_dims=[8, 8]", "--algorithm.batch_size=8", "--algorithm.utd=0.1"),
    *("--runners.num_env_runners=0", "--runners.sample_steps=20", "--total_steps=40"),
    *("--evaluation.interval_steps=0", "--evaluation.held_states=2"),
    *("--evaluation.validation_states=1", "--tracking.enabled=false"),
]

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ray_cluster):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main([*TRAIN, f"--output_dir={folder}"]) == 0
    return folder


@pytest.fixture
def checkpoint(trained):
    shutil.rmtree(trained / "eval", ignore_errors=True)
    return trained / "checkpoints" / "final"


def figures(trained):
    return json.loads((trained / "eval" / "final" / "eval_info.json").read_text())


def test_films_are_named_in_the_figures(trained, checkpoint, capsys):
    assert main(["eval", f"--checkpoint={checkpoint}", "--videos=1,0,1"]) == 0
    videos = trained / "eval" / "final" / "videos"
    files = [str(videos / f"init_state_00{state}.mp4") for state in (0, 1)]
    assert figures(trained)["overall"]["video_paths"] == files
    assert sorted(map(str, videos.iterdir())) == files
    assert f"written: {files[0]}\n" in capsys.readouterr().out


def test_a_film_that_fails_loses_no_figures(trained, checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("DRAWN_ENV_FAILS", "1")
    assert main(["eval", f"--checkpoint={checkpoint}", "--videos=0,7"]) == 1
    said = capsys.readouterr()
    assert "on 2 held init states" in said.out
    assert said.err.startswith("pld-ray: the figures are written, but no film of init state 0, 7:")
    assert "no paint" in said.err
    assert said.err.count("\n") == 1
    assert figures(trained)["overall"]["n_episodes"] == 2
    assert figures(trained)["overall"]["video_paths"] == []


def test_films_before_the_one_that_fails_are_kept(trained, checkpoint, capsys, monkeypatch):
    film = ResidualSAC.film

    def film_one(self, states):
        if states == [1]:
            monkeypatch.setenv("DRAWN_ENV_FAILS", "1")
        return film(self, states)

    monkeypatch.setattr(ResidualSAC, "film", film_one)
    assert main(["eval", f"--checkpoint={checkpoint}", "--videos=0,1"]) == 1
    said = capsys.readouterr()
    assert "no film of init state 1: " in said.err
    (path,) = figures(trained)["overall"]["video_paths"]
    assert f"written: {path}\n" in said.out


def never(*_):
    raise AssertionError("something was played")


def test_a_state_that_is_not_stored_is_refused_before_anything_is_played(
    trained, checkpoint, capsys, monkeypatch
):
    monkeypatch.setattr(evaluate, "play", never)
    assert main(["eval", f"--checkpoint={checkpoint}", "--videos=3,500"]) == 2
    assert capsys.readouterr().err == (
        "pld-ray: --videos: reach_the_goal has 150 stored init states, and 500 is none of them: "
        "give numbers from 0 to 149\n"
    )
    assert not (trained / "eval").exists()


def test_an_output_folder_that_cannot_be_is_refused_before_anything_is_played(
    trained, checkpoint, capsys, monkeypatch
):
    monkeypatch.setattr(evaluate, "play", never)
    file = trained / "config.yaml"
    assert main(["eval", f"--checkpoint={checkpoint}", f"--output_dir={file}/eval"]) == 2
    assert str(file) in capsys.readouterr().err


def test_films_without_a_graphics_library_are_refused_before_anything_is_played(monkeypatch):
    enable_rendering.cache_clear()
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"^--videos: .*libosmesa6"):
        evaluate.check_videos(TrainConfig(), [0])
    elsewhere = TrainConfig(ray_address="127.0.0.1:1")  # which may have one
    evaluate.check_videos(elsewhere, [0])
