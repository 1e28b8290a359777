"""The RLModule: the same submodules that the plain-PyTorch update trains, behind RLlib's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from pld_ray.algorithm.losses import compose_action
from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.networks import ResidualNetworks

BASE_ACTION = "base_action"
VECTOR_KEYS = ("observation.state", "observation.environment_state")


def vector_keys(observation_space: gym.spaces.Dict) -> list[str]:
    """The observation columns that are concatenated into the network's input, in order."""
    keys = [key for key in VECTOR_KEYS if key in observation_space.spaces]
    if not keys:
        raise ValueError(
            f"the environment gives none of {VECTOR_KEYS}; it gives {sorted(observation_space)}"
        )
    return keys


class ResidualModule(TorchRLModule, InferenceOnlyAPI):
    """Residual actor, critics, target critics and temperature.

    Observations are a dict with the vector columns [B, S], [B, E] and `base_action` [B, A].
    The temperature is a parameter of the module, so that a checkpoint restores it.
    """

    def setup(self) -> None:
        params = ResidualSACParams(**self.model_config["params"])
        spaces = self.observation_space.spaces
        self.observation_keys = vector_keys(self.observation_space)
        observation_dim = sum(int(np.prod(spaces[k].shape)) for k in self.observation_keys)
        with torch.random.fork_rng():
            torch.manual_seed(self.model_config["seed"])
            networks = ResidualNetworks(observation_dim, self.action_space.shape[0], params)
        self.actor = networks.actor
        self.normalizer = networks.normalizer
        self.register_buffer("residual_scale", networks.residual_scale)
        self.register_buffer("residual_dims", networks.residual_dims)
        if not self.inference_only:
            self.critic = networks.critic
            self.target_critic = networks.target_critic
            self.log_alpha = networks.log_alpha
        self.register_buffer("action_low", torch.tensor(self.action_space.low))
        self.register_buffer("action_high", torch.tensor(self.action_space.high))

    def get_non_inference_attributes(self) -> list[str]:
        return ["critic", "target_critic", "log_alpha"]

    def observation_vector(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Concatenated vector columns [B, D], float32, not yet normalised."""
        return torch.cat([observation[k].float() for k in self.observation_keys], dim=-1)

    def act(
        self, observation: Mapping[str, torch.Tensor], noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """a = clip(a_base + beta * dims * tanh(mean + std * noise)) [B, A] (formulas 1-4).

        Args:
            observation: vector columns and `base_action`.
            noise: [B, A] of unit variance, white or correlated; None is the deterministic action.
        """
        base_action = observation[BASE_ACTION]
        x = self.normalizer(self.observation_vector(observation))
        mean, log_std = self.actor(x, base_action)
        u = mean if noise is None else mean + log_std.exp() * noise
        return compose_action(
            base_action,
            torch.tanh(u),
            self.residual_scale,
            self.residual_dims,
            self.action_low,
            self.action_high,
        )

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {Columns.ACTIONS: self.act(batch[Columns.OBS])}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        observation = batch[Columns.OBS]
        with torch.no_grad():
            noise = torch.randn_like(observation[BASE_ACTION])
            return {Columns.ACTIONS: self.act(observation, noise)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("ResidualSACUpdate trains this module; see algorithm/update.py")
