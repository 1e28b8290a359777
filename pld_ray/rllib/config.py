"""`ResidualSACConfig`: the algorithm as an RLlib user configures it, and what it shares."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, ClassVar, Literal, Self

import gymnasium as gym
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.stored_columns import replay_schema
from pld_ray.config import PlacementConfig, PolicyConfig, TrainConfig, check_sampling
from pld_ray.config.intervention import InterventionConfig
from pld_ray.config.learner import LearnerParams
from pld_ray.config.policy import PoolOptions
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.config.residual_sac_checks import check_action_bounds, check_grippers
from pld_ray.data.demonstrations import EpisodeFacts
from pld_ray.networks.encoders import image_shapes
from pld_ray.options import Field, check_options, fields_of, fits, unfit
from pld_ray.pool import PoolSpec
from pld_ray.replay import ReplaySchema
from pld_ray.rllib import unused_settings
from pld_ray.rllib.policy_encoder import with_policy_encoder
from pld_ray.rollout import factory

RUN_KEYS = (
    *(f"runners.{name}" for name in ("sample_steps", "sampling", "publish_interval")),
    *("runners.max_staleness", "runners.stall_timeout_s"),
    *("offline_cache", "collection_seed", "pretrained_critic", "demo_path", "demo_episodes"),
    *("norm_stats", "norm_stats_mode", "env.control_hz"),
)
"""Keys of a run, beside the learner's parameters, for which RLlib has no setting of its own."""


class OffPolicyConfig(AlgorithmConfig):
    """What the configurations here share: environment, runners, loop, evaluation.

    Every field of the parameters is an attribute. Without an environment it takes the default task
    of `pld_tabletop`.
    """

    run_class: ClassVar[type[TrainConfig]]
    """The command line's configuration of the same algorithm."""
    params_class: ClassVar[type[LearnerParams]]
    base_policy_check_room: bool = PlacementConfig.check
    train_batch_size_per_learner: Any = unused_settings.other_name_of("batch_size")  # type: ignore[assignment]
    collects: ClassVar[bool] = False
    """Whether a base policy's data is collected before the first update, which a cache may keep."""

    def __init__(self, algo_class: type | None = None) -> None:
        from pld_ray.rllib.off_policy import evaluate_init_states

        super().__init__(algo_class=algo_class)
        self.__dict__.update(
            {name: copy.copy(field.default) for name, field in self.options().items()}
        )
        self.lr = None

        factory.register()
        self.env = factory.ENV_NAME
        self.gym_env_vectorize_mode = "vector_entry_point"
        self.normalize_actions = False
        self.clip_actions = True

        # base policy
        self.base_policy_options: PolicyConfig = self.run_class().policy
        self.base_policy_resources: dict[str, float] = {}
        self.base_policy_strategy: Literal["DEFAULT", "SPREAD"] = (
            PlacementConfig.base_policy_strategy
        )
        self.intervention = InterventionConfig()

        # loop
        self.max_requests_in_flight_per_env_runner = TrainConfig().runners.requests_in_flight
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

    @classmethod
    def options(cls) -> dict[str, Field]:
        """Attribute -> the option that declares it."""
        run_class: Any = cls.run_class
        return {
            field.key.rpartition(".")[2]: field
            for field in fields_of(run_class)
            if field.key.startswith("algorithm.") or field.key in RUN_KEYS
        }

    @classmethod
    def of_run(cls, run: TrainConfig) -> Self:
        """What the command line trains; a default cache folder is the run's own matter."""
        runners, placement = run.runners, run.placement
        groups = {"algorithm": run.algorithm, "runners": runners, "env": run.env, "": run}
        settings = {
            name: getattr(groups[field.key.rpartition(".")[0]], name)
            for name, field in cls.options().items()
        }
        vectorization = {
            name: getattr(runners, name)
            for name in ("vectorization", "step_timeout_s", "reset_timeout_s")
        }
        config: Self = (
            cls()
            .environment(env_config={**run.env.training_settings(), **vectorization})
            .base_policy(
                **vars(run.policy),
                resources=dict(placement.base_policy),
                scheduling_strategy=placement.base_policy_strategy,
            )
            .env_runners(
                num_env_runners=runners.num_env_runners,
                num_envs_per_env_runner=runners.num_envs_per_env_runner,
                num_cpus_per_env_runner=runners.num_cpus_per_env_runner,
                custom_resources_per_env_runner=dict(placement.env_runner),
                max_requests_in_flight_per_env_runner=runners.requests_in_flight,
            )
            .learners(
                num_learners=runners.num_learners,
                num_gpus_per_learner=runners.num_gpus_per_learner,
                custom_resources_per_learner=dict(placement.learner),
            )
            .evaluation(
                evaluation_num_env_runners=run.evaluation.num_env_runners,
                evaluation_config={"custom_resources_per_env_runner": dict(placement.evaluation)},
            )
            .human(**vars(run.intervention))
            .resources(placement_strategy=placement.strategy)
            .training(**settings)
            .debugging(seed=run.seed, log_level="ERROR")
        )
        config.base_policy_check_room = placement.check
        return config

    def environment(self, env: Any = NotProvided, **kwargs: Any) -> Self:  # type: ignore[override]
        unused_settings.check_mapping("environment(env_config)", kwargs.get("env_config", {}))
        super().environment(env, **kwargs)
        return self

    def training(self, **kwargs: Any) -> Self:
        """Set anything in `options`, or RLlib's own `training` settings.

        These are the fields of the algorithm's parameters, and those of `RunnersConfig`,
        `TrainConfig` and `EnvConfig` in `RUN_KEYS`. A Tune search space stands in for any value;
        `validate` checks it.

        Raises:
            TypeError: a name that does not exist.
        """
        unused_settings.check_names(
            "training", kwargs, [*self.options(), *signature(super().training).parameters]
        )
        for name in self.options().keys() & kwargs.keys() - {"gamma"}:
            setattr(self, name, kwargs.pop(name))
        if "train_batch_size_per_learner" in kwargs:
            self.batch_size = kwargs.pop("train_batch_size_per_learner")
        super().training(**kwargs)
        return self

    def evaluation(  # type: ignore[override]
        self, *, held_init_states: list[int] = NotProvided, **kwargs: Any
    ) -> Self:
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
        resources: dict[str, float] = NotProvided,
        scheduling_strategy: Literal["DEFAULT", "SPREAD"] = NotProvided,
        **options: Any,
    ) -> Self:
        """Choose the frozen base policy and where it runs.

        Args:
            resources: custom resources of each replica of a pool.
            scheduling_strategy: of the replicas, as `PlacementConfig.base_policy_strategy`.
            options: any field of `PolicyConfig`, such as `path`, `placement` or `max_batch_size`.

        Raises:
            TypeError: a name that does not exist.
        """
        unused_settings.without_search_space("base_policy", options, PolicyConfig)
        if options.get("path") is not None:
            options["path"] = str(options["path"])
        self.base_policy_options = dataclasses.replace(self.base_policy_options, **options)
        if resources is not NotProvided:
            self.base_policy_resources = resources
        if scheduling_strategy is not NotProvided:
            self.base_policy_strategy = scheduling_strategy
        return self

    def human(self, **options: Any) -> Self:
        """Let a person take over while the policy learns.

        Args:
            options: any field of `InterventionConfig`, such as `device`.

        Raises:
            TypeError: a name that does not exist.
        """
        unused_settings.without_search_space("human", options, InterventionConfig)
        self.intervention = dataclasses.replace(self.intervention, **options)
        return self

    def get_state(self) -> dict[str, Any]:
        """RLlib's, with the options that are -1: that is its mark of a deprecated setting, which
        it leaves out, so that the default would take their place."""
        return super().get_state() | {name: getattr(self, name) for name in self.options()}

    def learner_params(self) -> Any:
        """The learner's parameters as the one dataclass that all plain-PyTorch code reads."""
        params = {field.name: getattr(self, field.name) for field in fields(self.params_class)}
        return self.params_class(**with_policy_encoder(params, self.base_policy_options))

    def validate(self) -> None:
        unused_settings.check_settings(self)
        super().validate()
        self.learner_params().validate()
        check_options(self.base_policy_options, "base_policy.")
        check_options(self.intervention, "human.")
        self.pool_spec().check("base_policy.")
        for name, field in self.options().items():
            if not fits(getattr(self, name), field.hint, field.option):
                raise ValueError(unfit(f"training.{name}", getattr(self, name), field))
        runners = 1 if self.in_evaluation else self.num_env_runners
        check_sampling(self.sampling, runners, self.publish_interval, self.max_staleness)

    @property
    def uses_pool(self) -> bool:
        """Whether the policy that plays chunks is in a pool."""
        return (p := self.base_policy_options).placement == "pool" and p.type != "none"

    def pool_spec(self) -> PoolSpec:
        """The pool that serves the base policy with `placement="pool"`."""
        policy = self.base_policy_options
        options = {field.name: getattr(policy, field.name) for field in fields(PoolOptions)}
        return PoolSpec(
            arguments={"path": policy.path, **policy.loader()},
            resources=self.base_policy_resources,
            scheduling_strategy=self.base_policy_strategy,
            check_room=self.base_policy_check_room,
            **options,
        )

    # --- what a start is checked against ----------------------------------------------------------

    def cameras(self, observations: gym.spaces.Dict) -> list[str]:
        """Camera columns that the networks read."""
        raise NotImplementedError

    def check_environment(self, env: Any, actions: gym.spaces.Box) -> None:
        """Raise ValueError if this algorithm cannot learn in an environment."""

    def check_demonstrations(self, episodes: Sequence[EpisodeFacts]) -> None:
        """Raise DataError if the episodes of `demo_path` cannot be learnt from."""

    def replay_schema(self, spaces: gym.spaces.Dict, actions: gym.spaces.Box) -> ReplaySchema:
        """Columns of the rings for these spaces, the base policy's part included."""
        raise NotImplementedError

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """What a module of the user's own is made of, too."""
        return dict(self.get_default_rl_module_spec().model_config)


class ResidualSACConfig(OffPolicyConfig):
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

    run_class = TrainConfig
    params_class = ResidualSACParams
    collects = True

    def __init__(self, algo_class: type | None = None) -> None:
        from pld_ray.rllib.algorithm import ResidualSAC
        from pld_ray.rllib.env_runner import ResidualEnvRunner

        super().__init__(algo_class=algo_class or ResidualSAC)
        self.env_runner_cls = ResidualEnvRunner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from pld_ray.rllib.module import ResidualModule

        params: Any = self.learner_params()
        embeds = params.task_embedding != "none"
        return RLModuleSpec(
            module_class=ResidualModule,
            model_config={
                "params": dataclasses.asdict(params),
                "seed": self.seed or 0,
                "tasks": factory.task_instructions(self.env_config, read=embeds),
            },
        )

    def get_default_learner_class(self) -> type:
        from pld_ray.rllib.residual_learner import ResidualSACLearner

        return ResidualSACLearner

    def cameras(self, observations: gym.spaces.Dict) -> list[str]:
        return list(image_shapes(observations, self.learner_params()))

    def check_environment(self, env: Any, actions: gym.spaces.Box) -> None:
        params = self.learner_params()
        check_grippers(params, getattr(env, "gripper_dims", ()))
        check_action_bounds(params, actions.low.tolist(), actions.high.tolist())
        if params.residual_dims and (len(params.residual_dims),) != actions.shape:
            raise ValueError(
                f"algorithm.residual_dims has {len(params.residual_dims)} factors but the action "
                f"has {actions.shape[0]} dimensions"
            )

    def replay_schema(self, spaces: gym.spaces.Dict, actions: gym.spaces.Box) -> ReplaySchema:
        untold = dataclasses.replace(self.learner_params(), task_embedding="none")
        return replay_schema(ResidualNetworks.of_spaces(spaces, actions, untold), spaces, actions)
