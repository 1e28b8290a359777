"""An arm that LeRobot drives: how an action moves it, and what keeps it safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pld_ray.options import option

if TYPE_CHECKING:
    from pld_ray.config.train import TrainConfig


@dataclass
class ArmConfig:
    """How actions move the arm of `env.robot`, and what keeps it safe. Experimental: MuJoCo's arms
    alone were driven."""

    model: str | None = option(
        None,
        "The arm's MJCF or URDF, for kinematics and joint limits; its meshes are not needed.",
        path="file",
    )
    end_effector: str | None = option(None, "Site or body (link) of the model that actions move.")
    joint_names: dict[str, str] = option(
        {}, "The robot's joint -> the model's, where they are named differently."
    )
    joint_unit: Literal["degrees", "radians"] = option(
        "degrees", "Unit in which the robot tells and takes its joints."
    )
    gripper: str | None = option(
        "gripper", "The robot's joint that is the gripper; None has none, and six-dimensional acts."
    )
    gripper_range: list[float] = option(
        [0.0, 100.0],
        "Closed and open gripper, in the robot's unit.",
        within="[-1e6, 1e6]",
        items=(2, 2),
        distinct=True,
    )
    gripper_step: float = option(
        0.2, "Share of that range by which a full action moves the gripper.", within="(0, 1]"
    )
    step_m: float = option(
        0.01, "Distance by which a full action moves the hand.", within="(0, 0.1]", unit="m"
    )
    step_rad: float = option(
        0.05, "Angle by which a full action turns the hand.", within="(0, 0.5]", unit="rad"
    )
    max_joint_step: float = option(
        0.2,
        "No joint is sent further than this from where it is.",
        within="(0, 1]",
        unit="rad",
    )
    bounds_low: list[float] = option(
        [],
        "Least x, y, z of the hand, in the model's frame.",
        within="[-10, 10]",
        items=(0, 3),
        unit="m",
    )
    bounds_high: list[float] = option(
        [],
        "Greatest x, y, z of the hand, in the model's frame.",
        within="[-10, 10]",
        items=(0, 3),
        unit="m",
    )
    rest_pose: dict[str, float] = option(
        {},
        "The robot's joint -> where episodes begin, in the robot's unit; the gripper too.",
        within="[-1e6, 1e6]",
    )
    reset_speed: float = option(
        0.5,
        "Speed of the fastest joint on the way back to `rest_pose`.",
        within="(0, 3]",
        unit="rad/s",
    )
    call_timeout_s: float = option(
        2.0,
        "A robot that takes longer to tell what it sees, or to take a command, stops the arm. Its "
        "cameras must be faster.",
        within="(0, 60]",
        unit="s",
    )
    wait_for_person: bool = option(
        True,
        "Every episode, and the arm after a stop, waits for Enter. False goes on by itself.",
    )


def check_arm(config: TrainConfig) -> None:
    """Refuse an arm that is not described, or that several processes would move.

    Raises:
        ValueError: naming the setting.
    """
    env, arm, runners = config.env, config.env.arm, config.runners
    if not env.robot:
        if arm != ArmConfig():
            raise ValueError("env.arm is of env.robot, which is not set")
        return
    if env.entry_point is not None:
        raise ValueError("env.robot and env.entry_point exclude each other: remove one of them")
    if not isinstance(env.robot.get("type"), str):
        raise ValueError(
            "env.robot has no type: give LeRobot's, such as --env.robot.type=so101_follower"
        )
    missing = [n for n in ("model", "end_effector", "rest_pose") if not getattr(arm, n)]
    missing += [n for n in ("bounds_low", "bounds_high") if len(getattr(arm, n)) != 3]
    if missing:
        raise ValueError(f"env.robot needs env.arm.{missing[0]}: it has no default")
    if any(not low < high for low, high in zip(arm.bounds_low, arm.bounds_high, strict=True)):
        raise ValueError(
            f"env.arm.bounds_low={arm.bounds_low}: must be below bounds_high={arm.bounds_high}"
        )
    if env.control_hz is None:
        raise ValueError("env.robot needs a control rate: set env.control_hz, such as 10")
    one = runners.num_env_runners <= 1 and runners.num_envs_per_env_runner == 1
    if not one or runners.vectorization != "in_process" or config.evaluation.num_env_runners:
        raise ValueError(
            "env.robot is one arm in one process: set runners.num_env_runners=0 (or 1, at "
            "pld-ray actor), runners.num_envs_per_env_runner=1, runners.vectorization=in_process "
            "and evaluation.num_env_runners=0"
        )
    if arm.wait_for_person and runners.num_env_runners and not config.placement.env_runner:
        raise ValueError(
            "env.arm.wait_for_person=true asks in a terminal, from which a runner's own process "
            "cannot read: set runners.num_env_runners=0, or placement.env_runner={robot: 1} with "
            "pld-ray actor at the robot, or env.arm.wait_for_person=false"
        )
