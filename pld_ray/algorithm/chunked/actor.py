"""Actors over action chunks: a flow, a one-step policy distilled from it, a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from pld_ray.algorithm.chunked import losses
from pld_ray.networks.precision import MixedPrecision, linear


class ChunkActor(Protocol):
    """What the update, the runner and an export need of an actor.

    An observation is whatever `observe` makes of what is seen. Randomness is handed in, so that
    equal noise gives equal chunks whoever shares the batch.

    Attributes:
        kind: what its loss is called in the metrics.
        noise_shape: of the noise that makes one chunk.
    """

    kind: str
    noise_shape: tuple[int, int]

    def observe(
        self, vector: Tensor, columns: Mapping[str, Tensor], task: Tensor | None = None
    ) -> Any:
        """The observation of B rows, of the parts of `Seen`."""

    def features(self, observation: Any) -> Tensor | None:
        """What the critics see beside what is seen, [B, F], without gradient; None for nothing."""

    def sample(self, observation: Any, noise: Tensor) -> Tensor:
        """Chunks [K, B, H, A] of the same B observations from noise [K, B, *noise_shape]."""

    def bc_loss(
        self,
        observation: Any,
        chunks: Tensor,
        weights: Tensor,
        noise: Tensor,
        time: Tensor,
        total: Tensor | None = None,
    ) -> Tensor:
        """L_BC of chunks [B, H, A] under weights [B, H], at noise [B, *noise_shape], times [B]."""


class SeeingActor(ChunkActor, Protocol):
    """A policy that was made elsewhere: it reads the environment's own columns, and a task.

    Attributes:
        feature_dim: F, of its `features`.
        cameras: columns of images that it reads.
        action_offset, action_scale: [A] each: its actions are (a - offset) / scale.
    """

    feature_dim: int
    cameras: tuple[str, ...]
    action_offset: Tensor
    action_scale: Tensor


class EncodingActor(nn.Module):
    """An actor over what an encoder makes of the observation, [B, Z].

    The encoder is its own: its losses train it, and it is averaged with the rest.

    Args:
        encoder: an `ObservationEncoder`; None takes the vector as it is.
    """

    def __init__(self, encoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder

    def observe(
        self, vector: Tensor, columns: Mapping[str, Tensor], task: Tensor | None = None
    ) -> Tensor:
        """[B, Z], see `ChunkActor.observe`."""
        return vector if self.encoder is None else self.encoder(vector, columns, task)

    def features(self, observation: Tensor) -> None:
        """Nothing: the critics have an encoder of their own."""


def gelu(hidden: Tensor) -> Tensor:
    """GELU of what a layer put out, in its place: a third quicker where all of it then stays in a
    CPU's cache."""
    return torch.ops.aten.gelu_(hidden)


class ChunkNetwork(MixedPrecision):
    """MLP from an observation and a chunk to a chunk.

    The observation's part of the first layer is computed once for all chunks.

    Args:
        observation_dim: Z.
        horizon, action_dim: H and A.
        hidden_dims: widths of the hidden layers (GELU).
        timed: a time is part of the input.
        dtype: of the matrix products over chunks; parameters, chunks and times stay float32.
    """

    def __init__(
        self,
        observation_dim: int,
        horizon: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        timed: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        size, first = horizon * action_dim, hidden_dims[0]
        self.context = nn.Linear(observation_dim, first)
        self.entry = nn.Linear(size, first, bias=False)
        self.time = nn.Linear(1, first, bias=False) if timed else None
        # numbered as in a Sequential with activations between: files that exist are read
        layers = [nn.Linear(*widths) for widths in pairwise([*hidden_dims, size])]
        self.trunk = nn.ModuleDict({str(2 * k + 1): layer for k, layer in enumerate(layers)})

    def forward(
        self, context: Tensor, chunks: Tensor, time: Tensor | float | None = None
    ) -> Tensor:
        """A chunk [..., B, H, A].

        Args:
            context: `self.context(observation)`, [B, W].
            chunks: [..., B, H, A].
            time: [B] or one for all, where it is part of the input.
        """
        if self.time is not None:
            weight = self.time.weight[:, 0]
            assert time is not None, "the flow's network knows the time"
            context = context + (
                time[:, None] * weight if isinstance(time, Tensor) else time * weight
            )
        hidden = linear(self.entry, chunks.flatten(-2).to(self.dtype)).add_(context.to(self.dtype))
        for layer in self.trunk.values():
            hidden = linear(cast(nn.Linear, layer), gelu(hidden))
        return hidden.float().view_as(chunks)


class FlowActor(EncodingActor):
    """A flow from noise to chunks in [-1, 1]: its velocity field is the network.

    Args:
        observation_dim, horizon, action_dim, hidden_dims: of `ChunkNetwork`.
        flow_steps: Euler steps.
        encoder: of `EncodingActor`.
        dtype: of `ChunkNetwork`.
    """

    kind = "flow"

    def __init__(
        self,
        observation_dim: int,
        horizon: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        flow_steps: int,
        encoder: nn.Module | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(encoder)
        self.flow_steps = flow_steps
        self.noise_shape = horizon, action_dim
        self.velocity = ChunkNetwork(
            observation_dim, horizon, action_dim, hidden_dims, timed=True, dtype=dtype
        )

    def sample(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Chunks [K, B, H, A] in [-1, 1]."""
        context = self.velocity.context(observation)
        return losses.integrate(
            lambda x, time: self.velocity(context, x, time), noise, self.flow_steps
        )

    def bc_loss(
        self,
        observation: Tensor,
        chunks: Tensor,
        weights: Tensor,
        noise: Tensor,
        time: Tensor,
        total: Tensor | None = None,
    ) -> Tensor:
        """L_BC, see `losses.flow_loss`."""
        x, target = losses.flow_path(chunks, noise, time)
        velocity = self.velocity(self.velocity.context(observation), x, time)
        return losses.flow_loss(velocity, target, weights, total)


class DistilledActor(EncodingActor):
    """A one-step policy mu(s, z) beside the flow that it follows.

    Args:
        flow: trained by cloning alone, its encoder too, which both read.
        one_step: from noise to a chunk in one pass.
    """

    kind = "flow"

    def __init__(self, flow: FlowActor, one_step: ChunkNetwork) -> None:
        super().__init__(None)
        self.flow, self.one_step = flow, one_step
        self.noise_shape = flow.noise_shape

    def observe(
        self, vector: Tensor, columns: Mapping[str, Tensor], task: Tensor | None = None
    ) -> Tensor:
        """[B, Z] of the flow's encoder."""
        return self.flow.observe(vector, columns, task)

    def propose(self, observation: Tensor, noise: Tensor) -> Tensor:
        """mu(s, z) [..., B, H, A], not clipped."""
        return self.one_step(self.one_step.context(observation), noise)

    def sample(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Chunks [K, B, H, A] in [-1, 1]."""
        return self.propose(observation, noise).clamp(-1.0, 1.0)

    def bc_loss(
        self,
        observation: Tensor,
        chunks: Tensor,
        weights: Tensor,
        noise: Tensor,
        time: Tensor,
        total: Tensor | None = None,
    ) -> Tensor:
        """L_BC of the flow."""
        return self.flow.bc_loss(observation, chunks, weights, noise, time, total)


class GaussianActor(EncodingActor):
    """A Gaussian over u, one mean and deviation for each value of the chunk tanh(u) (SAC).

    Args:
        observation_dim, horizon, action_dim, hidden_dims: of `ChunkNetwork`.
        encoder: of `EncodingActor`.
    """

    kind = "gaussian"
    LOG_STD = -5.0, 2.0
    EDGE = 1e-5  # from 1, where the log-probability of data ends

    def __init__(
        self,
        observation_dim: int,
        horizon: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(encoder)
        self.noise_shape = horizon, action_dim
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([observation_dim, *hidden_dims]):
            layers += [nn.Linear(inputs, outputs), nn.GELU()]
        self.trunk = nn.Sequential(*layers, nn.Linear(hidden_dims[-1], 2 * horizon * action_dim))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of u, [B, H, A] each."""
        mean, log_std = self.trunk(observation).unflatten(-1, (2, *self.noise_shape)).unbind(-3)
        return mean, log_std.clamp(*self.LOG_STD)

    def sample(self, observation: Tensor, noise: Tensor) -> Tensor:
        """Chunks [K, B, H, A] in [-1, 1]."""
        return self.draw(observation, noise)[0]

    def draw(
        self, observation: Tensor, noise: Tensor, moved: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Chunks [..., B, H, A], and the log-probability of each whole chunk, [..., B].

        Args:
            observation: [B, Z].
            noise: [..., B, H, A].
            moved: which components count, [A]; what is not executed has no entropy to keep.
        """
        mean, log_std = self(observation)
        u = mean + log_std.exp() * noise
        log_prob = losses.tanh_log_prob(u, mean, log_std) * moved
        return torch.tanh(u), log_prob.sum((-1, -2))

    def bc_loss(
        self,
        observation: Tensor,
        chunks: Tensor,
        weights: Tensor,
        noise: Tensor,
        time: Tensor,
        total: Tensor | None = None,
    ) -> Tensor:
        """L_BC: the masked mean over steps of mean_d -log pi(a); noise and time are not used."""
        u = torch.atanh(chunks.clamp(self.EDGE - 1.0, 1.0 - self.EDGE))
        log_prob = losses.tanh_log_prob(u, *self(observation))
        return losses.masked_mean(-log_prob.mean(-1), weights, total)


def log_of(value: float) -> nn.Parameter:
    """A parameter [1] that holds the logarithm of a positive number."""
    return nn.Parameter(torch.tensor([math.log(value)]))
