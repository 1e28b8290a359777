"""What the episodes of a run or of a recording share, for the datasets that keep them."""

from __future__ import annotations

from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.data.episode_writer import Recording
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.demonstrations import GRIPPERS, gripper_meaning, policy_identity
from pld_ray.rollout import factory

ACTION_NAMES = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
"""Of LIBERO's environments, and of a robot."""


def frames_per_second(config: TrainConfig) -> int:
    """Of the environment.

    Raises:
        ConfigError: it does not tell them, or they are no whole number.
    """
    fps = factory.steps_per_second(config.env.settings())
    if fps is None:
        raise ConfigError(
            f"{config.env.environment_class} does not tell its steps per second, which a dataset "
            "needs: give the class metadata = {'render_fps': N}"
        )
    if fps < 1 or fps != round(fps):
        # rounded, the dataset would be of another rate, and refused where it is to be learnt from
        of_class = f"{config.env.environment_class}: metadata['render_fps'] is {fps:g}"
        raise ConfigError(
            f"{f'env.control_hz={fps:g}' if config.env.robot else of_class}: a LeRobotDataset has "
            "a whole number of frames per second; "
            f"record at such a rate, as {max(1, round(fps))}"
        )
    return round(fps)


def recording_of(config: TrainConfig, built: ResidualSACConfig, **about: Any) -> Recording:
    """What all episodes share.

    Args:
        config: of the run.
        built: the same for RLlib; asked for the base policy as the runners load it.
        about: plain values, kept beside environment, base policy and seed.

    Raises:
        ConfigError: as `frames_per_second`.
    """
    (task,) = factory.task_instructions(built.env_config)
    grippers = gripper_meaning(built)
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
            **({GRIPPERS: grippers} if grippers else {}),
            **about,
        },
        names={"action": names, "base_action": names} if own or robot else {},
    )
