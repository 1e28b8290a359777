"""All networks of one residual SAC agent."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.discrete_critic import DiscreteCritic
from pld_ray.networks.encoders import (
    Backbone,
    EncoderInputs,
    FrozenFeatures,
    ObservationEncoder,
    build_backbone,
    feature_key,
)
from pld_ray.networks.gaussian_actor import GaussianActor
from pld_ray.networks.grippers import hold_all, num_joint_choices
from pld_ray.networks.normalizer import ObservationNormalizer

if TYPE_CHECKING:
    from pld_ray.config.residual_sac import ResidualSACParams


class ResidualNetworks(nn.Module):
    """Encoder, residual actor, critics, their targets, temperature, observation statistics, beta.

    `encoder` is the actor's; with `shared_encoder` the critics use it too and they alone train it,
    otherwise they have a `critic_encoder`. A frozen vision encoder is no submodule: it is built
    alike everywhere (`frozen_features`) and never travels with the weights.

    Args:
        observation_dim: D, of the concatenated observation vector.
        action_dim: A.
        params: `ResidualSACParams`.
        images: camera columns and their (H, W, 3); used unless `vision_encoder_name` is `none`.
        tasks: instructions, for a task embedding.

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
    ) -> None:
        super().__init__()
        self.normalizer = ObservationNormalizer(observation_dim)
        sees = params.vision_encoder_name != "none"
        inputs = EncoderInputs(observation_dim, dict(images or {}) if sees else {}, tasks)
        self.frozen_features = frozen_features(inputs, params)
        self.image_columns = {
            key: feature_key(key) if self.frozen_features else key for key in inputs.images
        }
        """Camera -> the column it is read from: the images, or their frozen features."""
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
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor([math.log(params.temperature_init)]))
        dims = residual_dims(params.residual_dims, action_dim)
        self.discrete_critic: DiscreteCritic | None = None
        self.target_discrete_critic: DiscreteCritic | None = None
        if params.gripper == "discrete":
            dims = without_grippers(dims, params.gripper_dims)
            self.register_buffer(
                "gripper_mask", without_grippers(torch.ones(action_dim), params.gripper_dims)
            )
            grippers = len(params.gripper_dims)
            self.discrete_critic = DiscreteCritic(
                width,
                action_dim,
                num_choices=num_joint_choices(grippers),
                hidden_dims=params.hidden_dims,
                preferred=hold_all(grippers),
            )
            self.target_discrete_critic = copy.deepcopy(self.discrete_critic).requires_grad_(False)
        self.register_buffer("residual_scale", torch.tensor(float(params.residual_scale)))
        self.register_buffer("residual_dims", dims)


def frozen_features(inputs: EncoderInputs, params: ResidualSACParams) -> FrozenFeatures | None:
    """The frozen vision encoder, or None where there is none or it is trained."""
    if not inputs.images or not params.freeze_vision_encoder:
        return None
    return FrozenFeatures(make_backbone(params))


def make_backbone(params: ResidualSACParams) -> Backbone:
    """The vision encoder that the parameters name."""
    return build_backbone(
        params.vision_encoder_name,
        params.vision_encoder_weights,
        params.image_encoder_hidden_dim,
        params.vision_encoder_seed,
    )


def make_encoder(
    inputs: EncoderInputs, params: ResidualSACParams, frozen: FrozenFeatures | None
) -> ObservationEncoder:
    """One observation encoder; a trained vision encoder belongs to it, a frozen one does not."""
    if not inputs.images:
        return ObservationEncoder(inputs, params, None)
    return ObservationEncoder(inputs, params, frozen.backbone if frozen else make_backbone(params))


def residual_dims(factors: list[float], action_dim: int) -> Tensor:
    """Factors per action dimension [A]; an empty list means 1 for every dimension.

    Raises:
        ValueError: the list has another length than A.
    """
    if not factors:
        return torch.ones(action_dim)
    if len(factors) != action_dim:
        raise ValueError(
            f"algorithm.residual_dims has {len(factors)} entries but actions have {action_dim} "
            "dimensions: give one factor per dimension, or an empty list for all ones"
        )
    return torch.tensor(factors, dtype=torch.float32)


def without_grippers(dims: Tensor, gripper_dims: list[int]) -> Tensor:
    """`residual_dims` with 0 where a discrete gripper acts.

    Raises:
        ValueError: a gripper dimension that the action does not have.
    """
    if max(gripper_dims) >= len(dims):
        raise ValueError(
            f"algorithm.gripper_dims={gripper_dims}: the action has dimensions 0 to "
            f"{len(dims) - 1}; name the gripper's, or set gripper=continuous"
        )
    dims = dims.clone()
    dims[gripper_dims] = 0.0
    return dims
