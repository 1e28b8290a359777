"""The command line's configuration as dataclasses; `config_file` reads and writes them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.errors import UserError


class ConfigError(UserError, ValueError):
    """A key, a value or a file of the configuration is wrong; the message says how to mend it."""


@dataclass
class EnvConfig:
    """What is simulated."""

    suite: str = "pld_tabletop"
    """Task suite; `pld_tabletop` needs no download."""
    task: str = "pick_up_the_can_and_place_it_in_the_bin"
    """Task name within the suite."""
    cameras: list[str] = field(default_factory=list)
    """Cameras to render, of `image` and `image2`; empty is state-only and needs no GL library."""
    image_size: int = 128
    """Height and width of each camera's picture, in pixels."""
    episode_length: int | None = None
    """Steps after which an episode is truncated; None is the suite's own horizon."""
    assets: str | None = None
    """Folder of LIBERO's assets; None is `PLD_RAY_LIBERO_ASSETS`, else the installed package's;
    `hub` downloads them."""
    rendering: str = "reference"
    """`reference`: LIBERO's pixels. `fast`: about half the time, slightly different pixels."""
    control_mode: str = "relative"
    """What an action means: `relative` (a step) or `absolute` (a pose), as in LeRobot."""
    fast_step: bool = True
    """One forward dynamics per physics substep instead of three, with identical results."""
    entry_point: str | None = None
    """Another gymnasium environment, as `module:class`, in place of LIBERO; `suite` and `task` then
    only name it."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of that environment."""

    def settings(self) -> dict[str, Any]:
        """The environment's part of RLlib's `env_config`, see `create_vector_env`."""
        fields = dataclasses.asdict(self)
        own = {"entry_point": fields.pop("entry_point"), "kwargs": fields.pop("kwargs")}
        return fields if own["entry_point"] is None else own


@dataclass
class PolicyConfig:
    """The frozen base policy."""

    type: str = "lerobot"
    """`lerobot`, or `none`: a base action of zeros, for learning from scratch."""
    path: str | None = None
    """A LeRobot checkpoint folder; None is the policy shipped for `pld_tabletop`."""
    placement: str = "inline"
    """`inline`: in each env runner. `pool`: Ray actors that batch the requests of all runners."""
    replicas: int = 1
    """Actors of the pool; the least of them when `max_replicas` is set."""
    max_replicas: int | None = None
    """The pool grows up to this many actors when requests queue up; None keeps `replicas`."""
    max_batch_size: int = 16
    """Rows that one pool request batch may hold."""
    max_wait_ms: float = 25.0
    """Milliseconds for which a replica waits for more requests at most, and only while it pays."""
    num_cpus_per_replica: float = 1.0
    """CPU share of each replica."""
    num_gpus_per_replica: float = 0.0
    """GPU share of each replica."""
    deadline_s: float = 300.0
    """Seconds within which the pool answers a request, retries on other replicas included."""
    hang_timeout_s: float = 60.0
    """Seconds of one inference after which a replica is killed and replaced."""
    prefetch: bool = False
    """Ask for the next chunk one step ahead, so that inference overlaps simulation."""
    rtc: bool = False
    """Real-time chunking: a prefetched chunk continues what is left of the one being played
    (smolvla, pi0, pi05)."""
    dtype: str | None = None
    """`float32` or `bfloat16`; None keeps the checkpoint's."""
    compile: bool = False
    """`torch.compile` the network; worth it on a GPU."""
    n_action_steps: int | None = None
    """Actions of a chunk that are played; None is the checkpoint's own number."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """Environment's observation name -> the policy's, as in LeRobot."""
    features: str = "none"
    """`pooled` gives the networks what a vision-language policy (smolvla, pi0, pi05) saw when it
    made the chunk, at no extra forward pass; `none` does not."""
    tokenizer_path: str | None = None
    """Local folder of the language tokeniser, for policies that name one on the hub."""


@dataclass
class RunnersConfig:
    """How many simulators run, and where."""

    num_env_runners: int = 2
    """Rollout processes; 0 steps the environments in the driver."""
    num_envs_per_env_runner: int = 1
    """Environments in each process, stepped in turn."""
    num_cpus_per_env_runner: float = 0.5
    """CPU share that Ray reserves for each rollout process."""
    vectorization: str = "in_process"
    """`in_process`: stepped in turn. `subprocess`: a process each, replaced alone when it dies."""
    step_timeout_s: float = 60.0
    """Seconds that a step of a `subprocess` environment may take."""
    reset_timeout_s: float = 300.0
    """Seconds that a reset of a `subprocess` environment may take."""
    num_learners: int = 0
    """0 learns in the driver, 1 in an actor of its own; more share the replay, each with batches
    of its own, and average their gradients."""
    num_gpus_per_learner: float = 0.0
    """GPU share of each learner."""
    sample_steps: int = 100
    """Environment steps per training step, over all runners."""
    sampling: str = "pipelined"
    """`synchronous`, `pipelined` (updates while the runners step; same numbers every time) or
    `asynchronous` (nobody waits for anybody)."""
    requests_in_flight: int = 2
    """Requests that each runner has waiting (asynchronous)."""
    publish_interval: int = 50
    """Updates between two publications of weights (asynchronous)."""
    max_staleness: int | None = 50_000
    """Episodes begun with weights older than this many updates are not stored; None stores all."""
    stall_timeout_s: float = 600.0
    """A runner whose request takes longer is replaced (asynchronous)."""


@dataclass
class EvaluationConfig:
    """Evaluation on stored init states that training never resets to."""

    interval_steps: int = 5_000
    """Environment steps between evaluations while training; 0 evaluates at the end only."""
    validation_states: int = 50
    """Init states of each of those; none is held, and they choose the best checkpoint."""
    num_env_runners: int = 0
    """Rollout processes that evaluate while training goes on; 0 evaluates on the training ones."""
    at_final_scale: bool = False
    """Evaluate at the schedule's final beta too, while training is at a smaller one."""
    held_states: int = 100
    """Held init states on which base and base + residual are compared at the end."""


@dataclass
class CheckpointConfig:
    """What is kept of a run."""

    interval_steps: int = 10_000
    """Environment steps between periodic checkpoints; 0 keeps the best and the final one only."""
    keep: int = 2
    """Periodic checkpoints kept; older ones are deleted."""


@dataclass
class PlacementConfig:
    """Where on a cluster the processes of a run are; custom resources are those of `ray start`."""

    env_runner: dict[str, float] = field(default_factory=dict)
    """Custom resources of each rollout process, such as `{simulation: 1}`."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """Custom resources of each evaluation runner."""
    learner: dict[str, float] = field(default_factory=dict)
    """Custom resources of each learner."""
    base_policy: dict[str, float] = field(default_factory=dict)
    """Custom resources of each replica of the base policy."""
    strategy: str = "PACK"
    """Of a trial's placement group under Tune: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD."""
    base_policy_strategy: str = "DEFAULT"
    """Of the pool's replicas: `SPREAD` puts them on different nodes, `DEFAULT` packs."""
    env_vars: dict[str, str] = field(default_factory=dict)
    """Environment variables of every process, such as `{PLD_RAY_LIBERO_ASSETS: ...}`."""
    working_dir: str | None = None
    """Folder that Ray copies to every node; None where the code is installed everywhere."""
    check: bool = True
    """Refuse a run that cannot be placed on the nodes that are there now."""


@dataclass
class TrackingConfig:
    """MLflow."""

    enabled: bool = True
    """Log parameters, metrics and artifacts to MLflow."""
    uri: str | None = None
    """Tracking URI; None is a sqlite file in the run's parent folder."""
    experiment: str = "pld-ray"
    """MLflow experiment."""
    run_name: str | None = None
    """Name of the run; None is task and seed."""


@dataclass
class TrainConfig:
    """`pld-ray train`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: ResidualSACParams = field(default_factory=ResidualSACParams)
    runners: RunnersConfig = field(default_factory=RunnersConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    total_steps: int = 36_000
    """Environment steps of the whole run, base-policy collection included."""
    seed: int = 0
    """Seed of networks, replay, exploration and resets."""
    collection_seed: int = 0
    """Seed of the base-policy collection, apart from `seed` so that runs share its cache."""
    output_dir: str = "outputs/train"
    """Folder of the run; it must be new or empty unless the run is resumed."""
    offline_cache: str | None = None
    """Folder of collected base-policy data; None is `cache/<task>` beside the run's folder."""
    pretrained_critic: str | None = None
    """A checkpoint of `pld-ray pretrain` (or `train`) whose critic this run starts from."""
    max_failures: int = 3
    """Times that a run starts anew from its last checkpoint after losing a learner."""
    ray_address: str | None = None
    """A running Ray cluster (`auto`, `host:port`); None starts a local one."""

    def validate(self) -> None:
        """Raise ConfigError on the first value that cannot work."""
        if self.env.kwargs and self.env.entry_point is None:
            raise ConfigError("env.kwargs are the arguments of env.entry_point, which is not set")
        try:
            self.algorithm.validate()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        checks = [
            (self.total_steps >= 1, "total_steps", ">= 1"),
            (self.runners.num_env_runners >= 0, "runners.num_env_runners", ">= 0"),
            (self.runners.num_envs_per_env_runner >= 1, "runners.num_envs_per_env_runner", ">= 1"),
            (self.runners.num_learners >= 0, "runners.num_learners", ">= 0"),
            (self.policy.type in ("lerobot", "none"), "policy.type", "lerobot or none"),
            (self.runners.sample_steps >= 1, "runners.sample_steps", ">= 1"),
            (self.policy.placement in ("inline", "pool"), "policy.placement", "inline or pool"),
            (
                self.runners.vectorization in ("in_process", "subprocess"),
                "runners.vectorization",
                "in_process or subprocess",
            ),
            (self.runners.step_timeout_s > 0, "runners.step_timeout_s", "> 0"),
            (self.runners.reset_timeout_s > 0, "runners.reset_timeout_s", "> 0"),
            (self.runners.requests_in_flight >= 1, "runners.requests_in_flight", ">= 1"),
            (self.policy.replicas >= 1, "policy.replicas", ">= 1"),
            (
                self.policy.max_replicas is None
                or self.policy.max_replicas >= self.policy.replicas,
                "policy.max_replicas",
                ">= policy.replicas",
            ),
            (self.policy.features in ("none", "pooled"), "policy.features", "none or pooled"),
            (self.policy.deadline_s > 0, "policy.deadline_s", "> 0"),
            (self.policy.hang_timeout_s > 0, "policy.hang_timeout_s", "> 0"),
            (
                not (self.policy.prefetch and self.policy.type == "none"),
                "policy.prefetch",
                "false with policy.type=none, which is never asked",
            ),
            (
                not self.policy.rtc or self.policy.prefetch,
                "policy.rtc",
                "false without policy.prefetch=true, which asks for the chunks that it joins",
            ),
            (
                self.placement.strategy in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
                "placement.strategy",
                "PACK, SPREAD, STRICT_PACK or STRICT_SPREAD",
            ),
            (
                self.placement.base_policy_strategy in ("DEFAULT", "SPREAD"),
                "placement.base_policy_strategy",
                "DEFAULT or SPREAD",
            ),
            (self.max_failures >= 0, "max_failures", ">= 0"),
            (self.evaluation.num_env_runners >= 0, "evaluation.num_env_runners", ">= 0"),
            (self.evaluation.interval_steps >= 0, "evaluation.interval_steps", ">= 0"),
            (self.evaluation.held_states >= 1, "evaluation.held_states", ">= 1"),
            (self.evaluation.validation_states >= 1, "evaluation.validation_states", ">= 1"),
            (self.checkpoint.keep >= 1, "checkpoint.keep", ">= 1"),
            (self.checkpoint.interval_steps >= 0, "checkpoint.interval_steps", ">= 0"),
        ]
        for ok, name, accepted in checks:
            if not ok:
                value: Any = self
                for part in name.split("."):
                    value = getattr(value, part)
                raise ConfigError(f"{name}={value!r}: must be {accepted}")
