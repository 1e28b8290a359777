"""From a `TrainConfig` to a running algorithm."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from envs.assets import resolve_assets
from envs.bootstrap import RenderingUnavailableError
from pld_ray.algorithm.residual.pretrained import check_pretrained
from pld_ray.columns import VECTOR_KEYS
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.start_check import check_start
from pld_ray.data.dataset import open_all
from pld_ray.data.demonstrations import (
    EpisodeFacts,
    Wanted,
    check_alike,
    check_fits,
    episodes_in,
)
from pld_ray.data.errors import DataError
from pld_ray.data.normalizer import Normalizer
from pld_ray.evaluation.play import check_init_states
from pld_ray.files.manifest import checksum
from pld_ray.jobs.cluster import check_cluster, quiet_ray, running_ray
from pld_ray.jobs.pretrained_critic import check_donor
from pld_ray.jobs.recording import frames_per_second
from pld_ray.policies.actors import actor_facts
from pld_ray.replay import FrameRing
from pld_ray.replay.ingest import returns_to_go
from pld_ray.rllib.collection import collection_identity
from pld_ray.rllib.config import OffPolicyConfig, ResidualSACConfig
from pld_ray.rllib.demonstrations import check_room
from pld_ray.rllib.intake import ReturnRangeError, check_returns, with_scaled_reward
from pld_ray.rllib.module import check_task_index
from pld_ray.rllib.of_run import algorithm_config
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rollout.classifier_reward import with_classifier
from pld_ray.rollout.entry_point import environment_class, make_checked
from pld_ray.rollout.env_group import MakeEnv
from pld_ray.rollout.factory import env_maker, open_base_policy, wanted_of
from pld_ray.rollout.live_view import check_view
from pld_ray.rollout.make_intervenor import check_intervention
from pld_ray.rollout.offline_cache import OfflineCache
from pld_ray.rollout.vector_env import with_base_policy


def offline_cache_folder(config: TrainConfig) -> pathlib.Path:
    """Where collected base-policy data is kept: the setting, or a folder beside the run's.

    The latter is named after everything the data depends on, so that runs share it or miss it.
    """
    if config.offline_cache is not None:
        return pathlib.Path(config.offline_cache).resolve()
    identity = collection_identity(ResidualSACConfig.of_run(config))
    parent = pathlib.Path(config.output_dir).resolve().parent
    name = re.sub(r"[^\w-]", "_", config.env.task)[:80]  # a task may be any text
    return parent / "cache" / f"{name}-{checksum(identity)[:12]}"


def check_environment(
    config: TrainConfig, learns: bool = True, resumes: bool = False
) -> dict[str, int]:
    """Open the environment and the base policy once, here, where an error can be read.

    Args:
        config: of a run.
        learns: False where a checkpoint only plays: what it was learnt from may be gone.
        resumes: a run that goes on, whose rings have held its episodes.

    Returns:
        Bytes of the `online` and `offline` replay when they are full.

    Raises:
        ConfigError: an unknown suite or task, cameras without a GL library, a base policy that is
            missing, incomplete or made for another environment, cameras that the vision encoder
            cannot read, a replay larger than this machine's memory or smaller than an episode, an
            `offline_cache` that holds something else.
    """
    if not learns:
        config = only_playing(config)
    check_start(config, learns)
    quiet_ray()
    try:
        if config.pretrained_critic is not None:
            if resumes:  # it was taken over when the run began
                check_pretrained(config.pretrained_critic)
            else:
                check_donor(config, config.pretrained_critic)
        algorithm = algorithm_config(config)
        if learns and algorithm.collects and not resumes:  # it may be elsewhere
            OfflineCache(offline_cache_folder(config), {}).check_writable()
        with contextlib.closing(open_environment(config)) as env:
            if config.env.environment_class is None and config.env.suite.startswith("libero_"):
                resolve_assets(config.env.suite, config.env.assets)
            policy, observations, actions = open_base_policy(
                config.policy, env.observation_space, env.action_space
            )
            here = config.runners.num_env_runners == 0  # else robot and device are at the runner
            if config.env.robot and here:
                env.check(config.intervention.device != "none")
            cameras = [*algorithm.cameras(observations), *policy.input_features]
            wanted = wanted_of(observations, actions, cameras, algorithm.env_config)
            if learns:
                check_demonstrations(config, algorithm, wanted)
            if config.norm_stats is not None:
                Normalizer.of_state(config.norm_stats, wanted, config.norm_stats_mode)
            if config.dump_interval:
                frames_per_second(config)
            if not config.placement.env_runner:  # else the viewer is where the runner is
                check_view(config.intervention)
            if config.intervention.device == "scripted" or here:
                check_intervention(config.intervention, env)
            algorithm.check_environment(env, actions)
            model_config = algorithm.get_default_rl_module_spec().model_config
            check_task_index(env.observation_space.spaces, model_config)
            if learns and not resumes:
                check_capacity(config, algorithm, getattr(env, "episode_length", None))
            check_init_states(config, env, config.env.task)
        spaces = with_base_policy(policy, observations, actions)
        check_network_memory(config, spaces)
        replay_bytes = predict_replay_bytes(algorithm, spaces, actions)
        check_memory(config, replay_bytes)
        return replay_bytes
    except (ValueError, OSError, ImportError, RenderingUnavailableError) as error:
        raise ConfigError(str(error)) from error


def check_demonstrations(config: TrainConfig, algorithm: OffPolicyConfig, wanted: Wanted) -> None:
    """Read the vectors of all demonstrations, and refuse what the replay would not take.

    Raises:
        DataError: naming dataset and episode.
    """
    params = config.algorithm
    capacity = math.ceil(params.offline_capacity / max(1, config.runners.num_learners))
    only_successes = config.demo_episodes == "successes"
    facts = []
    datasets = open_all(config.demo_path)
    for dataset in datasets:
        check_fits(dataset, wanted)
    if datasets:
        check_alike(datasets, config.norm_stats)
    for path in config.demo_path:
        episodes = episodes_in(path, wanted.without_cameras(), only_successes)
        for dataset, index, episode in episodes:
            facts.append(fact := EpisodeFacts.of(dataset, index, episode))
            if fact.length >= capacity:
                raise DataError(
                    f"{fact.where} has {fact.length} transitions and the offline replay of a "
                    f"learner holds {capacity} rows: raise algorithm.offline_capacity"
                )
            if params.critic_atoms > 1:
                scaled = with_scaled_reward(episode, params.reward_scale, params.reward_bias)
                returns = returns_to_go(scaled["reward"][:-1], params.gamma)
                try:
                    check_returns(returns, params.value_range)
                except ReturnRangeError as error:
                    raise DataError(f"{fact.where}: {error}") from None
    lengths = [fact.length for fact in facts]
    check_room(lengths, params.offline_capacity, config.runners.num_learners)
    algorithm.check_demonstrations(facts)


NO_HORIZON = 10_000
"""Steps beyond which an environment's limit is not what ends its episodes."""


def check_capacity(config: TrainConfig, algorithm: OffPolicyConfig, horizon: Any) -> None:
    """Raise ConfigError if a ring that is played into could not take an episode.

    Args:
        horizon: steps of the environment's longest episode, where it tells of them.
    """
    if not isinstance(horizon, int) or horizon > NO_HORIZON:
        return
    params, learners = config.algorithm, max(1, config.runners.num_learners)
    collects = algorithm.collects and params.offline_episodes > 0 and not config.demo_path
    helped = config.intervention.device != "none"
    for name in ("online_capacity", *["offline_capacity"] * (collects or helped)):
        capacity, least = getattr(params, name), learners * horizon + 1
        if capacity < least:  # then ceil(capacity / learners) < horizon + 1
            each = f", as each of {learners} learners has its part" if learners > 1 else ""
            raise ConfigError(
                f"algorithm.{name}={capacity}: must be at least {least}{each}: an episode of "
                f"{horizon} steps takes {horizon + 1} rows"
            )


def open_environment(config: TrainConfig) -> Any:
    """The run's environment, opened here.

    Raises:
        ValueError, OSError, ImportError, RenderingUnavailableError: why it cannot be opened.
    """
    if config.env.environment_class is None:
        return env_maker(config.env.settings())()
    make: MakeEnv
    if config.env.robot:  # nothing is moved here
        settings = config.env.settings()
        make = functools.partial(environment_class(settings["entry_point"]), **settings["kwargs"])
    else:
        make = functools.partial(make_checked, str(config.env.entry_point), config.env.kwargs)
    folder = config.env.reward_classifier
    return make() if folder is None else with_classifier(make, folder)


def check_network_memory(config: TrainConfig, spaces: gym.spaces.Dict) -> None:
    """Raise ConfigError if the networks alone, or one batch, cannot fit into this machine.

    Counted is what there is at the least: float32 weights, gradients and Adam's two moments of the
    actor's and the critics' hidden layers, the targets' weights, and one activation of each layer
    for every transition of a batch, or every candidate of its targets.
    """
    params = config.algorithm
    inputs = sum(int(np.prod(s.shape or ())) for k, s in spaces.items() if k in VECTOR_KEYS)
    widths = [inputs, *params.hidden_dims]
    weights = sum(one * other for one, other in pairwise(widths))
    critics = params.num_critics
    networks = 4 * weights * (4 * (1 + critics) + critics)
    draws = params.target_draws if isinstance(params, ACRLPDParams) else 1
    rows = draws * params.batch_size
    if isinstance(config, ACRLPDTrainConfig):
        rows //= config.micro_batches
    batch = 4 * rows * sum(widths) * critics
    total = machine_memory()
    if networks + batch > total:
        raise ConfigError(
            f"the networks would take at least {networks / 1e9:,.0f} GB and a batch "
            f"{batch / 1e9:,.0f} GB, and this machine has {total / 1e9:.1f} GB: lower "
            f"algorithm.hidden_dims={params.hidden_dims}, algorithm.num_critics={critics} or "
            f"algorithm.batch_size={params.batch_size}"
            + (f" or algorithm.target_candidates={draws}" if draws > 1 else "")
        )
    if isinstance(config, ACRLPDTrainConfig):
        check_candidates(config)


def check_candidates(config: ACRLPDTrainConfig) -> None:
    """Raise ConfigError if the keys and values of a policy's candidates cannot fit."""
    params = config.algorithm
    facts, total = actor_facts(params), machine_memory()
    learnt = params.batch_size // config.micro_batches * params.target_draws
    rows = max(learnt, params.acting_candidates)
    if facts is not None and rows * facts.cache_bytes > total:
        raise ConfigError(
            f"what {facts.checkpoint.directory} keeps of an observation would take at least "
            f"{rows * facts.cache_bytes / 1e9:,.0f} GB for {rows:,} candidates, and this machine "
            f"has {total / 1e9:.1f} GB: raise algorithm.accumulation={params.accumulation}, or "
            f"lower algorithm.batch_size={params.batch_size}, "
            f"algorithm.target_candidates={params.target_candidates} or "
            f"algorithm.num_candidates={params.num_candidates}"
        )


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def predict_replay_bytes(
    algorithm: OffPolicyConfig, spaces: gym.spaces.Dict, actions: gym.spaces.Box
) -> dict[str, int]:
    """Bytes of the `online` and `offline` ring when they are full, images or features included.

    Args:
        algorithm: capacities, and what is stored.
        spaces: observations with the base policy's part.
        actions: the action space.
    """
    schema, params = algorithm.replay_schema(spaces, actions), algorithm.learner_params()
    return {
        "online": FrameRing.predict_nbytes(schema, params.online_capacity),
        "offline": FrameRing.predict_nbytes(schema, params.offline_capacity),
    }


def check_memory(config: TrainConfig, replay_bytes: dict[str, int]) -> None:
    """Raise ConfigError if a replay of this process cannot fit into the machine."""
    total = machine_memory()
    needed = sum(replay_bytes.values())
    rows = config.algorithm
    if config.runners.num_learners == 0 and needed > total:
        raise ConfigError(
            f"the replay would take {needed / 1e9:.1f} GB when full and this machine has "
            f"{total / 1e9:.1f} GB: lower algorithm.online_capacity "
            f"({rows.online_capacity:,} rows, "
            f"{replay_bytes['online'] / 1e9:.1f} GB) or algorithm.offline_capacity "
            f"({rows.offline_capacity:,} rows, {replay_bytes['offline'] / 1e9:.1f} GB)"
        )


def only_playing(config: TrainConfig) -> TrainConfig:
    """A run that a checkpoint plays: what it was learnt from may be gone, and a learner that only
    reads takes no GPU, wherever it was learnt."""
    runners = dataclasses.replace(config.runners, num_gpus_per_learner=0.0)
    gone: dict[str, Any] = {"norm_stats": None, "pretrained_critic": None, "offline_cache": None}
    return dataclasses.replace(config, runners=runners, demo_path=[], **gone)


def build_algorithm(config: TrainConfig) -> OffPolicy:
    """Build the algorithm; Ray must be running."""
    quiet_ray()
    built = algorithm_config(config)
    if built.collects:
        built.training(offline_cache=str(offline_cache_folder(config)))
    return built.build_algo()


@contextlib.contextmanager
def running_algorithm(config: TrainConfig, learns: bool = True) -> Iterator[OffPolicy]:
    """The algorithm, which ends with the block, and Ray where it was started for it.

    Args:
        config: of a run.
        learns: see `only_playing`.

    Raises:
        ConfigError: no cluster answers, or it has no room.
    """
    if not learns:
        config = only_playing(config)
    with running_ray(config):
        check_cluster(config)
        algorithm = build_algorithm(config)
        try:
            yield algorithm
        finally:
            algorithm.stop()
