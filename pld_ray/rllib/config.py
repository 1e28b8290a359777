"""`ResidualSACConfig`: the algorithm as an RLlib user configures it."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from pld_ray.config import TrainConfig, check_sampling
from pld_ray.config.groups import PolicyConfig, RunnersConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.options import check_options
from pld_ray.pool import PoolSpec
from pld_ray.rollout import factory

PARAMETER_NAMES = tuple(f.name for f in fields(ResidualSACParams))
LOOP_NAMES = ("sample_steps", "sampling", "publish_interval", "max_staleness", "stall_timeout_s")
"""Of `RunnersConfig`, what `training` takes beside the learner's parameters."""
RUN_NAMES = ("offline_cache", "collection_seed", "pretrained_critic")
"""Of `TrainConfig`, the same."""


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
        from pld_ray.evaluation.requests import evaluate_init_states
        from pld_ray.rllib.algorithm import ResidualSAC
        from pld_ray.rllib.env_runner import ResidualEnvRunner

        super().__init__(algo_class=algo_class or ResidualSAC)
        for defaults, names in (
            (ResidualSACParams(), PARAMETER_NAMES),
            (RunnersConfig(), LOOP_NAMES),
            (TrainConfig(), RUN_NAMES),
        ):
            for name in names:
                setattr(self, name, getattr(defaults, name))
        self._train_batch_size_per_learner = self.batch_size
        self.lr = None

        factory.register()
        self.env = factory.ENV_NAME
        self.env_runner_cls = ResidualEnvRunner
        self.gym_env_vectorize_mode = "vector_entry_point"
        self.normalize_actions = False
        self.clip_actions = True

        # base policy
        policy = PolicyConfig()
        self.base_policy_type = policy.type
        self.base_policy_path = policy.path
        self.base_policy_placement = policy.placement
        self.base_policy_loader: dict[str, Any] = {}
        self.base_policy_pool: dict[str, Any] = {}
        self.base_policy_prefetch = policy.prefetch

        # loop
        self.max_requests_in_flight_per_env_runner = RunnersConfig.requests_in_flight
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

    def training(self, **kwargs: Any) -> ResidualSACConfig:
        """Set any field of `ResidualSACParams`, what follows, or RLlib's own `training` settings.

        A Tune search space stands in for any value; `validate` checks what it draws.

        Args:
            sample_steps, sampling, publish_interval, max_staleness, stall_timeout_s: as in
                `RunnersConfig`.
            offline_cache, collection_seed, pretrained_critic: as in `TrainConfig`.

        Raises:
            TypeError: a name that does not exist.
        """
        for name in (*PARAMETER_NAMES, *LOOP_NAMES, *RUN_NAMES):
            if name in kwargs and name != "gamma":
                setattr(self, name, kwargs.pop(name))
        if "train_batch_size_per_learner" in kwargs:
            self.batch_size = kwargs["train_batch_size_per_learner"]
        self._train_batch_size_per_learner = self.batch_size
        super().training(**kwargs)
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
            pool: fields of `PoolSpec`, such as `replicas` or `max_batch_size`.
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
        return ResidualSACParams(**self._values(PARAMETER_NAMES))

    def validate(self) -> None:
        super().validate()
        self.residual_sac_params().validate()
        check_options(self._policy_settings(), "base_policy.")
        self.pool_spec().check("base_policy.")
        check_options(RunnersConfig(**self._values(LOOP_NAMES)), "training.")
        check_options(TrainConfig(**self._values(RUN_NAMES)), "training.")
        check_sampling(
            self.sampling,
            1 if self.in_evaluation else self.num_env_runners,
            self.publish_interval,
            self.max_staleness,
        )

    def _policy_settings(self) -> PolicyConfig:
        """The base policy's settings as the dataclass that declares their ranges."""
        return PolicyConfig(
            type=self.base_policy_type,
            path=None if self.base_policy_path is None else str(self.base_policy_path),
            placement=self.base_policy_placement,
            prefetch=self.base_policy_prefetch,
        )

    def pool_spec(self) -> PoolSpec:
        """The pool that serves the base policy with `placement="pool"`."""
        path = None if self.base_policy_path is None else str(self.base_policy_path)
        return PoolSpec(
            arguments={"path": path, **self.base_policy_loader}, **self.base_policy_pool
        )

    def _values(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from pld_ray.rllib.module import ResidualModule

        return RLModuleSpec(
            module_class=ResidualModule,
            model_config={
                "params": asdict(self.residual_sac_params()),
                "seed": self.seed or 0,
                "tasks": factory.task_instructions(self.env_config),
            },
        )

    def get_default_learner_class(self) -> type:
        from pld_ray.rllib.learner import ResidualSACLearner

        return ResidualSACLearner

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return {}
