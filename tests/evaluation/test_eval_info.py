"""`eval_info.json` against LeRobot's own aggregation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from pld_ray.evaluation.eval_info import (
    lerobot_form,
    read_eval_info,
    write_eval_info,
)
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.statistics import wilson_interval


def episodes(successes, task_id=0, **more) -> list[EpisodeResult]:
    return [
        EpisodeResult(
            bool(s), float(s) * 0.5, float(s), 200 - 50 * int(s), i, task_id=task_id, **more
        )
        for i, s in enumerate(successes)
    ]


class _Env:
    def close(self) -> None:
        pass


def test_same_form_as_lerobot(monkeypatch):
    """LeRobot aggregates the same episodes; only its rollout is replaced."""
    lerobot_eval = pytest.importorskip("lerobot.scripts.lerobot_eval")
    tasks = {
        ("pld_tabletop", 0): episodes([1, 0, 1], task_id=0, video_path="a.mp4"),
        ("pld_tabletop", 1): episodes([0, 0], task_id=1),
        ("libero_10", 4): episodes([1], task_id=4, task_group="libero_10"),
    }

    def run_one(group, task_id, env, **_):
        rows = tasks[group, task_id]
        metrics = lerobot_eval.TaskMetrics(
            sum_rewards=[e.sum_reward for e in rows],
            max_rewards=[e.max_reward for e in rows],
            successes=[e.success for e in rows],
            video_paths=[e.video_path for e in rows if e.video_path],
            predicted_video_paths=[],
        )
        return group, task_id, metrics

    monkeypatch.setattr(lerobot_eval, "run_one", run_one)
    envs = {"pld_tabletop": {0: _Env(), 1: _Env()}, "libero_10": {4: _Env()}}
    policy = torch.nn.Linear(1, 1)
    theirs = lerobot_eval.eval_policy_all(envs, policy, None, None, None, None, n_episodes=3)
    ours = lerobot_form([e for rows in tasks.values() for e in rows], eval_s=1.0)

    for timing in ("eval_s", "eval_ep_s"):
        assert theirs["overall"].pop(timing) >= 0
        assert ours["overall"].pop(timing) > 0
    assert json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs))
    assert list(ours["overall"]) == list(theirs["overall"])


def test_base_and_residual_side_by_side(tmp_path):
    path = tmp_path / "eval" / "eval_info.json"
    written = write_eval_info(
        path,
        episodes([1, 1, 1, 0]),
        base=episodes([1, 0, 0, 0]),
        eval_s=8.0,
        base_eval_s=6.0,
        extra={"task": "can", "env_steps": 4000},
    )
    info = read_eval_info(path)
    assert info == json.loads(json.dumps(written))
    assert info["overall"]["pc_success"] == 75.0
    assert info["overall"]["eval_ep_s"] == 2.0
    assert info["base"]["overall"]["pc_success"] == 25.0
    assert info["base"].keys() == {"per_task", "per_group", "overall"}
    assert info["comparison"]["paired"] == {
        "n": 4, "both": 1, "only_base": 0, "only_residual": 2, "neither": 1,
    }  # fmt: skip
    low, high = wilson_interval(3, 4)
    assert info["comparison"]["residual"]["pc_success_ci95"] == [100 * low, 100 * high]
    assert [(r["policy"], r["init_state_id"], r["success"], r["length"]) for r in info["episodes"]][
        3:5
    ] == [("base", 3, False, 200), ("residual", 0, True, 150)]
    assert info["task"] == "can"
    assert [p.name for p in path.parent.iterdir()] == ["eval_info.json"]


def test_a_time_that_is_not_known_is_left_out(tmp_path):
    info = write_eval_info(tmp_path / "e.json", episodes([1]), base=episodes([1]), eval_s=8.0)
    assert info["overall"]["eval_s"] == info["overall"]["eval_ep_s"] == 8.0
    assert info["overall"].keys() - info["base"]["overall"].keys() == {"eval_s", "eval_ep_s"}


def test_sampled_placements_are_not_paired(tmp_path):
    sampled = [EpisodeResult(True, 1.0, 1.0, 10) for _ in range(3)]
    info = write_eval_info(tmp_path / "e.json", sampled, base=sampled)
    assert info["comparison"]["paired"] is None


def test_numpy_values_are_written(tmp_path):
    row = EpisodeResult(np.bool_(True), np.float32(1), np.float32(1), np.int64(5), np.int64(2))
    write_eval_info(tmp_path / "e.json", [row])
    assert read_eval_info(tmp_path / "e.json")["episodes"][0]["length"] == 5


def test_bad_input_leaves_the_old_file(tmp_path):
    path = tmp_path / "eval_info.json"
    write_eval_info(path, episodes([1]))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="episodes is empty"):
        write_eval_info(path, [])
    with pytest.raises(ValueError, match=r"base\[0\] has a reward that is not finite"):
        write_eval_info(path, episodes([1]), base=[EpisodeResult(True, math.nan, 1.0, 1)])
    with pytest.raises(ValueError, match="extra may not replace overall"):
        write_eval_info(path, episodes([1]), extra={"overall": 1})
    with pytest.raises(TypeError):
        write_eval_info(path, episodes([1]), extra={"what": object()})
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_reading_names_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such eval_info"):
        read_eval_info(tmp_path / "eval_info.json")
    (tmp_path / "eval_info.json").write_text("[]")
    with pytest.raises(ValueError, match=r"overall\.pc_success is missing"):
        read_eval_info(tmp_path / "eval_info.json")
