"""A policy that `pld-ray export` wrote: Q-chunking's, in the files of a LeRobot policy folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.files.tensors import save_tensors
from pld_ray.policies.checkpoint import (
    CONFIG,
    EXPORTED,
    POSTPROCESSOR,
    PREPROCESSOR,
    WEIGHTS,
    PolicyCheckpoint,
)
from pld_ray.policies.chunk_policy import ChunkPolicy


def write_policy(
    folder: Path,
    state: Mapping[str, Tensor],
    params: ACRLPDParams,
    shapes: Mapping[str, tuple[int, ...]],
    action_dim: int,
) -> None:
    """What acts, with its statistics and the critics that choose among its candidates.

    Args:
        folder: is made.
        state: `ChunkedNetworks.acting_state`.
        params: of the run.
        shapes: observation column -> shape of a row, of the columns that are read, in order.
        action_dim: A.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "type": EXPORTED,
        "chunk_size": params.horizon,
        "n_action_steps": params.played,
        "input_features": {key: {"shape": list(shape)} for key, shape in shapes.items()},
        "output_features": {"action": {"shape": [action_dim]}},
        "params": asdict(params),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1))
    for name in (PREPROCESSOR, POSTPROCESSOR):  # statistics are among the weights
        (folder / name).write_text(json.dumps({"name": Path(name).stem, "steps": []}))
    save_tensors({key: value.contiguous() for key, value in state.items()}, folder / WEIGHTS)


def load_policy(checkpoint: PolicyCheckpoint, **options: Any) -> ChunkPolicy:
    """The policy of a folder that `write_policy` wrote.

    Args:
        checkpoint: see `open_checkpoint`.
        options: of `load_base_policy`; only `n_action_steps` means something here.

    Raises:
        ValueError: another option, more actions than a chunk has, or a file that is damaged.
    """
    n_action_steps = options.pop("n_action_steps", None)
    if unknown := [name for name, value in options.items() if value]:
        raise ValueError(
            f"policy.{unknown[0]} is of no use with {checkpoint.directory}, which pld-ray export "
            "wrote: remove it"
        )
    config = checkpoint.config
    try:
        params = ACRLPDParams(**config["params"])
        shapes = {key: tuple(f["shape"]) for key, f in config["input_features"].items()}
        action_dim = int(config["output_features"]["action"]["shape"][0])
        params.n_action_steps = n_action_steps or params.n_action_steps
        params.validate()
        width = sum(torch.Size(shape).numel() for shape in shapes.values())
        networks = ChunkedNetworks(width, action_dim, params, observation_keys=list(shapes))
        networks.keep_what_acts()
        networks.load_state_dict(load_file(checkpoint.weights[0]))
    except (KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{checkpoint.directory} is no folder of pld-ray export ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): export the run again"
        ) from None
    policy = ChunkPolicy(networks.requires_grad_(False).eval(), shapes)
    policy.fingerprint = checkpoint.fingerprint(n_action_steps=n_action_steps)
    return policy
