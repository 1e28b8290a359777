"""A critic from another run's checkpoint: `pld-ray pretrain` writes one, `train` takes it over."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import FEATURE_PREFIX, IMAGE_PREFIX
from pld_ray.errors import UserError
from pld_ray.files.manifest import check_manifest
from pld_ray.files.state_tree import load_tree
from pld_ray.replay.storage import META_FILE

LEARNER_FILE = "learner"
"""Networks and optimisers of a checkpoint: `learner.json` and `learner.safetensors`."""
RING_FILES = f"replay*/offline/{META_FILE}"
"""Of a checkpoint's replay, one for each learner; they say what its networks saw."""
ATOMS = "critic.atoms"
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

    What the critic saw is checked by the replay beside it; networks alone do not say.

    Args:
        networks: to be filled.
        checkpoint: a folder that `pld-ray pretrain` or `pld-ray train` wrote under checkpoints/.

    Raises:
        PretrainedCriticError: the folder is no checkpoint, or its critic has another shape or range
            of returns, or saw other columns or another frozen encoder's features.
        CheckpointError: it is damaged.
    """
    folder = check_pretrained(checkpoint)
    saved = read_networks(folder)
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
    check_value_range(networks, saved, checkpoint)
    check_seen(networks, folder)
    check_nothing_left(own, saved, checkpoint)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(saved[name]))


def check_value_range(
    networks: ResidualNetworks, saved: Mapping[str, Any], checkpoint: str | os.PathLike[str]
) -> None:
    """Raise PretrainedCriticError if the critic's atoms are those of another `value_range`."""
    atoms = networks.state_dict().get(ATOMS)
    if atoms is None:
        return
    found, own = ([f"{float(a[k]):g}" for k in (0, -1)] for a in (saved[ATOMS], atoms))
    if found != own:
        raise PretrainedCriticError(
            f"pretrained_critic={checkpoint}: its values lie in [{', '.join(found)}], those of "
            f"this run in [{', '.join(own)}]: set algorithm.value_range=[{','.join(found)}], or "
            "pretrain with this run's"
        )


def check_nothing_left(
    own: Mapping[str, Any], saved: Mapping[str, Any], checkpoint: str | os.PathLike[str]
) -> None:
    """Raise PretrainedCriticError if a critic has a part that these networks have no place for.

    An encoder of the actor's has the shape of the critics' own, which no loss may have trained.
    """
    for name in saved:
        known = name in own or name.endswith(".reduction_logits")  # those only weigh the critics
        if name.startswith(TAKEN) and not known:
            raise PretrainedCriticError(
                f"pretrained_critic={checkpoint}: it has {name}, for which this run has no place: "
                "use the network settings (shared_encoder, hidden_dims, encoder) that it was "
                "trained with"
            )


def check_seen(networks: ResidualNetworks, checkpoint: pathlib.Path) -> None:
    """Raise PretrainedCriticError if a critic saw what these networks do not see.

    Two cameras, and two frozen encoders, may give features of one shape that mean different things.
    """
    ring = next(iter(sorted(checkpoint.glob(RING_FILES))), None)
    if ring is None:
        return
    check_manifest(checkpoint, only=[ring.relative_to(checkpoint).as_posix()])
    try:
        schema = json.loads(ring.read_bytes())["schema"]
        images = [c for c in schema["columns"] if c.startswith((IMAGE_PREFIX, FEATURE_PREFIX))]
        found, encoder = [*schema["observation_keys"], *images], schema["features_fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PretrainedCriticError(
            f"pretrained_critic={checkpoint}: {ring} is damaged ({error!r}); take another "
            "checkpoint"
        ) from None
    frozen = networks.frozen_features
    own_encoder = None if frozen is None else frozen.fingerprint
    if encoder != own_encoder:
        raise PretrainedCriticError(
            f"pretrained_critic={checkpoint}: it was trained with {named(encoder)}, this run has "
            f"{named(own_encoder)}: use its algorithm.vision_encoder_name, vision_encoder_weights, "
            "vision_encoder_seed and freeze_vision_encoder"
        )
    own = [*networks.observation_keys, *networks.image_columns.values()]
    if found != own:
        raise PretrainedCriticError(
            f"pretrained_critic={checkpoint}: it saw {', '.join(found)}, this run sees "
            f"{', '.join(own)}: use the environment and the cameras (env.cameras) that it was "
            "trained with"
        )


def named(encoder: str | None) -> str:
    """A vision encoder, in words, by its fingerprint."""
    return "no frozen vision encoder" if encoder is None else f"frozen vision encoder {encoder}"
