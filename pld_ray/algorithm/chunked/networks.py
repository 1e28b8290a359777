"""All networks of one Q-chunking agent."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.actor import (
    ChunkNetwork,
    DistilledActor,
    EncodingActor,
    FlowActor,
    GaussianActor,
    SeeingActor,
    log_of,
)
from pld_ray.algorithm.observing import Batch, ObservingNetworks, Seen
from pld_ray.algorithm.stored_columns import vector_keys
from pld_ray.columns import VECTOR_KEYS
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.encoders import EncoderInputs, image_shapes, make_encoder
from pld_ray.networks.precision import product_dtype
from pld_ray.replay.schema import ColumnSpec

SMALLEST_SPREAD = 1e-6
"""Of a policy's statistics, as a part of the action: less is rounding."""


class ChunkedNetworks(ObservingNetworks):
    """Actor, its moving average, chunk critics, their targets, observation statistics.

    Actor and critics have an encoder each: the actor's losses train the one, which is averaged and
    acts with it, the critics' loss the other, which their targets follow with a slow copy. With
    `seeing` the critics see its features, which no loss of theirs trains.

    Inside, actions are in [-1, 1] of the bounds of the action space, and after `fit_actions` of the
    range that the data have: a component that nobody ever moved stays where it was. A flow that had
    to learn that it is zero would be a little wrong at every step, and an arm would slowly turn.
    Critics are asked about what would be executed, see `executed`.

    Args:
        observation_dim: D, of the concatenated observation vector.
        action_dim: A.
        params: `ACRLPDParams`.
        low, high: bounds of the action space, scalars or [A].
        observation_keys: columns of an observation that make the vector, in order.
        seeing: the actor, where it reads the columns itself; its actions are in its own units, so
            that there is no range to fit.
        widths: of the columns that make the vector; one alone is as wide as the vector.
        images: cameras of the encoders, and their (H, W, 3).
        tasks: instructions, for a task embedding.

    Attributes:
        actor: theta, which is trained.
        ema_actor: its moving average, which acts and is exported.
        critic, critic_encoder: phi.
        target_critic, target_encoder: its slow copy.
        lowest, highest: of the environment's actions, [A]; beside a `seeing` actor alone.
    """

    params: ACRLPDParams
    actor: Any
    ema_actor: Any
    lowest: Tensor
    highest: Tensor
    trained_only = ("actor", "target_critic", "target_encoder", "log_alpha")
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
        images: Mapping[str, tuple[int, int, int]] | None = None,
        tasks: tuple[str, ...] = (),
    ) -> None:
        inputs = EncoderInputs(observation_dim, dict(images or {}), tasks)
        bounds = low, high
        if seeing is not None:
            offset, scale = seeing.action_offset.numpy(), seeing.action_scale.numpy()
            low, high = offset - scale, offset + scale
        super().__init__(params, inputs, observation_keys, action_dim, low, high)
        self.widths = list(widths or [observation_dim])
        self.sees = seeing is not None
        if seeing is not None:
            for name, bound in zip(("lowest", "highest"), bounds, strict=True):
                values = np.broadcast_to(np.float32(bound), action_dim)
                # no checkpoint has had them
                self.register_buffer(name, torch.tensor(values.copy()), persistent=False)
            self.image_columns = {key: key for key in seeing.cameras}
            inputs = replace(inputs, feature_dim=seeing.feature_dim)
        self.extra_columns = {"success": ColumnSpec((), "bool")}
        self.actor = seeing or self._make_actor(inputs)
        self.log_alpha = log_of(params.temperature) if params.temperature else None
        frozen = {id(p): p for p in self.actor.parameters() if not p.requires_grad}
        # what is never trained is its own average, and is kept once
        self.ema_actor = copy.deepcopy(self.actor, frozen).requires_grad_(False)
        self.critic_encoder = make_encoder(inputs, params, self.frozen_features, params.fusion)
        self.target_encoder = copy.deepcopy(self.critic_encoder).requires_grad_(False)
        self.critic = CriticEnsemble(
            self.critic_encoder.output_dim,
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

    def _make_actor(self, inputs: EncoderInputs) -> EncodingActor:
        """The actor over an encoder that the parameters name."""
        params, encoder = self.params, make_encoder(inputs, self.params, self.frozen_features)
        shape = encoder.output_dim, params.horizon, self.action_dim, params.hidden_dims
        if params.actor == "gaussian":
            return GaussianActor(*shape, encoder)
        dtype = product_dtype(params.precision)
        flow = FlowActor(*shape, params.flow_steps, encoder, dtype)
        if params.improvement == "distill":
            return DistilledActor(flow, ChunkNetwork(*shape, timed=False, dtype=dtype))
        return flow

    @classmethod
    def of_spaces(
        cls,
        observations: gym.spaces.Dict,
        actions: gym.spaces.Box,
        params: ACRLPDParams,
        seed: int = 0,
        seeing: SeeingActor | None = None,
        tasks: Sequence[str] = (),
    ) -> ChunkedNetworks:
        """The networks of an environment's spaces.

        Args:
            observations: vector columns, and cameras [H, W, 3] uint8 where an encoder reads them.
            actions: [A], with bounds.
            params: see `ACRLPDParams`.
            seed: of the initial weights; the global generator is left as it was.
            seeing, tasks: see the class.

        Raises:
            ValueError: no vector column, a dimension of the action without bounds, or cameras that
                the vision encoder cannot read.
        """
        keys = vector_keys(observations)
        unbounded = np.flatnonzero(~(np.isfinite(actions.low) & np.isfinite(actions.high)))
        if len(unbounded):
            raise ValueError(
                f"action dimension {unbounded[0]} has no bounds: a flow gives actions in [-1, 1] "
                "of them; give the environment's action space finite bounds"
            )
        widths = [int(np.prod(observations.spaces[key].shape or ())) for key in keys]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(
                sum(widths),
                actions.shape[0],
                params,
                actions.low,
                actions.high,
                keys,
                seeing,
                widths,
                image_shapes(observations, params),
                tuple(tasks),
            )

    # --- acting and training alike ---------------------------------------------------------------

    def seen(self, batch: Batch, successor: bool = False) -> Seen:
        """See the base; a policy that was made elsewhere reads the vector's columns as they are."""
        seen = super().seen(batch, successor)
        if not self.sees:
            return seen
        parts = batch["next_observation" if successor else "observation"].split(self.widths, -1)
        columns = dict(zip(self.observation_keys, parts, strict=True))
        return seen._replace(columns={**columns, **seen.columns})

    def outputs(
        self, critic: CriticEnsemble, x: Tensor, chunks: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """`CriticEnsemble.outputs` at chunks [B, H, A]: [M, B] or [M, B, Z]."""
        flat = self.executed(chunks).flatten(-2)
        return critic.outputs(x, flat, flat, members)

    def judge(self, x: Tensor, chunks: Tensor) -> Tensor:
        """Q of the online critics [N, K, B] at candidates [K, B, H, A] of the same B features."""
        flat = self.executed(chunks).flatten(-2)
        return self.critic.otf(x, flat[0], flat)

    def executed(self, chunks: Tensor) -> Tensor:
        """What the environment makes of chunks [..., H, A], in the units that they have.

        What does not move is 0, as in the data: the critics' weights for it have never learnt
        anything, and would choose among candidates by chance. A policy's own units reach further
        than the environment's bounds.
        """
        if self.sees:
            return chunks.clamp(self.to_unit(self.lowest), self.to_unit(self.highest))
        return chunks * self.moved

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
        """Actions of the environment [..., A] in [-1, 1]; those outside are clipped, and what does
        not move is 0."""
        middle, half = self._middle_and_half
        moved = self.moved
        actions = (actions - middle) / torch.where(moved, half, 1.0) * moved
        return actions if self.sees else actions.clamp(-1.0, 1.0)

    def from_unit(self, actions: Tensor) -> Tensor:
        """Actions in [-1, 1] as the environment takes them, [..., A]."""
        middle, half = self._middle_and_half
        return middle + actions * half

    def out_of_reach(self, actions: Tensor) -> dict[int, float]:
        """Component -> how far actions [n, A] of the environment are from any that is learnt of."""
        middle, half = self._middle_and_half
        beyond = (actions - self.from_unit(self.to_unit(actions))).abs().amax(0)
        rounding = 1e-3 * half + 1e-5 * (1.0 + middle.abs())
        return {int(k): float(beyond[k]) for k in (beyond > rounding).nonzero()}

    @property
    def moved(self) -> Tensor:
        """Which components the data move, or a policy's own units, [A] bool."""
        if not self.sees:
            return self.action_high > self.action_low
        middle, half = self._middle_and_half  # no spread is 1e-8 to LeRobot, or what rounding left
        return half > SMALLEST_SPREAD * (0.1 + middle.abs())

    @property
    def _middle_and_half(self) -> tuple[Tensor, Tensor]:
        low, high = self.action_low, self.action_high
        return (low + high) / 2, (high - low) / 2

    def act(self, observation: Batch, noise: Tensor, cloned: bool = False) -> Tensor:
        """The chunk [B, H, A] to play, in the environment's units.

        Args:
            observation: vector columns [B, ...], and images [B, h, w, 3] that are read.
            noise: standard normal, [K, B, *actor.noise_shape] for K candidates.
            cloned: candidates of the flow, which clones data, also where a one-step policy acts.
        """
        seen = self.seen(self.as_batch(observation))
        actor = self.ema_actor
        if cloned and isinstance(actor, DistilledActor):
            actor = actor.flow
        own = actor.observe(*seen)
        x = self.critic_encoder(*seen, actor.features(own))
        return self.from_unit(self.choose(x, actor.sample(own, noise)))
