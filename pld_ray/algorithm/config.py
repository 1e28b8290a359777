"""`ResidualSACConfig`: the algorithm as an RLlib user configures it."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.rollout import factory

SAMPLING = ("synchronous", "pipelined", "asynchronous")
PARAMETER_NAMES = tuple(f.name for f in fields(ResidualSACParams))


class ResidualSACConfig(AlgorithmConfig):
    """Configuration of `ResidualSAC`; every field of `ResidualSACParams` is an attribute.

    Example:
        >>> config = (
        ...     ResidualSACConfig()
        ...     .environment(env_config={"task": "pick_up_the_can_and_place_it_in_the_bin"})
        ...     .training(residual_scale=0.5, utd=2)
        ... )
        >>> algorithm = config.build_algo()

    Without an environment it takes the default task of `pld_tabletop` and its shipped base policy.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        from pld_ray.algorithm.algorithm import ResidualSAC
        from pld_ray.algorithm.evaluation import evaluate_init_states
        from pld_ray.rollout.env_runner import ResidualEnvRunner

        super().__init__(algo_class=algo_class or ResidualSAC)
        defaults = ResidualSACParams()
        for name in PARAMETER_NAMES:
            setattr(self, name, getattr(defaults, name))
        self._train_batch_size_per_learner = defaults.batch_size
        self.lr = None

        factory.register()
        self.env = factory.ENV_NAME
        self.env_runner_cls = ResidualEnvRunner
        self.gym_env_vectorize_mode = "vector_entry_point"
        self.normalize_actions = False
        self.clip_actions = True

        # base policy
        self.base_policy_type = "lerobot"
        self.base_policy_path: str | None = None
        self.base_policy_placement = "inline"
        self.base_policy_loader: dict[str, Any] = {}
        self.base_policy_pool: dict[str, Any] = {}
        self.base_policy_prefetch = False

        # collection
        self.offline_cache: str | None = None
        self.collection_seed = 0
        self.pretrained_critic: str | None = None

        # loop
        self.sample_steps = 100
        self.sampling = "pipelined"
        self.publish_interval = 50
        self.max_staleness: int | None = 50_000
        self.stall_timeout_s = 600.0
        self.max_requests_in_flight_per_env_runner = 2
        self.held_init_states: list[int] = list(range(20))
        self.custom_evaluation_function = evaluate_init_states
        self.evaluation_duration_unit = "episodes"
        self.evaluation_duration = 20
        self.evaluation_interval = None
        self.min_sample_timesteps_per_iteration = 500
        self.min_time_s_per_iteration = None
        self.sample_timeout_s = None
        self.env_runner_health_probe_timeout_s = 0.1
        self.restart_failed_env_runners = True
        self.restart_failed_sub_environments = False
        self.torch_skip_nan_gradients = True
        self.num_cpus_for_main_process = 1

    def training(  # type: ignore[override]
        self,
        *,
        sample_steps: int = NotProvided,
        offline_cache: str | None = NotProvided,
        collection_seed: int = NotProvided,
        pretrained_critic: str | None = NotProvided,
        sampling: str = NotProvided,
        publish_interval: int = NotProvided,
        max_staleness: int | None = NotProvided,
        stall_timeout_s: float = NotProvided,
        **kwargs: Any,
    ) -> ResidualSACConfig:
        """Set learner parameters: any field of `ResidualSACParams`, or RLlib's own `training` ones.

        Args:
            sample_steps: environment steps per `training_step`, over all runners.
            offline_cache: folder in which collected base-policy data is kept and found again.
            collection_seed: seed of the base-policy collection, apart from the run's own seed, so
                that runs with different seeds share one cache.
            pretrained_critic: a checkpoint folder whose critic this run starts from, in place of
                its own Cal-QL initialisation.
            sampling: `synchronous` (sample, store, update, publish, one after the other),
                `pipelined` (the updates of the last round are made while the runners step; same
                numbers every time) or `asynchronous` (nobody waits for anybody; the order of
                episodes depends on timing).
            publish_interval: updates between two publications of weights (asynchronous).
            max_staleness: an episode is not stored if more updates than these were made since the
                weights with which it began; None stores everything.
            stall_timeout_s: a runner whose request takes longer is replaced (asynchronous).

        Raises:
            ValueError: a value out of range. TypeError: a name that does not exist.
        """
        for name in PARAMETER_NAMES:
            if name in kwargs and name != "gamma":
                setattr(self, name, kwargs.pop(name))
        if "train_batch_size_per_learner" in kwargs:
            self.batch_size = kwargs["train_batch_size_per_learner"]
        self._train_batch_size_per_learner = self.batch_size
        super().training(**kwargs)
        if sample_steps is not NotProvided:
            self.sample_steps = sample_steps
        if offline_cache is not NotProvided:
            self.offline_cache = offline_cache
        if collection_seed is not NotProvided:
            self.collection_seed = collection_seed
        if pretrained_critic is not NotProvided:
            self.pretrained_critic = pretrained_critic
        for name, value in (
            ("sampling", sampling),
            ("publish_interval", publish_interval),
            ("max_staleness", max_staleness),
            ("stall_timeout_s", stall_timeout_s),
        ):
            if value is not NotProvided:
                setattr(self, name, value)
        return self

    def evaluation(  # type: ignore[override]
        self, *, held_init_states: list[int] = NotProvided, **kwargs: Any
    ) -> ResidualSACConfig:
        """RLlib's `evaluation` settings, and the init states that `evaluate()` plays once each.

        Args:
            held_init_states: ids of stored init states of the task.
        """
        super().evaluation(**kwargs)
        if held_init_states is not NotProvided:
            self.held_init_states = list(held_init_states)
        return self

    def base_policy(
        self,
        *,
        type: str = NotProvided,
        path: str | None = NotProvided,
        placement: str = NotProvided,
        loader: dict[str, Any] = NotProvided,
        pool: dict[str, Any] = NotProvided,
        prefetch: bool = NotProvided,
    ) -> ResidualSACConfig:
        """Choose the frozen base policy and where it runs.

        Args:
            type: `lerobot`, or `none`: a base action of zeros, for learning from scratch.
            path: a LeRobot checkpoint folder; None is the shipped policy of `pld_tabletop`.
            placement: `inline` (in each env runner) or `pool` (Ray actors with dynamic batching).
            loader: further arguments of `load_base_policy`, such as `dtype` or `rename_map`.
            pool: arguments of `BasePolicyPool`, such as `num_replicas` or `max_batch_size`.
            prefetch: ask for the next chunk one step ahead, see `ChunkCache`.
        """
        for name, value in (
            ("type", type),
            ("path", path),
            ("placement", placement),
            ("loader", loader),
            ("pool", pool),
            ("prefetch", prefetch),
        ):
            if value is not NotProvided:
                setattr(self, f"base_policy_{name}", value)
        return self

    def residual_sac_params(self) -> ResidualSACParams:
        """The learner's parameters as the one dataclass that all plain-PyTorch code reads."""
        return ResidualSACParams(**{name: getattr(self, name) for name in PARAMETER_NAMES})

    def validate(self) -> None:
        super().validate()
        self.residual_sac_params().validate()
        if self.base_policy_type not in ("lerobot", "none"):
            raise ValueError(f"base_policy.type={self.base_policy_type!r}: must be lerobot or none")
        if self.base_policy_placement not in ("inline", "pool"):
            raise ValueError(
                f"base_policy.placement={self.base_policy_placement!r}: must be inline or pool"
            )
        if self.sampling not in SAMPLING:
            raise ValueError(f"training(sampling={self.sampling!r}): must be one of {SAMPLING}")
        no_runners = self.num_env_runners == 0 and not self.in_evaluation
        if self.sampling == "asynchronous" and no_runners:
            raise ValueError(
                "training(sampling='asynchronous') needs env runners of their own: set "
                "env_runners(num_env_runners=1) or more"
            )
        for name in ("sample_steps", "publish_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"training({name}={getattr(self, name)!r}): must be >= 1")
        if self.max_staleness is not None and self.max_staleness < self.publish_interval:
            raise ValueError(
                f"training(max_staleness={self.max_staleness}): must be None or at least "
                f"publish_interval={self.publish_interval}, or nothing would ever be stored"
            )
        if self.stall_timeout_s <= 0:
            raise ValueError(f"training(stall_timeout_s={self.stall_timeout_s}): must be > 0")

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from pld_ray.algorithm.module import ResidualModule

        return RLModuleSpec(
            module_class=ResidualModule,
            model_config={
                "params": asdict(self.residual_sac_params()),
                "seed": self.seed or 0,
                "tasks": factory.task_instructions(self.env_config),
            },
        )

    def get_default_learner_class(self) -> type:
        from pld_ray.algorithm.learner import ResidualSACLearner

        return ResidualSACLearner

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return {}
