"""Actors that Q-chunking does not build itself; LeRobot is imported where one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies.spaces import make_spaces, shapes_of

if TYPE_CHECKING:
    from pld_ray.policies.chunk_policy import ChunkPolicy
    from pld_ray.policies.lerobot_actor import Facts, LeRobotActor


def load_actor(params: ACRLPDParams, tasks: Sequence[str]) -> LeRobotActor | None:
    """The policy of `actor_path` that the parameters go on training; None for any other actor.

    Raises:
        FileNotFoundError, ValueError: see `LeRobotActor`; or no task to tell it, or several.
    """
    if params.actor != "lerobot":
        return None
    from pld_ray.policies.lerobot_actor import LeRobotActor

    path, tokenizer = params.actor_path or "", params.actor_tokenizer_path
    sizes = params.horizon, params.flow_steps
    task, played = told_task(params, tasks), params.played
    return LeRobotActor(path, task, *sizes, tokenizer, n_action_steps=played)


def told_task(params: ACRLPDParams, tasks: Sequence[str]) -> str:
    """The one instruction that the policy is told.

    Raises:
        ValueError: the environment has none, or several.
    """
    told = [task for task in tasks if task] if params.actor_task is None else [params.actor_task]
    if len(told) != 1:
        raise ValueError(
            f"algorithm.actor=lerobot is told one task, and the environment names {len(told)}: set "
            "algorithm.actor_task"
        )
    return told[0]


def actor_facts(params: ACRLPDParams) -> Facts | None:
    """What the folder of `actor_path` says, without its weights; None for any other actor.

    Raises:
        FileNotFoundError, ValueError: see `LeRobotActor`.
    """
    if params.actor != "lerobot":
        return None
    from pld_ray.policies.lerobot_actor import read_facts

    return read_facts(params.actor_path or "", params.horizon)


def check_actor(params: ACRLPDParams, tasks: Sequence[str]) -> Facts | None:
    """`actor_facts`, and what else `load_actor` would refuse before it reads weights.

    Raises:
        FileNotFoundError, ValueError: see `load_actor`.
    """
    facts = actor_facts(params)
    if facts is not None:
        from pld_ray.policies.lerobot_actor import read_processors
        from pld_ray.policies.lerobot_network import load_config

        told_task(params, tasks)
        config = load_config(facts.checkpoint, "cpu", "float32")
        read_processors(facts, config, params.actor_tokenizer_path)
    return facts


def make_player(
    observations: Mapping[str, Any],
    actions: Mapping[str, Any],
    params: Mapping[str, Any],
    seed: int,
    tasks: Sequence[str],
) -> ChunkPolicy:
    """What plays in a pool's replica: candidates and their choice in one request.

    Args:
        observations, actions: the environment's spaces, see `describe_spaces`.
        params: of `ACRLPDParams`.
        seed: of the networks, until weights are taken.
        tasks: instructions.
    """
    import torch

    from pld_ray.algorithm.chunked.networks import ChunkedNetworks
    from pld_ray.policies.chunk_policy import ChunkPolicy, ready_to_act

    learnt = ACRLPDParams(**params)
    seeing = load_actor(learnt, tasks)
    spaces, box = make_spaces(observations, actions)
    networks = ChunkedNetworks.of_spaces(spaces, box, learnt, seed, seeing, tasks)
    networks.keep_what_acts()
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a replica without a share sees none
    return ChunkPolicy(ready_to_act(networks, device), shapes_of(spaces), seed=())


def write_actor(actor: LeRobotActor, folder: Path) -> None:
    """The policy as LeRobot loads it, see `lerobot_actor.write_actor`."""
    from pld_ray.policies import lerobot_actor

    lerobot_actor.write_actor(actor, folder)
