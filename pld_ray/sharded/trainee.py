"""The policy that is trained, as a LeRobot policy folder gives it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lerobot.policies import PreTrainedPolicy

from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.dataset import Dataset
from pld_ray.data.training_windows import Needed
from pld_ray.policies.checkpoint import CONFIG, PolicyCheckpoint, open_checkpoint
from pld_ray.policies.lerobot_adapter import SUPPORTED_TYPES
from pld_ray.policies.lerobot_network import distinct_names, load_config, load_trainable_network
from pld_ray.policies.lerobot_processors import load_processors, names_and_shapes
from pld_ray.sharded.activations import has_own_checkpointing


@dataclass(frozen=True)
class Trainee:
    """A policy with what prepares its batches.

    Attributes:
        checkpoint: the folder that it came from.
        policy: on `device`, with the gradients that it asks for.
        preprocess: a batch of `TrainingWindows` -> what `policy.forward` takes.
        needed: what a dataset must have.
        stored: name -> precision of its weights, each tensor once, as a folder holds them.
    """

    checkpoint: PolicyCheckpoint
    policy: PreTrainedPolicy
    preprocess: Any
    needed: Needed
    stored: Mapping[str, torch.dtype]

    @property
    def counts_steps(self) -> bool:
        """Whether the loss is a mean over the actions inside episodes, and not over all windows."""
        masked = getattr(self.policy.config, "do_mask_loss_for_padding", False)  # of diffusion
        return masked or self.checkpoint.policy_type in ("act", "smolvla")


def device_of(config: FinetuneConfig) -> str:
    """Where the network is trained."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(config: FinetuneConfig) -> None:
    """Refuse a GPU that is not there; learners look for their own.

    Raises:
        ConfigError: naming the setting.
    """
    own = config.learners.num_learners == 0 and config.device == "cuda"
    if own and not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: PyTorch finds no GPU here; give --device=cpu, or auto (a run goes on "
            "with `device: auto` in its config.yaml)"
        )


def open_trainee(config: FinetuneConfig) -> PolicyCheckpoint:
    """The checked folder of the policy; no weight is read.

    Raises:
        FileNotFoundError, ValueError: see `open_checkpoint`.
        ConfigError: its type is not supported.
    """
    checkpoint = open_checkpoint(config.policy.path)
    if checkpoint.policy_type not in SUPPORTED_TYPES:
        raise ConfigError(
            f"{checkpoint.directory / CONFIG} is of type {checkpoint.policy_type!r}: "
            f"{', '.join(SUPPORTED_TYPES)} can be fine-tuned"
        )
    return checkpoint


def needed_by(checkpoint: PolicyCheckpoint, rename_map: Mapping[str, str]) -> Needed:
    """What the policy of a folder learns from.

    Raises:
        ValueError: its configuration cannot be read, or the map does not fit it.
    """
    config: Any = load_config(checkpoint, "cpu", None)
    names, shapes = names_and_shapes(checkpoint, config, rename_map)
    seen = config.observation_delta_indices
    return Needed(
        shapes=shapes,
        names=names,
        action_dim=int(config.output_features["action"].shape[0]),
        observation_steps=None if seen is None else tuple(seen),
        action_steps=tuple(config.action_delta_indices),
    )


def check_sizes(checkpoint: PolicyCheckpoint, needed: Needed, dataset: Dataset) -> None:
    """Refuse images that a diffusion policy could not be given; the other types take any size.

    Args:
        checkpoint: of the policy.
        needed: what it reads.
        dataset: one of those that it learns from, which have images of one size.

    Raises:
        ConfigError: naming both sizes.
    """
    config: Any = load_config(checkpoint, "cpu", None)
    sizes = {camera: dataset.shape(camera)[:2] for camera in needed.cameras}
    if config.type != "diffusion" or not sizes:
        return
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            f"{dataset.root} has images of several sizes, {sizes}, and a diffusion policy takes "
            "cameras of one size: record all at one, or fine-tune a policy of another type"
        )
    if config.resize_shape is not None:
        return
    found, declared = next(iter(sizes.values())), needed.shapes[needed.cameras[0]][1:]
    file, crop = checkpoint.directory / CONFIG, config.crop_shape
    if crop is not None and any(c > side for c, side in zip(crop, found, strict=True)):
        raise ConfigError(
            f"{dataset.root} has images of {found} pixels, smaller than crop_shape={tuple(crop)} "
            f"of {file}: record larger ones, or fine-tune a policy with a smaller crop"
        )
    if crop is None and feature_map(found) != feature_map(declared):
        raise ConfigError(
            f"{dataset.root} has images of {found} pixels, and {file}, which neither crops nor "
            f"resizes (crop_shape, resize_shape), takes {declared}: record images of that size, or "
            "fine-tune a policy that crops"
        )


def feature_map(size: Sequence[int]) -> list[int]:
    """Height and width of what a ResNet makes of an image of this size."""
    return [math.ceil(side / 32) for side in size]


def load_trainee(config: FinetuneConfig) -> Trainee:
    """The policy in training mode, with its processors.

    Raises:
        FileNotFoundError, ValueError: see `load_trainable_network` and `load_processors`.
        ConfigError: `freeze` names no parameter, or leaves none.
    """
    checkpoint, settings = open_trainee(config), config.policy
    device = device_of(config)
    computes_in = config.algorithm.precision
    dtype = settings.dtype if computes_in == "float32" else "float32"  # of what is learnt
    lerobot_config: Any = load_config(checkpoint, device, dtype)
    if config.algorithm.activation_checkpointing and has_own_checkpointing(lerobot_config):
        lerobot_config.gradient_checkpointing = True
    preprocess, _ = load_processors(checkpoint, lerobot_config, device, settings.tokenizer_path)
    policy = load_trainable_network(checkpoint, lerobot_config, dtype, settings.tokenizer_path)
    freeze(policy, config.algorithm.freeze)
    weights = policy.state_dict()
    return Trainee(
        checkpoint,
        policy.train(),
        preprocess,
        needed_by(checkpoint, settings.rename_map),
        {name: weights[name].dtype for name in distinct_names(weights)},
    )


def rounding_warning(policy: torch.nn.Module) -> str | None:
    """What to say of a policy whose trained weights are bfloat16 themselves."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    rounded = sum(p.numel() for p in trained if p.dtype == torch.bfloat16)
    if not rounded:
        return None
    return (
        f"{rounded:,} of {sum(p.numel() for p in trained):,} trained weights are bfloat16, in "
        "which a step of less than 1/512 of a weight is lost: --algorithm.precision=bfloat16 "
        "computes in bfloat16 and keeps weights, and small steps, in float32"
    )


def freeze(policy: torch.nn.Module, prefixes: list[str]) -> None:
    """Ask no gradient for parameters whose names begin with one of these.

    Raises:
        ConfigError: one begins no name, or nothing is left to train.
    """
    parameters = dict(policy.named_parameters())
    check_prefixes(parameters, prefixes)
    for name, parameter in parameters.items():
        if name.startswith(tuple(prefixes)):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        raise ConfigError("algorithm.freeze leaves nothing to train: take a prefix out")


def check_prefixes(names: Collection[str], prefixes: Sequence[str]) -> None:
    """Refuse a prefix with which no parameter's name begins.

    Raises:
        ConfigError: naming it, and how they begin.
    """
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            tops = sorted({".".join(name.split(".")[:2]) for name in names})
            raise ConfigError(
                f"algorithm.freeze: no parameter's name begins with {prefix!r}; they begin with "
                f"{', '.join(tops[:12])}"
            )
