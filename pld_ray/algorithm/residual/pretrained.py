"""A critic from another run's checkpoint: `pld-ray pretrain` writes one, `train` takes it over."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.errors import UserError
from pld_ray.files.manifest import check_manifest
from pld_ray.files.state_tree import load_tree

LEARNER_FILE = "learner"
"""Networks and optimisers of a checkpoint: `learner.json` and `learner.safetensors`."""
TAKEN = (
    "critic.",
    "target_critic.",
    "critic_encoder.",
    "target_encoder.",
    "encoder.",
    "normalizer.",
)
"""What a critic is: its weights, what it sees, and the statistics it was trained under."""


class PretrainedCriticError(UserError, ValueError):
    """A pretrained critic is missing or does not fit this run; the message says which and why."""


def check_pretrained(checkpoint: str | os.PathLike[str]) -> pathlib.Path:
    """The folder, if it is a checkpoint.

    Raises:
        PretrainedCriticError: it is none.
    """
    path = pathlib.Path(checkpoint)
    if not (path / "learner.json").is_file():
        raise PretrainedCriticError(
            f"pretrained_critic={checkpoint}: learner.json is missing; give a folder that `pld-ray "
            "pretrain` wrote under checkpoints/"
        )
    return path


def read_networks(checkpoint: pathlib.Path) -> dict[str, Any]:
    """The state of a checkpoint's networks, name -> array, once its files have been checked.

    Raises:
        CheckpointError, StateFileError: a file is missing or damaged.
    """
    check_manifest(checkpoint, only=[f"{LEARNER_FILE}.json", f"{LEARNER_FILE}.safetensors"])
    state = load_tree(checkpoint / LEARNER_FILE)
    return state["rl_module"]["default_policy"]  # RLlib's names of the one module


def load_critic(networks: ResidualNetworks, checkpoint: str | os.PathLike[str]) -> None:
    """Take critic, targets, encoder and observation statistics over from a checkpoint.

    Args:
        networks: to be filled.
        checkpoint: a folder that `pld-ray pretrain` or `pld-ray train` wrote under checkpoints/.

    Raises:
        PretrainedCriticError: the folder is no checkpoint, or its critic has another shape.
        CheckpointError: it is damaged.
    """
    saved = read_networks(check_pretrained(checkpoint))
    own = {k: v for k, v in networks.state_dict().items() if k.startswith(TAKEN)}
    for name, tensor in own.items():
        found = np.shape(saved[name]) if name in saved else None
        if found != tuple(tensor.shape):
            what = "is missing" if found is None else f"has shape {list(found)}"
            raise PretrainedCriticError(
                f"pretrained_critic={checkpoint}: {name} {what}, this run needs "
                f"{list(tensor.shape)}: use the environment and the network settings (hidden_dims, "
                "num_critics, critic_atoms, encoder) that it was trained with"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(saved[name]))
