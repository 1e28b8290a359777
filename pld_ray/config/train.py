"""The command line's configuration as dataclasses; `config/file.py` reads and writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pld_ray.config.arm import check_arm
from pld_ray.config.credentials import refuse_password
from pld_ray.config.groups import (
    LIBERO_ONLY,
    LOCAL_RAY,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    PlacementConfig,
    RunnersConfig,
    TrackingConfig,
)
from pld_ray.config.intervention import InterventionConfig
from pld_ray.config.policy import PolicyConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.errors import UserError
from pld_ray.options import check_local, check_options, option


class ConfigError(UserError, ValueError):
    """A key, a value or a file of the configuration is wrong; the message says how to mend it."""


def check_declared(config: Any, is_new: bool = False) -> None:
    """Raise ConfigError on a value out of its own range, or a password in `tracking.uri`.

    Args:
        config: of any command.
        is_new: no folder is there already that was made from it; an address is refused as one.
    """
    refuse_password(config.tracking.uri, "tracking.uri")
    try:
        check_options(config)
        if is_new:
            check_local(config)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@dataclass
class TrainConfig:
    """`pld-ray train`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: ResidualSACParams = field(default_factory=ResidualSACParams)
    runners: RunnersConfig = field(default_factory=RunnersConfig)
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    total_steps: int = option(
        36_000,
        "Environment steps of the whole run, base-policy collection included.",
        within="[1, 1e10]",
    )
    seed: int = option(
        0, "Seed of networks, replay, exploration and resets.", within="[0, 2147483647]"
    )
    collection_seed: int = option(
        0,
        "Seed of the base-policy collection, apart from `seed` so that runs share its cache.",
        within="[0, 2147483647]",
    )
    output_dir: str = option(
        "outputs/train",
        "Folder of the run; unless it is resumed, nothing of another run may be there.",
        path="new",
    )
    offline_cache: str | None = option(
        None,
        "Folder of collected base-policy data; None is `cache/<task>-<digest of all that shapes "
        "it>` beside the run's folder.",
        path="new",
    )
    demo_path: list[str] = option(
        [],
        "LeRobotDatasets, or folders of them such as a run's `buffer`, whose episodes fill the "
        "offline replay in place of successes of the base policy; base actions are computed along "
        "them. Repeatable.",
        path="any",
    )
    demo_episodes: Literal["successes", "all"] = option(
        "successes", "Which episodes of `demo_path` are taken."
    )
    norm_stats: str | None = option(
        None,
        "A file of `pld-ray norm-stats`, or the dataset that holds it, whose `state` standardises "
        "the state in place of statistics of the offline and warm-up data.",
        path="any",
    )
    norm_stats_mode: Literal["zscore", "quantile"] = option(
        "zscore",
        "With `norm_stats`: by mean and standard deviation, or the 1 % and 99 % quantiles become "
        "-1 and 1.",
    )
    dump_interval: int = option(
        0,
        "Environment steps after which the episodes that went into the replay are written as "
        "datasets into the run's folder; 0 writes none.",
        within="[0, 1e10]",
    )
    pretrained_critic: str | None = option(
        None,
        "A checkpoint of `pld-ray pretrain` (or `train`) whose critic this run starts from.",
        path="folder",
    )
    max_failures: int = option(
        3,
        "Times that a run starts anew from its last checkpoint after losing a learner.",
        within="[0, 1000]",
    )
    ray_port: int | None = option(
        None,
        "Port at which `pld-ray actor` joins the Ray that this command starts; it then leaves the "
        "custom resources of `placement.env_runner` to those who join. None is a port that nobody "
        "knows.",
        within="[1024, 65535]",
    )
    # stays the last: `RunDir.load_config` knows by it that a file was not cut off
    ray_address: str | None = option(
        None,
        "A running Ray cluster (`auto`, `host:port`); None is that of RAY_ADDRESS, and without one "
        "a Ray is started here, as with `local`.",
    )

    @property
    def uses_pool(self) -> bool:
        """Whether the policy that plays chunks is in a pool."""
        return self.policy.placement == "pool" and self.policy.type != "none"

    def validate(self) -> None:
        """Raise ConfigError on the first value out of its range, or that another one excludes."""
        check_declared(self)
        try:
            self.algorithm.validate()
            self.intervention.check(self.runners, bool(self.placement.env_runner))
            check_arm(self)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.ray_port is not None and self.ray_address not in (None, LOCAL_RAY):
            raise ConfigError(
                "ray_port is of the Ray that this command starts, and ray_address names one that "
                "runs: remove one of them"
            )
        if self.env.control_hz is not None and self.runners.num_envs_per_env_runner != 1:
            raise ConfigError(
                "env.control_hz is the rate of one robot: set runners.num_envs_per_env_runner=1"
            )
        check_environment_class(self.env)
        check_stop_success(self.evaluation)
        if self.norm_stats is not None and not self.algorithm.normalize_observations:
            raise ConfigError(
                "norm_stats is of no use with algorithm.normalize_observations=false: remove one"
            )
        if self.norm_stats is not None and self.pretrained_critic is not None:
            raise ConfigError(
                "norm_stats and pretrained_critic exclude each other: a critic keeps the "
                "statistics that it was trained under"
            )
        policy, runners = self.policy, self.runners
        if policy.max_replicas is not None and policy.max_replicas < policy.replicas:
            raise ConfigError(
                f"policy.max_replicas={policy.max_replicas}: must be null or at least "
                f"policy.replicas={policy.replicas}"
            )
        if policy.prefetch and policy.type == "none":
            raise ConfigError(
                "policy.prefetch=true: must be false with policy.type=none, which is never asked"
            )
        if policy.rtc and not policy.prefetch:
            raise ConfigError(
                "policy.rtc=true: must be false without policy.prefetch=true, which asks for the "
                "chunks that it joins"
            )
        check_sampling(
            runners.sampling,
            runners.num_env_runners,
            runners.publish_interval,
            runners.max_staleness,
        )
        check_resources(self)


def check_stop_success(evaluation: EvaluationConfig) -> None:
    """Refuse an end that no validation comes early enough for.

    Raises:
        ConfigError: naming the settings.
    """
    if evaluation.stop_success is not None and evaluation.interval_steps == 0:
        raise ConfigError(
            "evaluation.stop_success is looked at after a validation, and "
            "evaluation.interval_steps=0 makes none before the end: set an interval"
        )


def check_environment_class(env: EnvConfig) -> None:
    """Refuse fields of another environment than the one that is made.

    Raises:
        ConfigError: naming the field.
    """
    own = env.environment_class is None and env.suite == "pld_tabletop"
    if env.terminate_when_toppled and not own:
        raise ConfigError(
            "env.terminate_when_toppled is for env.suite=pld_tabletop alone: set it to false"
        )
    if env.entry_point is None:
        if env.kwargs:
            raise ConfigError("env.kwargs are the arguments of env.entry_point, which is not set")
        return
    usual = EnvConfig()
    given = [name for name in LIBERO_ONLY if getattr(env, name) != getattr(usual, name)]
    if given:
        raise ConfigError(
            f"{', '.join(f'env.{name}' for name in given)}: of LIBERO's environments; give what "
            f"{env.entry_point} takes with env.kwargs, and beside it "
            + " ".join(f"--env.{name}={json.dumps(getattr(usual, name))}" for name in given)
        )


def check_sampling(
    sampling: str, num_env_runners: int, publish_interval: int, max_staleness: int | None
) -> None:
    """Refuse asynchronous settings under which nothing would be sampled or stored.

    Raises:
        ConfigError: naming the setting.
    """
    if sampling == "asynchronous" and num_env_runners == 0:
        raise ConfigError(
            "sampling=asynchronous needs env runners of their own: set num_env_runners to 1 or more"
        )
    if max_staleness is not None and max_staleness < publish_interval:
        raise ConfigError(
            f"max_staleness={max_staleness}: must be null or at least publish_interval="
            f"{publish_interval}, or nothing would ever be stored"
        )


def check_resources(config: TrainConfig) -> None:
    """Refuse amounts that Ray cannot reserve: less than 1/10000, GPUs of one and a half.

    Raises:
        ConfigError: naming the setting.
    """
    policy, runners = config.policy, config.runners
    cpus = {
        "policy.num_cpus_per_replica": policy.num_cpus_per_replica,
        "runners.num_cpus_per_env_runner": runners.num_cpus_per_env_runner,
    }
    gpus = {
        "policy.num_gpus_per_replica": policy.num_gpus_per_replica,
        "runners.num_gpus_per_learner": runners.num_gpus_per_learner,
    }
    amounts = cpus | gpus
    for group in ("env_runner", "evaluation", "learner", "base_policy"):
        amounts |= check_custom(f"placement.{group}", getattr(config.placement, group))
    check_amounts(amounts)
    for key, amount in gpus.items():
        if amount > 1 and amount != int(amount):
            raise ConfigError(f"{key}={amount}: must be a whole number above 1")


def check_amounts(amounts: dict[str, float]) -> None:
    """Refuse less of a resource than Ray can reserve.

    Raises:
        ConfigError: naming the setting.
    """
    for key, amount in amounts.items():
        if 0 < amount < 1e-4:
            raise ConfigError(f"{key}={amount}: must be 0 or at least 0.0001, Ray's least share")


def check_custom(key: str, resources: dict[str, float]) -> dict[str, float]:
    """Amounts of custom resources by their full key; those that Ray names itself are refused."""
    for name in resources:
        if name in ("CPU", "GPU", "memory", "object_store_memory"):
            raise ConfigError(
                f"{key}: {name} is no custom resource; CPUs and GPUs have keys of their own "
                "(runners.num_cpus_per_env_runner, policy.num_gpus_per_replica)"
            )
    return {f"{key}.{name}": amount for name, amount in resources.items()}
