"""LeRobot's π0, π0.5 and SmolVLA as actors that Q-chunking goes on training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lerobot.policies.common.flow_matching import euler_integrate
from torch import Tensor, nn
from transformers import DynamicCache

from pld_ray.algorithm.chunked import losses
from pld_ray.files.tensors import save_tensors
from pld_ray.policies.checkpoint import (
    CONFIG,
    POSTPROCESSOR,
    WEIGHTS,
    PolicyCheckpoint,
    open_checkpoint,
)
from pld_ray.policies.lerobot_network import (
    distinct_names,
    load_config,
    load_trainable_network,
    prefix_cache_bytes,
)
from pld_ray.policies.lerobot_processors import load_processors, names_and_shapes
from pld_ray.policies.lerobot_sampling import FlowSampler, masked_mean

FLOW_TYPES = ("pi0", "pi05", "smolvla")
"""LeRobot policies that flow from noise to a chunk, after a prefix that no action changes."""
RELATIVE = "absolute_actions_processor"
"""LeRobot's step that makes actions relative to the state absolute."""


class Parts(NamedTuple):
    """What a policy makes of B observations before it thinks of an action."""

    state: Tensor | None
    """[B, max_state_dim], where the actions are given it."""
    hidden: Tensor
    """Last hidden state of the prefix, [B, P, F]."""
    valid: Tensor
    """Which of its P positions count, [B, P] bool."""
    cache: DynamicCache
    """Its keys and values."""


class Prefix:
    """One prefix for all who need one: the cloning loss, every candidate, the critics' features.

    It is read when first asked for; again if a parameter has changed since, or if a gradient is
    wanted and it was read without one. Images that are augmented anew are another observation, and
    have a prefix of their own.

    Args:
        read: computes it.
        parameters: on which it depends.

    Attributes:
        reads: how often it was computed.
    """

    def __init__(self, read: Callable[[], Parts], parameters: tuple[nn.Parameter, ...]) -> None:
        self._read, self._parameters = read, parameters
        self._parts: Parts | None = None
        self._versions: tuple[int, ...] = ()
        self._with_graph = False
        self.reads = 0

    def __call__(self) -> Parts:
        versions = tuple(parameter._version for parameter in self._parameters)
        lacks_graph = torch.is_grad_enabled() and not self._with_graph
        if self._parts is None or versions != self._versions or lacks_graph:
            self._parts, self._versions = self._read(), versions
            self._with_graph = torch.is_grad_enabled()
            self.reads += 1
        return self._parts


class Facts(NamedTuple):
    """What a policy's folder says without its weights.

    Attributes:
        checkpoint: the folder.
        action_dim: A.
        names: column of the environment -> the policy's name for it.
        input_features: column -> the shape that the policy declares, images (3, h, w).
        cache_bytes: of one observation's keys and values, at the least.
    """

    checkpoint: PolicyCheckpoint
    action_dim: int
    names: dict[str, str]
    input_features: dict[str, tuple[int, ...]]
    cache_bytes: int

    @property
    def cameras(self) -> tuple[str, ...]:
        """Columns of images."""
        return tuple(name for name, shape in self.input_features.items() if len(shape) == 3)


def read_facts(path: str | Path, horizon: int) -> Facts:
    """The facts of a policy that can be trained with chunks of H actions.

    Raises:
        FileNotFoundError, ValueError: see `LeRobotActor`.
    """
    checkpoint = open_checkpoint(path)
    file = checkpoint.directory / CONFIG
    if checkpoint.policy_type not in FLOW_TYPES:
        raise ValueError(
            f"{file} is of type {checkpoint.policy_type!r}: algorithm.actor_path takes a policy of "
            f"type {', '.join(FLOW_TYPES)}"
        )
    config: Any = load_config(checkpoint, "cpu", "float32")
    if getattr(config, "adapt_to_pi_aloha", False):
        raise ValueError(
            f"{file} sets adapt_to_pi_aloha, which bends joints in a way that no loss here "
            "follows: train on actions that are converted beforehand, and set it to false"
        )
    if any(
        step["registry_name"] == RELATIVE and step.get("config", {}).get("enabled")
        for step in checkpoint.processor_steps(POSTPROCESSOR)
    ):
        raise ValueError(
            f"{checkpoint.directory / POSTPROCESSOR} adds the state to actions (the policy was "
            "made with use_relative_actions=true), which no loss here follows: give a policy of "
            "absolute actions"
        )
    if config.chunk_size < horizon:
        raise ValueError(
            f"{file} has chunk_size={config.chunk_size}: algorithm.horizon={horizon} is more, "
            f"lower it to {config.chunk_size}"
        )
    names, shapes = names_and_shapes(checkpoint, config)
    action_dim = int(config.output_features["action"].shape[0])
    cameras = sum(len(shape) == 3 for shape in shapes.values())
    cache = prefix_cache_bytes(checkpoint, cameras, config.tokenizer_max_length)
    return Facts(checkpoint, action_dim, names, shapes, cache)


def read_processors(
    facts: Facts, config: Any, tokenizer_path: str | Path | None
) -> tuple[Any, tuple[Tensor, Tensor]]:
    """The preprocessor, and offset and scale [A] of actions as the postprocessor undoes them.

    Args:
        facts: of the policy's folder.
        config: its configuration.
        tokenizer_path: see `LeRobotActor`.

    Raises:
        FileNotFoundError, ValueError: see `LeRobotActor`.
    """
    checkpoint, file = facts.checkpoint, facts.checkpoint.directory / CONFIG
    preprocess, postprocess = load_processors(checkpoint, config, config.device, tokenizer_path)
    zero, one, two = (
        postprocess(torch.full((1, 1, facts.action_dim), value)).flatten().float().cpu()
        for value in (0.0, 1.0, 2.0)
    )
    if not torch.allclose(two - one, one - zero, rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"the postprocessor of {file} does more than scale and shift actions: such a "
            "policy cannot be trained here"
        )
    modes = config.normalization_mapping
    normalizes = str(getattr(modes.get("ACTION"), "value", "IDENTITY")) != "IDENTITY"
    if normalizes and not zero.any() and bool((one == 1).all()):
        raise ValueError(
            f"{file} normalises actions and has no statistics of them beside it: make the "
            "policy with its dataset's statistics (pld-ray finetune keeps them)"
        )
    return preprocess, (zero, one - zero)


def write_actor(actor: LeRobotActor, folder: Path) -> None:
    """The policy as LeRobot loads it: the folder that it came from, with these weights.

    Args:
        actor: what was trained.
        folder: is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = actor.checkpoint
    (folder / CONFIG).write_text(json.dumps({**checkpoint.config, **actor.changes}, indent=4))
    for file in checkpoint.processors:
        shutil.copyfile(file, folder / file.name)
    state = actor.policy.state_dict()
    kept = {name: state[name].detach().clone().contiguous() for name in distinct_names(state)}
    save_tensors(kept, folder / WEIGHTS)


class LeRobotActor(nn.Module):
    """A `SeeingActor` around a LeRobot policy, in evaluation mode: its losses draw nothing.

    What the policy's own configuration freezes stays frozen. Chunks have H actions, the first of
    those that the policy was made for. Inside, actions are in its own units.

    Args:
        path: the policy's folder, see `LeRobotBasePolicy`.
        task: the instruction.
        horizon: H.
        flow_steps: Euler steps.
        tokenizer_path: local folder of its tokeniser, and of SmolVLA's language model.
        device: where it is built.
        n_action_steps: actions of a chunk that are played; None is H, whatever the folder says.

    Raises:
        FileNotFoundError, ValueError: as `LeRobotBasePolicy`; or a policy that is no flow after a
            prefix, has chunks shorter than H, no statistics of its actions, or actions that depend
            on more than themselves.
    """

    kind = "flow"

    def __init__(
        self,
        path: str | Path,
        task: str,
        horizon: int,
        flow_steps: int,
        tokenizer_path: str | Path | None = None,
        device: str = "cpu",
        n_action_steps: int | None = None,
    ) -> None:
        super().__init__()
        facts = read_facts(path, horizon)
        checkpoint = facts.checkpoint
        config: Any = load_config(checkpoint, device, "float32")
        self._preprocess, units = read_processors(facts, config, tokenizer_path)
        self.action_offset, self.action_scale = units
        self.changes: dict[str, Any] = {
            "chunk_size": horizon,
            "n_action_steps": n_action_steps or horizon,
            "num_steps" if config.type == "smolvla" else "num_inference_steps": flow_steps,
        }
        """Of its configuration, which an exported folder has too."""
        if hasattr(config, "dtype"):  # it learns in float32, and acts in what its folder says
            self.changes["dtype"] = "float32"
        for name, value in self.changes.items():
            setattr(config, name, value)
        self.policy = load_trainable_network(checkpoint, config, "float32", tokenizer_path).eval()
        self._flow = FlowSampler(self.policy)
        self.task, self.flow_steps = task, flow_steps
        self.feature_dim = self._flow.feature_dim
        self.noise_shape = horizon, int(config.max_action_dim)
        self.action_dim, self.names, self.cameras = facts.action_dim, facts.names, facts.cameras
        self.checkpoint = checkpoint

    def observe(
        self, vector: Tensor, columns: Mapping[str, Tensor], task: Tensor | None = None
    ) -> Prefix:
        """Of the columns alone, see `ChunkActor.observe`."""
        columns = {name: columns[name] for name in self.names}
        return Prefix(lambda: self._parts(columns), tuple(self.parameters()))

    def features(self, observation: Prefix) -> Tensor:
        """The mean of the prefix, [B, F], without gradient."""
        parts = observation()
        return masked_mean(parts.hidden, parts.valid).detach()

    def sample(self, observation: Prefix, noise: Tensor) -> Tensor:
        """Chunks [K, B, H, A] in the policy's units, all from one prefix."""
        count, parts = len(noise), observation()
        state = None if parts.state is None else repeated(parts.state, count)
        valid, cache = repeated(parts.valid, count), repeated_cache(parts.cache, count)
        chunks = euler_integrate(
            lambda noisy, time: self._flow.velocity(noisy, time, state, valid, cache),
            noise.flatten(0, 1),
            self.flow_steps,
        )
        return chunks[..., : self.action_dim].unflatten(0, noise.shape[:2])

    def bc_loss(
        self,
        observation: Prefix,
        chunks: Tensor,
        weights: Tensor,
        noise: Tensor,
        time: Tensor,
        total: Tensor | None = None,
    ) -> Tensor:
        """L_BC, see `losses.flow_loss`: LeRobot's own loss, under these weights."""
        parts = observation()
        padded = nn.functional.pad(chunks, (0, self.noise_shape[1] - self.action_dim))
        x, target = losses.flow_path(padded, noise, time)
        cache = repeated_cache(parts.cache, 1)
        velocity = self._flow.velocity(x, time, parts.state, parts.valid, cache)
        used = slice(self.action_dim)
        return losses.flow_loss(velocity[..., used], target[..., used], weights, total)

    def _parts(self, columns: Mapping[str, Tensor]) -> Parts:
        rows = len(next(iter(columns.values())))
        batch: dict[str, Any] = {self.names[name]: given(c) for name, c in columns.items()}
        prepared = self._preprocess({**batch, "task": [self.task] * rows})
        device = next(self.parameters()).device
        batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in prepared.items()}
        state = self._flow.state_of(batch)
        hidden, valid, cache = self._flow.read_prefix(batch, state)
        return Parts(state, hidden, valid, cache)


def given(column: Tensor) -> Tensor:
    """A column as a policy is trained on it: images [B, 3, h, w] in [0, 1], vectors as they are."""
    if column.dtype == torch.uint8:
        return column.movedim(-1, -3).float() / 255
    return column.float()


def repeated(rows: Tensor, count: int) -> Tensor:
    """Rows [B, ...], all of them `count` times, [count * B, ...]; once is themselves."""
    return rows.expand(count, *rows.shape).flatten(0, 1)


def repeated_cache(cache: DynamicCache, count: int) -> DynamicCache:
    """Keys and values for `count` times as many rows; a cache of its own, which may be written."""
    return DynamicCache(tuple((repeated(k, count), repeated(v, count)) for k, v, *_ in cache))
