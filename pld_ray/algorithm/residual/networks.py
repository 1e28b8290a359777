"""All networks of one residual SAC agent."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from pld_ray.algorithm.observing import Batch, ObservingNetworks
from pld_ray.algorithm.residual import losses
from pld_ray.algorithm.residual.dims import residual_dims, without_grippers
from pld_ray.algorithm.stored_columns import vector_keys
from pld_ray.columns import BASE_ACTION, GRIPPER_LABELS, SUCCEEDED, VECTOR_KEYS
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.config.residual_sac_checks import check_action_bounds
from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.discrete_critic import DiscreteCritic
from pld_ray.networks.encoders import (
    EncoderInputs,
    ObservationEncoder,
    image_shapes,
    make_encoder,
)
from pld_ray.networks.gaussian_actor import GaussianActor
from pld_ray.networks.grippers import compose_gripper, hold_all, num_joint_choices
from pld_ray.networks.precision import product_dtype
from pld_ray.replay.schema import ColumnSpec

TRAINED_ONLY = (
    "critic",
    "target_critic",
    "critic_encoder",
    "target_encoder",
    "target_discrete_critic",
    "log_alpha",
)
"""Parts that no action needs."""


class ResidualNetworks(ObservingNetworks):
    """Encoder, residual actor, critics, their targets, temperature, observation statistics, beta.

    The learner, the env runners and an exported policy encode, act and compose with these methods.
    `encoder` is the actor's; with `shared_encoder` the critics use it too and they alone train it,
    otherwise they have a `critic_encoder`.

    Args:
        observation_dim: D, of the concatenated observation vector.
        action_dim: A.
        params: `ResidualSACParams`.
        images: camera columns and their (H, W, 3); used unless `vision_encoder_name` is `none`.
        tasks: instructions, for a task embedding.
        low, high: bounds of the action space, scalars or [A].
        observation_keys: columns of an observation that make the vector, in order.

    Raises:
        ValueError: `residual_dims` or `gripper_dims` does not fit A; an encoder that cannot be
            built.
    """

    residual_scale: Tensor
    residual_dims: Tensor
    gripper_mask: Tensor
    """0 in the dimensions of discrete grippers, else 1, [A]; only with them."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        params: ResidualSACParams,
        images: Mapping[str, tuple[int, int, int]] | None = None,
        tasks: tuple[str, ...] = (),
        low: float | np.ndarray = -1.0,
        high: float | np.ndarray = 1.0,
        observation_keys: Sequence[str] = VECTOR_KEYS[:1],
    ) -> None:
        sees = params.vision_encoder_name != "none"
        inputs = EncoderInputs(observation_dim, dict(images or {}) if sees else {}, tasks)
        super().__init__(params, inputs, observation_keys, action_dim, low, high)
        self.encoder = make_encoder(inputs, params, self.frozen_features)
        self.critic_encoder = (
            None if params.shared_encoder else make_encoder(inputs, params, self.frozen_features)
        )
        self.target_encoder = copy.deepcopy(self.critic_encoder or self.encoder)
        self.target_encoder.requires_grad_(False)
        width = self.encoder.output_dim
        self.actor = GaussianActor(
            width,
            action_dim,
            params.hidden_dims,
            params.log_std_init,
            params.log_std_min,
            params.log_std_max,
            params.init_final,
        )
        self.ema_actor = (
            copy.deepcopy(self.actor).requires_grad_(False) if params.ema_decay else None
        )
        """The moving average of `actor`, which acts in its place. An encoder of the actor's own is
        not averaged."""
        self.critic = CriticEnsemble(
            width,
            action_dim,
            params.num_critics,
            params.critic_hidden_dims or params.hidden_dims,
            params.critic_layer_norm,
            params.critic_observes_base_action and params.compose_base,
            params.critic_dropout,
            params.critic_atoms,
            (params.value_range[0], params.value_range[1]),
            "weighted" in (params.target_reduction, params.actor_reduction),
            product_dtype(params.precision),
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor([math.log(params.temperature_init)]))
        dims = residual_dims(params.residual_dims, action_dim)
        self.discrete_critic: DiscreteCritic | None = None
        self.target_discrete_critic: DiscreteCritic | None = None
        if params.gripper == "discrete":
            dims = without_grippers(dims, params.gripper_dims)
            self._add_discrete_critic(width, action_dim)
        self.register_buffer("residual_scale", torch.tensor(float(params.residual_scale)))
        self.register_buffer("residual_dims", dims)

    def _add_discrete_critic(self, width: int, action_dim: int) -> None:
        dims = self.params.gripper_dims
        self.register_buffer("gripper_mask", without_grippers(torch.ones(action_dim), dims))
        self.discrete_critic = DiscreteCritic(
            width,
            action_dim,
            num_choices=num_joint_choices(len(dims)),
            hidden_dims=self.params.hidden_dims,
            layer_norm=self.params.critic_layer_norm,
            preferred=hold_all(len(dims)),
        )
        self.target_discrete_critic = copy.deepcopy(self.discrete_critic).requires_grad_(False)

    @classmethod
    def of_spaces(
        cls,
        observations: gym.spaces.Dict,
        actions: gym.spaces.Box,
        params: ResidualSACParams,
        seed: int = 0,
        tasks: Sequence[str] = (),
    ) -> ResidualNetworks:
        """The networks of an environment's spaces, `base_action` among its observations.

        Args:
            observations: vector columns, cameras [H, W, 3] uint8, `base_action` [A].
            actions: [A].
            params: see `ResidualSACParams`.
            seed: of the initial weights; the global generator is left as it was.
            tasks: instructions, for a task embedding.

        Raises:
            ValueError: spaces that the parameters cannot work with; the message names which.
        """
        check_action_bounds(params, actions.low.tolist(), actions.high.tolist())
        keys = vector_keys(observations)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(
                sum(int(np.prod(observations.spaces[key].shape or ())) for key in keys),
                actions.shape[0],
                params,
                image_shapes(observations, params),
                tuple(tasks),
                actions.low,
                actions.high,
                keys,
            )

    # --- acting and training alike ---------------------------------------------------------------

    def encode(self, encoder: ObservationEncoder, batch: Batch, successor: bool = False) -> Tensor:
        """x, or x' of the `successor`: [B, Z]; a state-only encoder passes the vector through.

        Args:
            encoder: the actor's, the critics' or the target's.
            batch: as the replay samples it, or `as_batch` of an observation.
        """
        return encoder(*self.seen(batch, successor))

    def residual(self, x: Tensor, base_action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(2), (8): delta, shaped as `noise` [B, A] or [K, B, A], and its log-probability."""
        return self.residual_of(self.actor, x, base_action, noise)

    @property
    def acting_actor(self) -> GaussianActor:
        """The actor whose actions are played."""
        return self.ema_actor or self.actor

    def residual_of(
        self,
        actor: GaussianActor,
        x: Tensor,
        base_action: Tensor,
        noise: Tensor,
        exact: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """`residual` by this actor; `exact` as it says."""
        mean, log_std = actor(x, base_action, exact)
        squash = self.params.use_tanh_squash
        return losses.sample_residual(mean, log_std, noise, self.residual_dims, squash)

    def compose(self, base_action: Tensor, delta: Tensor) -> Tensor:
        """(4), (9): clip(a_base + beta * dims * delta), [B, A] or [K, B, A]."""
        origin, unit = losses.action_frame(
            self.params.compose_base, self.action_low, self.action_high
        )
        return losses.compose_action(
            base_action + origin,
            delta,
            self.residual_scale,
            self.residual_dims * unit,
            self.action_low,
            self.action_high,
        )

    def decompose(self, base_action: Tensor, action: Tensor) -> Tensor:
        """The delta [B, A] that leads from the base action to this action [B, A]."""
        origin, unit = losses.action_frame(
            self.params.compose_base, self.action_low, self.action_high
        )
        return losses.executed_residual(
            base_action + origin, action, self.residual_scale, self.residual_dims * unit
        )

    def act(
        self, observation: Batch, noise: Tensor | None = None, choice: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The composed action [B, A] (formulas 1-4), and the joint choice of discrete grippers.

        Args:
            observation: vector columns, cameras if they are read, and `base_action`.
            noise: [B, A] of unit variance, white or correlated; None is the deterministic action.
            choice: [B] int64; an entry >= 0 is taken instead of the best one (exploration).

        Returns:
            action, and [B] int64, or None without discrete grippers.
        """
        base_action = observation[BASE_ACTION]
        if not self.params.compose_base:
            base_action = torch.zeros_like(base_action)
        batch = self.as_batch(observation)
        x = self.encode(self.encoder, batch)
        noise = torch.zeros_like(base_action) if noise is None else noise
        delta, _ = self.residual_of(self.acting_actor, x, base_action, noise, exact=True)
        action = self.compose(base_action, delta)
        if self.discrete_critic is None:
            return action, None
        critic_x = x if self.critic_encoder is None else self.encode(self.critic_encoder, batch)
        best = self.discrete_critic(critic_x, base_action).argmax(-1)
        joint = best if choice is None else torch.where(choice >= 0, choice, best)
        dims = self.params.gripper_dims
        return compose_gripper(action, joint, dims, self.action_low, self.action_high), joint

    @property
    def extra_columns(self) -> dict[str, ColumnSpec]:
        """What the replay holds for these losses alone: labels of discrete grippers, and of which
        rows the episode succeeded."""
        columns: dict[str, ColumnSpec] = {}
        if self.discrete_critic is not None:
            columns |= {name: ColumnSpec(()) for name in GRIPPER_LABELS}
        if self.params.success_imitation:
            columns[SUCCEEDED] = ColumnSpec((), "bool")
        return columns

    @property
    def trained_only(self) -> list[str]:
        return trained_only(self.params)


def trained_only(params: ResidualSACParams) -> list[str]:
    """The parts that no action needs: a discrete gripper is chosen by what the critics see, and
    an averaged actor acts in place of the trained one."""
    sees = params.gripper == "discrete"
    names = [name for name in TRAINED_ONLY if not (sees and name == "critic_encoder")]
    return [*names, "actor"] if params.ema_decay else names
