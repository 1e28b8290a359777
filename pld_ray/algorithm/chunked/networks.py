"""All networks of one Q-chunking agent."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.actor import (
    ChunkNetwork,
    DistilledActor,
    FlowActor,
    GaussianActor,
    SeeingActor,
    log_of,
)
from pld_ray.algorithm.stored_columns import vector_keys
from pld_ray.columns import VECTOR_KEYS
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.encoders import FrozenFeatures
from pld_ray.networks.normalizer import ObservationNormalizer
from pld_ray.networks.precision import product_dtype
from pld_ray.replay.schema import ColumnSpec

Batch = Mapping[str, Tensor]


class ChunkedNetworks(nn.Module):
    """Actor, its moving average, chunk critics, their targets, observation statistics.

    Inside, actions are in [-1, 1] of the bounds of the action space, and after `fit_actions` of the
    range that the data have: a component that nobody ever moved stays where it was. A flow that had
    to learn that it is zero would be a little wrong at every step, and an arm would slowly turn.

    Args:
        observation_dim: D, of the concatenated observation vector.
        action_dim: A.
        params: `ACRLPDParams`.
        low, high: bounds of the action space, scalars or [A].
        observation_keys: columns of an observation that make the vector, in order.
        seeing: the actor, where it reads the columns itself; its actions are in its own units, so
            that there is no range to fit.
        widths: of the columns that make the vector; one alone is as wide as the vector.

    Attributes:
        actor: theta, which is trained.
        ema_actor: its moving average, which acts and is exported.
        critic, target_critic: phi and its slow copy.
    """

    actor: Any
    ema_actor: Any
    action_low: Tensor
    action_high: Tensor
    trained_only = ("actor", "target_critic", "log_alpha")
    """Parts that no action needs."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        params: ACRLPDParams,
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
        observation_keys: Sequence[str] = VECTOR_KEYS[:1],
        seeing: SeeingActor | None = None,
        widths: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.params, self.observation_keys = params, list(observation_keys)
        self.widths = list(widths or [observation_dim])
        self.sees = seeing is not None
        self.image_columns = {key: key for key in (seeing.cameras if seeing else ())}
        self.frozen_features: FrozenFeatures | None = None
        self.extra_columns = {"success": ColumnSpec((), "bool")}
        self.normalizer = ObservationNormalizer(observation_dim)
        self.action_dim = action_dim
        self.actor = seeing or make_actor(observation_dim, action_dim, params)
        self.log_alpha = log_of(params.temperature) if params.temperature else None
        frozen = {id(p): p for p in self.actor.parameters() if not p.requires_grad}
        # what is never trained is its own average, and is kept once
        self.ema_actor = copy.deepcopy(self.actor, frozen).requires_grad_(False)
        self.critic = CriticEnsemble(
            observation_dim + (seeing.feature_dim if seeing else 0),
            params.horizon * action_dim,
            params.num_critics,
            params.critic_hidden_dims or params.hidden_dims,
            params.critic_layer_norm,
            observes_base_action=False,
            dropout=params.critic_dropout,
            num_atoms=params.critic_atoms,
            value_range=(params.value_range[0], params.value_range[1]),
            weighted="weighted" in (params.target_reduction, params.actor_reduction),
            dtype=product_dtype(params.precision),
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        if seeing is not None:
            offset, scale = seeing.action_offset.numpy(), seeing.action_scale.numpy()
            low, high = offset - scale, offset + scale
        for name, bound in (("action_low", low), ("action_high", high)):
            values = np.broadcast_to(np.float32(bound), action_dim)
            self.register_buffer(name, torch.tensor(values.copy()))

    @classmethod
    def of_spaces(
        cls,
        observations: gym.spaces.Dict,
        actions: gym.spaces.Box,
        params: ACRLPDParams,
        seed: int = 0,
        seeing: SeeingActor | None = None,
    ) -> ChunkedNetworks:
        """The networks of an environment's spaces.

        Args:
            observations: vector columns are read, all others are not.
            actions: [A], with bounds.
            params: see `ACRLPDParams`.
            seed: of the initial weights; the global generator is left as it was.
            seeing: see the class.

        Raises:
            ValueError: no vector column, or a dimension of the action without bounds.
        """
        keys = vector_keys(observations)
        unbounded = np.flatnonzero(~(np.isfinite(actions.low) & np.isfinite(actions.high)))
        if len(unbounded):
            raise ValueError(
                f"action dimension {unbounded[0]} has no bounds: a flow gives actions in [-1, 1] "
                "of them; give the environment's action space finite bounds"
            )
        widths = [int(np.prod(observations.spaces[key].shape or ())) for key in keys]
        bounds = actions.low, actions.high
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(sum(widths), actions.shape[0], params, *bounds, keys, seeing, widths)

    # --- acting and training alike ---------------------------------------------------------------

    def encode(self, batch: Batch, successor: bool = False) -> Any:
        """What the actor sees at a window's start, or at its end: [B, D], or its own kind."""
        vector = batch["next_observation" if successor else "observation"]
        if not self.sees:
            return self.normalizer(vector)
        parts = vector.split(self.widths, -1)
        columns = dict(zip(self.observation_keys, parts, strict=True))
        for key in self.image_columns:
            columns[key] = batch[f"next.{key}" if successor else key]
        return self.actor.observe(self.normalizer(vector), columns)

    def outputs(
        self, critic: CriticEnsemble, x: Tensor, chunks: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """`CriticEnsemble.outputs` at chunks [B, H, A]: [M, B] or [M, B, Z]."""
        flat = chunks.flatten(-2)
        return critic.outputs(x, flat, flat, members)

    def judge(self, x: Tensor, chunks: Tensor) -> Tensor:
        """Q of the online critics [N, K, B] at candidates [K, B, H, A] of the same B features."""
        flat = chunks.flatten(-2)
        return self.critic.otf(x, flat[0], flat)

    def choose(self, x: Tensor, chunks: Tensor) -> Tensor:
        """The candidate that the online critics like best, [B, H, A]; of one, that one."""
        if len(chunks) == 1:
            return chunks[0]
        reduction, logits = self.params.actor_reduction, self.critic.reduction_logits
        return losses.best_candidate(chunks, self.judge(x, chunks), reduction, logits)

    def fit_actions(self, actions: Tensor) -> None:
        """Take the range of actions [n, A] of the environment, n >= 1."""
        if self.sees:
            return
        self.action_low.copy_(actions.amin(0))
        self.action_high.copy_(actions.amax(0))

    def to_unit(self, actions: Tensor) -> Tensor:
        """Actions of the environment [..., A] in [-1, 1]; those outside are clipped."""
        middle, half = self._middle_and_half
        actions = (actions - middle) / half.clamp(min=torch.finfo(half.dtype).tiny)
        return actions if self.sees else actions.clamp(-1.0, 1.0)

    def from_unit(self, actions: Tensor) -> Tensor:
        """Actions in [-1, 1] as the environment takes them, [..., A]."""
        middle, half = self._middle_and_half
        return middle + actions * half

    @property
    def _middle_and_half(self) -> tuple[Tensor, Tensor]:
        low, high = self.action_low, self.action_high
        return (low + high) / 2, (high - low) / 2

    def act(self, observation: Batch, noise: Tensor, cloned: bool = False) -> Tensor:
        """The chunk [B, H, A] to play, in the environment's units.

        Args:
            observation: vector columns [B, ...], and images [B, h, w, 3] of an actor that sees.
            noise: standard normal, [K, B, *actor.noise_shape] for K candidates.
            cloned: candidates of the flow, which clones data, also where a one-step policy acts.
        """
        columns = [observation[key].flatten(1) for key in self.observation_keys]
        x = self.normalizer(torch.cat([column.float() for column in columns], dim=-1))
        actor = self.ema_actor
        if cloned and isinstance(actor, DistilledActor):
            actor = actor.flow
        if self.sees:
            x = actor.observe(x, observation)
        return self.from_unit(self.choose(actor.features(x), actor.sample(x, noise)))

    # --- what travels ----------------------------------------------------------------------------

    def keep_what_acts(self) -> None:
        """Drop all that no action needs."""
        for name in self.trained_only:
            setattr(self, name, None)

    def acting_state(self) -> dict[str, Tensor]:
        """Of the state, what `keep_what_acts` keeps."""
        return {
            k: v for k, v in self.state_dict().items() if k.split(".")[0] not in self.trained_only
        }


def make_actor(
    observation_dim: int, action_dim: int, params: ACRLPDParams
) -> FlowActor | DistilledActor | GaussianActor:
    """The actor over vectors that the parameters name."""
    shape = observation_dim, params.horizon, action_dim, params.hidden_dims
    if params.actor == "gaussian":
        return GaussianActor(*shape)
    flow = FlowActor(*shape, params.flow_steps)
    if params.improvement == "distill":
        return DistilledActor(flow, ChunkNetwork(*shape, timed=False))
    return flow
