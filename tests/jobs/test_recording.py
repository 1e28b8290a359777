"""What the episodes of a recording share."""

from __future__ import annotations

import pytest

from envs.point import PointEnv
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs import collect
from pld_ray.jobs.recording import frames_per_second, recording_of
from pld_ray.rllib.of_run import algorithm_config

POINT = ["--env.entry_point=envs.point:PointEnv", "--env.task=point", "--policy.type=none"]


def test_an_arm_is_recorded_at_a_whole_number_of_frames_per_second():
    config = TrainConfig()
    config.env.robot = {"type": "so101_follower"}
    for rate in (1.0, 12.0, 20):
        config.env.control_hz = rate
        assert frames_per_second(config) == rate
    for rate, near in ((12.5, 12), (0.4, 1)):
        config.env.control_hz = rate
        with pytest.raises(ConfigError, match=rf"control_hz={rate}: .* whole number .* as {near}"):
            frames_per_second(config)


def test_so_is_an_environment_of_your_own(monkeypatch):
    config = load_config(TrainConfig, POINT)
    monkeypatch.setattr(PointEnv, "metadata", {"render_fps": 25})
    assert frames_per_second(config) == 25
    monkeypatch.setattr(PointEnv, "metadata", {"render_fps": 12.5})
    with pytest.raises(ConfigError, match=r"PointEnv: .*'render_fps'\] is 12\.5: .* as 12"):
        frames_per_second(config)


def test_an_environment_of_no_known_rate_is_refused_before_anything_is_started(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(PointEnv, "metadata", {})
    monkeypatch.setattr(collect, "running_algorithm", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(ConfigError, match=r"does not tell its steps per second.*'render_fps': N"):
        collect.collect(load_config(TrainConfig, POINT), tmp_path, collect.Goal(episodes=1))


def test_a_recording_tells_what_its_gripper_labels_mean():
    config = TrainConfig()
    config.algorithm.gripper_dims = [6]
    assert "grippers" not in recording_of(config, algorithm_config(config)).identity()
    config.algorithm.gripper, config.algorithm.compose_base = "discrete", False
    config.algorithm.grasp_penalty = 0.25
    told = recording_of(config, algorithm_config(config)).identity()["grippers"]
    assert told == {"dims": [6], "compose_base": False, "grasp_penalty": 0.25}
