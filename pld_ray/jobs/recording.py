"""What the episodes of a run or of a recording share, for the datasets that keep them."""

from __future__ import annotations

from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.data.episode_writer import Recording
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.demonstrations import policy_identity
from pld_ray.rollout import factory

ACTION_NAMES = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
"""Of LIBERO's environments, and of a robot."""


def frames_per_second(config: TrainConfig) -> int:
    """Of the environment.

    Raises:
        ConfigError: it does not tell them.
    """
    fps = factory.steps_per_second(config.env.settings())
    if fps is None:
        raise ConfigError(
            f"{config.env.environment_class} does not tell its steps per second, which a dataset "
            "needs: give the class metadata = {'render_fps': N}"
        )
    return round(fps)


def recording_of(config: TrainConfig, built: ResidualSACConfig, **about: Any) -> Recording:
    """What all episodes share.

    Args:
        config: of the run.
        built: the same for RLlib; asked for the base policy as the runners load it.
        about: plain values, kept beside environment, base policy and seed.

    Raises:
        ConfigError: the environment does not tell its steps per second.
    """
    (task,) = factory.task_instructions(built.env_config)
    own, robot = config.env.environment_class is None, config.env.robot
    names = ACTION_NAMES if config.env.arm.gripper is not None else ACTION_NAMES[:-1]
    return Recording(
        task=task,
        fps=frames_per_second(config),
        robot_type="libero" if own else robot.get("type"),
        about={
            "environment": config.env.settings(),
            "base_policy": policy_identity(built),
            "init_states": "sampled",
            "seed": config.seed,
            **about,
        },
        names={"action": names, "base_action": names} if own or robot else {},
    )
