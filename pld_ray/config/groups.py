"""The groups of the command line's configuration; `TrainConfig` holds one of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from pld_ray.config.arm import ArmConfig
from pld_ray.options import option

LOCAL_RAY = "local"
"""The `ray_address` of a Ray of the command's own, whatever RAY_ADDRESS says."""
ROBOT_ENV = "pld_ray.rollout.robot.env:RobotEnv"
ROBOT_EPISODE_LENGTH = 200
LIBERO_ONLY = (
    *("cameras", "environment_state", "image_size", "episode_length", "assets", "rendering"),
    *("control_mode", "fast_step"),
)
"""Fields of `EnvConfig` that an `entry_point` would not hear of."""


@dataclass
class EnvConfig:
    """What is simulated."""

    suite: str = option("pld_tabletop", "Task suite; `pld_tabletop` needs no download.", name=True)
    task: str = option(
        "pick_up_the_can_and_place_it_in_the_bin", "Task name within the suite.", name=True
    )
    cameras: list[Literal["image", "image2"]] = option(
        [],
        "Cameras to render, of `image` and `image2`; empty is state-only and needs no GL library.",
        distinct=True,
    )
    environment_state: bool = option(
        True,
        "Whether observations say where the objects are. False leaves what a robot has, its own "
        "state and `cameras`, and asks for a base policy that needs no more.",
    )
    image_size: int = option(
        128,
        "Height and width of each camera's picture, in pixels.",
        within="[8, 4096]",
        unit="pixels",
    )
    episode_length: int | None = option(
        None,
        "Steps after which an episode is truncated; None is the suite's own horizon, and 200 of a "
        "robot.",
        within="[1, 1e6]",
    )
    terminate_when_toppled: bool = option(
        False,
        "Training episodes of `pld_tabletop` end, as failures, once the target lies, tilted by "
        "more than 60 degrees: what is saved after that is not worth its steps. Evaluations and "
        "recordings play on.",
    )
    assets: str | None = option(
        None,
        "Folder of LIBERO's assets; None is `PLD_RAY_LIBERO_ASSETS`, else what LIBERO's own "
        "configuration names, else the installed package's; `hub` downloads them, with "
        "HF_HUB_OFFLINE=0 before the command.",
        path="folder",
        values=("hub",),
    )
    rendering: Literal["reference", "fast"] = option(
        "reference",
        "`reference`: LIBERO's pixels. `fast`: about half the time, slightly different pixels.",
    )
    control_mode: Literal["relative", "absolute"] = option(
        "relative",
        "What an action means: `relative` (a step) or `absolute` (a pose), as in LeRobot.",
    )
    fast_step: bool = option(
        True, "One forward dynamics per physics substep instead of three, with identical results."
    )
    control_hz: float | None = option(
        None,
        "Control rate: each step of the environment takes at least 1/control_hz; steps that begin "
        "late are counted. None steps as fast as it can.",
        within="(0, 1000]",
        unit="Hz",
    )
    reward_classifier: str | None = option(
        None,
        "Folder of `pld-ray classifier train`: its verdict on the cameras is the reward and ends "
        "training episodes; evaluations keep the environment's own. Experimental: "
        "three policies learnt from one to the end, in simulation.",
        path="folder",
    )
    entry_point: str | None = option(
        None,
        "Another gymnasium environment, as `module:class`, in place of LIBERO; `suite` and "
        "`task` then only name it.",
    )
    kwargs: dict[str, Any] = option({}, "Arguments of that environment.")
    robot: dict[str, Any] = option(
        {},
        "A robot that LeRobot drives, in place of a simulation: `type` and its fields, as after "
        "`--robot.` of `lerobot-record`, such as `{type: so101_follower, port: /dev/ttyACM0}`. "
        "`task` names what it does. Experimental: MuJoCo's arms alone were driven.",
    )
    arm: ArmConfig = field(default_factory=ArmConfig)

    @property
    def environment_class(self) -> str | None:
        """`module:class` of an environment that is none of LIBERO's: of the user's, or a robot."""
        return ROBOT_ENV if self.robot else self.entry_point

    def settings(self) -> dict[str, Any]:
        """The environment as it is evaluated, for `create_vector_env`."""
        fields = dataclasses.asdict(self)
        robot, arm = fields.pop("robot"), fields.pop("arm")
        control_hz = fields.pop("control_hz")  # of whoever steps it
        judged = (
            {} if self.reward_classifier is None else {"reward_classifier": self.reward_classifier}
        )
        del fields["reward_classifier"], fields["terminate_when_toppled"]
        own = {"entry_point": fields.pop("entry_point"), "kwargs": fields.pop("kwargs")}
        if robot:
            length, task = self.episode_length or ROBOT_EPISODE_LENGTH, self.task.replace("_", " ")
            about = {"control_hz": control_hz, "episode_length": length, "task": task}
            own = {"entry_point": ROBOT_ENV, "kwargs": {"robot": robot, "arm": arm, **about}}
        return {**(fields if own["entry_point"] is None else own), **judged}

    def training_settings(self) -> dict[str, Any]:
        """The environment's part of RLlib's `env_config`: of training, see `for_evaluation`."""
        toppled = {"terminate_when_toppled": True} if self.terminate_when_toppled else {}
        return {**self.settings(), **toppled}


@dataclass
class RunnersConfig:
    """How many simulators run, and where."""

    num_env_runners: int = option(
        2, "Rollout processes; 0 steps the environments in the driver.", within="[0, 4096]"
    )
    num_envs_per_env_runner: int = option(
        1, "Environments in each process, stepped in turn.", within="[1, 1024]"
    )
    num_cpus_per_env_runner: float = option(
        0.5, "CPU share that Ray reserves for each rollout process.", within="[0, 1024]"
    )
    vectorization: Literal["in_process", "subprocess"] = option(
        "in_process",
        "`in_process`: stepped in turn. `subprocess`: a process each, replaced alone when it dies.",
    )
    step_timeout_s: float = option(
        60.0,
        "Seconds that a step of a `subprocess` environment may take.",
        within="(0, 1e6]",
        unit="s",
    )
    reset_timeout_s: float = option(
        300.0,
        "Seconds that a reset of a `subprocess` environment may take.",
        within="(0, 1e6]",
        unit="s",
    )
    num_learners: int = option(
        0,
        "0 learns in the driver, 1 in an actor of its own; more share the replay, each with "
        "batches of its own, and average their gradients.",
        within="[0, 64]",
    )
    num_gpus_per_learner: float = option(0.0, "GPU share of each learner.", within="[0, 64]")
    sample_steps: int = option(
        100, "Environment steps per training step, over all runners.", within="[1, 1e6]"
    )
    sampling: Literal["synchronous", "pipelined", "asynchronous"] = option(
        "pipelined",
        "`synchronous`, `pipelined` (updates while the runners step; same numbers every time) "
        "or `asynchronous` (nobody waits for anybody).",
    )
    requests_in_flight: int = option(
        2, "Requests that each runner has waiting (asynchronous).", within="[1, 1000]"
    )
    publish_interval: int = option(
        50, "Updates between two publications of weights (asynchronous).", within="[1, 1e6]"
    )
    max_staleness: int | None = option(
        None,
        "Episodes begun with weights older than this many updates are not stored; None stores all. "
        "Each environment's step ages all open ones by `utd` updates: long episodes, such as "
        "failures, go first.",
        within="[1, 1e10]",
    )
    stall_timeout_s: float = option(
        600.0,
        "A runner whose request takes longer is replaced (asynchronous).",
        within="(0, 1e6]",
        unit="s",
    )


@dataclass
class EvaluationConfig:
    """Evaluation on stored init states that training never resets to."""

    interval_steps: int = option(
        5_000,
        "Environment steps between evaluations while training; 0 evaluates at the end only.",
        within="[0, 1e10]",
    )
    validation_states: int = option(
        50,
        "Init states of each of those; none is held, and they choose the best checkpoint.",
        within="[1, 1e6]",
    )
    stop_success: float | None = option(
        None,
        "A validation that reaches this success rate ends the training: what solves the task plays "
        "no more episodes. None trains for total_steps.",
        within="(0, 1]",
    )
    num_env_runners: int = option(
        0,
        "Rollout processes that evaluate while training goes on; 0 evaluates on the training ones.",
        within="[0, 4096]",
    )
    held_states: int = option(
        100,
        "Held init states on which base and base + residual are compared at the end.",
        within="[1, 1e6]",
    )


@dataclass
class CheckpointConfig:
    """What is kept of a run."""

    interval_steps: int = option(
        10_000,
        "Environment steps between periodic checkpoints; 0 keeps the best and the final one only.",
        within="[0, 1e10]",
    )
    keep: int = option(2, "Periodic checkpoints kept; older ones are deleted.", within="[1, 1e6]")


@dataclass
class PlacementConfig:
    """Where on a cluster the processes of a run are; custom resources are those of `ray start`."""

    env_runner: dict[str, float] = option(
        {},
        "Custom resources of each rollout process, such as `{simulation: 1}`.",
        within="[0, 1e6]",
    )
    evaluation: dict[str, float] = option(
        {}, "Custom resources of each evaluation runner.", within="[0, 1e6]"
    )
    learner: dict[str, float] = option({}, "Custom resources of each learner.", within="[0, 1e6]")
    base_policy: dict[str, float] = option(
        {}, "Custom resources of each replica of the base policy.", within="[0, 1e6]"
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = option(
        "PACK",
        "Of a trial's placement group under Tune: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.",
    )
    base_policy_strategy: Literal["DEFAULT", "SPREAD"] = option(
        "DEFAULT", "Of the pool's replicas: `SPREAD` puts them on different nodes, `DEFAULT` packs."
    )
    env_vars: dict[str, str] = option(
        {}, "Environment variables of every process, such as `{PLD_RAY_LIBERO_ASSETS: ...}`."
    )
    working_dir: str | None = option(
        None,
        "Folder that Ray copies to every node; None where the code is installed everywhere.",
        path="folder",
    )
    check: bool = option(
        True, "Refuse a run that cannot be placed on the nodes that are there now."
    )
    wait_s: float = option(
        0.0,
        "Seconds for which a start waits for nodes that are not there yet, such as one of "
        "`pld-ray actor`, before it refuses.",
        within="[0, 1e6]",
        unit="s",
    )


@dataclass
class TrackingConfig:
    """MLflow."""

    enabled: bool = option(True, "Log parameters, metrics and artifacts to MLflow.")
    uri: str | None = option(
        None, "Tracking URI; None is a sqlite file in the run's parent folder."
    )
    experiment: str = option("pld-ray", "MLflow experiment.")
    run_name: str | None = option(
        None, "Name; None is task and seed, of a fine-tuning `finetune` and seed."
    )
