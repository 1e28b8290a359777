"""All networks of one residual SAC agent."""

from __future__ import annotations

import copy
import math
from typing import Protocol

import torch
from torch import Tensor, nn

from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.gaussian_actor import GaussianActor
from pld_ray.networks.normalizer import ObservationNormalizer


class NetworkParams(Protocol):
    """What is read of the learner's parameters."""

    hidden_dims: list[int]
    num_critics: int
    critic_layer_norm: bool
    critic_observes_base_action: bool
    log_std_init: float
    log_std_min: float
    log_std_max: float
    temperature_init: float
    residual_scale: float
    residual_dims: list[float]


class ResidualNetworks(nn.Module):
    """Residual actor, critics, target critics, temperature, observation statistics and beta.

    Args:
        observation_dim: D, of the concatenated observation vector.
        action_dim: A.
        params: `ResidualSACParams`, or any object with these fields.

    Raises:
        ValueError: `residual_dims` has neither A entries nor none.
    """

    residual_scale: Tensor
    residual_dims: Tensor

    def __init__(self, observation_dim: int, action_dim: int, params: NetworkParams) -> None:
        super().__init__()
        self.normalizer = ObservationNormalizer(observation_dim)
        self.actor = GaussianActor(
            observation_dim,
            action_dim,
            params.hidden_dims,
            params.log_std_init,
            params.log_std_min,
            params.log_std_max,
        )
        self.critic = CriticEnsemble(
            observation_dim,
            action_dim,
            params.num_critics,
            params.hidden_dims,
            params.critic_layer_norm,
            params.critic_observes_base_action,
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor([math.log(params.temperature_init)]))
        self.register_buffer("residual_scale", torch.tensor(float(params.residual_scale)))
        self.register_buffer("residual_dims", residual_dims(params.residual_dims, action_dim))


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
