"""A policy that `pld-ray export` wrote: Q-chunking's, in the files of a LeRobot policy folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.files.tensors import save_tensors
from pld_ray.networks.encoders.weights import with_weights_in, with_weights_of
from pld_ray.policies.checkpoint import (
    CONFIG,
    EXPORTED,
    POSTPROCESSOR,
    PREPROCESSOR,
    WEIGHTS,
    PolicyCheckpoint,
)
from pld_ray.policies.chunk_policy import ChunkPolicy, ready_to_act
from pld_ray.policies.devices import check_device
from pld_ray.policies.lerobot_names import NamedFeatures
from pld_ray.policies.protocol import is_image


def write_policy(folder: Path, policy: ChunkPolicy, tasks: Sequence[str] = ()) -> None:
    """What acts, with its statistics and the critics that choose among its candidates.

    Args:
        folder: is made.
        policy: of the run's networks.
        tasks: instructions, for a task embedding.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "chunk_size": policy.chunk_size,
        "n_action_steps": policy.n_action_steps,
        "params": with_weights_in(folder, asdict(policy.networks.params)),
        "tasks": list(tasks),
    }
    write_description(folder, EXPORTED, policy.input_features, policy.action_dim, own)
    state = policy.networks.acting_state()
    save_tensors({key: value.contiguous() for key, value in state.items()}, folder / WEIGHTS)


def write_description(
    folder: Path,
    policy_type: str,
    shapes: Mapping[str, tuple[int, ...]],
    action_dim: int,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Configuration and processors of a policy of our own, as LeRobot reads them.

    The processors name, batch and move; statistics are among the weights.

    Args:
        folder: of the policy.
        policy_type: as registered with LeRobot.
        shapes: observation -> shape of a row, images channel-first.
        action_dim: A.
        own: what else the configuration has.

    Returns:
        The content of `config.json`.
    """
    config = {
        "type": policy_type,
        "n_obs_steps": 1,
        "input_features": {key: feature(key, shape) for key, shape in shapes.items()},
        "output_features": {"action": {"type": "ACTION", "shape": [action_dim]}},
        "device": "cpu",
        **own,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1))
    device = {"registry_name": "device_processor", "config": {"device": "cpu"}}
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        device,
    ]
    for name, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, [device])):
        (folder / name).write_text(json.dumps({"name": Path(name).stem, "steps": steps}, indent=1))
    return config


def feature(key: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """An observation as LeRobot declares it."""
    vector = "ENV" if key == "observation.environment_state" else "STATE"
    return {"type": "VISUAL" if is_image(key, shape) else vector, "shape": list(shape)}


def load_policy(
    checkpoint: PolicyCheckpoint,
    device: str = "cpu",
    n_action_steps: int | None = None,
    **options: Any,
) -> ChunkPolicy:
    """The policy of a folder that `write_policy` wrote.

    Args:
        checkpoint: see `open_checkpoint`.
        device: torch device of the networks; answers are numpy arrays on the host.
        n_action_steps: actions of a chunk that are played; None is the folder's own number.
        options: the rest of `load_base_policy`'s, which mean nothing here.

    Raises:
        ValueError: another option, no such device, more actions than a chunk has, or a file that
            is damaged.
    """
    check_device(device)
    if options.get("rtc"):
        raise ValueError(
            f"policy.rtc=true: {checkpoint.directory} plays the best of whole chunks, and critics "
            "do not choose among continuations: prefetch alone works with it (policy.prefetch=true)"
        )
    if unknown := [name for name, value in options.items() if value]:
        raise ValueError(
            f"policy.{unknown[0]} is of no use with {checkpoint.directory}, which pld-ray export "
            "wrote: remove it"
        )
    config = checkpoint.config
    try:
        params = ACRLPDParams(**with_weights_of(checkpoint.directory, config["params"]))
        declared = {key: tuple(f["shape"]) for key, f in config["input_features"].items()}
        images = {
            key: (*shape[1:], shape[0]) for key, shape in declared.items() if is_image(key, shape)
        }
        vectors = {key: shape for key, shape in declared.items() if key not in images}
        action_dim = int(config["output_features"]["action"]["shape"][0])
        params.n_action_steps = n_action_steps or params.n_action_steps
        params.validate()
        networks = ChunkedNetworks(
            sum(torch.Size(shape).numel() for shape in vectors.values()),
            action_dim,
            params,
            observation_keys=list(vectors),
            images=images,
            tasks=tuple(config.get("tasks", ())),
        )
        networks.keep_what_acts()
        networks.load_state_dict(load_file(checkpoint.weights[0]))
    except (KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{checkpoint.directory} is no folder of pld-ray export ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): export the run again"
        ) from None
    policy = ChunkPolicy(ready_to_act(networks, device), {**vectors, **images})
    # no rename_map is taken, so none is suggested
    policy.input_features = NamedFeatures(policy.input_features, {})
    encoder = networks.frozen_features and networks.frozen_features.fingerprint
    policy.fingerprint = checkpoint.fingerprint(n_action_steps=n_action_steps, encoder=encoder)
    return policy
