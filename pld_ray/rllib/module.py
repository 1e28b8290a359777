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

from pld_ray.algorithm.residual.losses import action_frame, compose_action
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.config.residual_sac_checks import check_action_bounds
from pld_ray.networks import ResidualNetworks
from pld_ray.networks.encoders import check_image_spaces
from pld_ray.networks.grippers import compose_gripper

BASE_ACTION = "base_action"
TASK_INDEX = "task_index"
"""The task's number, where an environment tells it: what a task embedding looks up."""
VECTOR_KEYS = (
    "observation.state",
    "observation.environment_state",
    "observation.features",  # of the base policy
)
IMAGE_PREFIX = "observation.images."
NON_INFERENCE = (
    "critic",
    "target_critic",
    "critic_encoder",
    "target_encoder",
    "target_discrete_critic",
    "log_alpha",
)


def non_inference(params: ResidualSACParams) -> tuple[str, ...]:
    """The attributes that do not act: a discrete gripper is chosen by what the critics see."""
    if params.gripper == "discrete":
        return tuple(name for name in NON_INFERENCE if name != "critic_encoder")
    return NON_INFERENCE


def vector_keys(observation_space: gym.spaces.Dict) -> list[str]:
    """The observation columns that are concatenated into the network's input, in order."""
    keys = [key for key in VECTOR_KEYS if key in observation_space.spaces]
    if not keys:
        raise ValueError(
            f"the environment gives none of {VECTOR_KEYS}; it gives {sorted(observation_space)}"
        )
    return keys


def image_shapes(
    observation_space: gym.spaces.Dict, params: ResidualSACParams
) -> dict[str, tuple[int, int, int]]:
    """Cameras that the networks read, and their (H, W, 3); empty without a vision encoder.

    Raises:
        ValueError: an encoder without a camera, cameras of different sizes, grey or float images.
    """
    if params.vision_encoder_name == "none":
        return {}
    spaces = {
        key: space
        for key, space in sorted(observation_space.spaces.items())
        if key.startswith(IMAGE_PREFIX)
    }
    if not spaces:
        raise ValueError(
            f"algorithm.vision_encoder_name={params.vision_encoder_name!r} but the environment has "
            "no camera: name some, for example --env.cameras=[image,image2], or set it to none"
        )
    shapes = {key: tuple(space.shape or ()) for key, space in spaces.items()}
    check_image_spaces({key: (shape, str(spaces[key].dtype)) for key, shape in shapes.items()})
    return {key: (shape[0], shape[1], shape[2]) for key, shape in shapes.items()}


class ResidualModule(TorchRLModule, InferenceOnlyAPI):
    """Encoder, residual actor, critics, targets and temperature.

    Observations are a dict with the vector columns [B, S], [B, E], camera images [B, H, W, 3]
    uint8 and `base_action` [B, A]. The temperature is a parameter of the module, so that a
    checkpoint restores it.
    """

    def setup(self) -> None:
        self.params = params = ResidualSACParams(**self.model_config["params"])
        bounds = self.action_space.low.tolist(), self.action_space.high.tolist()
        check_action_bounds(params, *bounds)
        spaces = self.observation_space.spaces
        self.observation_keys = vector_keys(self.observation_space)
        observation_dim = sum(int(np.prod(spaces[k].shape)) for k in self.observation_keys)
        with torch.random.fork_rng():
            torch.manual_seed(self.model_config["seed"])
            networks = ResidualNetworks(
                observation_dim,
                self.action_space.shape[0],
                params,
                image_shapes(self.observation_space, params),
                tuple(self.model_config.get("tasks", ())),
            )
        left_out = non_inference(params) if self.inference_only else ()
        for name in NON_INFERENCE:  # attributes exist even where there is no such network
            setattr(self, name, None)
        for name, child in networks.named_children():
            if name not in left_out:
                setattr(self, name, child)
        if not self.inference_only:
            self.log_alpha = networks.log_alpha
        if networks.discrete_critic is None:
            self.discrete_critic = None
        self.frozen_features = networks.frozen_features
        self.image_columns = networks.image_columns
        for name, buffer in networks.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.register_buffer("action_low", torch.tensor(self.action_space.low))
        self.register_buffer("action_high", torch.tensor(self.action_space.high))

    def get_non_inference_attributes(self) -> list[str]:
        names = non_inference(self.params)
        return [name for name in names if getattr(self, name, None) is not None]

    def observation_vector(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Concatenated vector columns [B, D], float32, not yet normalised."""
        return torch.cat([observation[k].float() for k in self.observation_keys], dim=-1)

    def encode(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The actor's view x of an observation, [B, Z]."""
        return self.encoder(*self._encoder_inputs(observation))

    def _encoder_inputs(
        self, observation: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor | None]:
        """What an encoder reads: the normalised vector, images or their features, and the task."""
        vector = self.normalizer(self.observation_vector(observation))
        images = {key: observation[key] for key in self.image_columns}
        if self.frozen_features is not None:
            images = {key: self.frozen_features.compute(image) for key, image in images.items()}
        task = observation.get(TASK_INDEX)
        return vector, images, None if task is None else task.long()

    def act(
        self, observation: Mapping[str, torch.Tensor], noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """a = clip(a_base + beta * dims * tanh(mean + std * noise)) [B, A] (formulas 1-4).

        Args:
            observation: vector columns, cameras if they are read, and `base_action`.
            noise: [B, A] of unit variance, white or correlated; None is the deterministic action.
        """
        return self.act_and_choose(observation, noise)[0]

    def act_and_choose(
        self,
        observation: Mapping[str, torch.Tensor],
        noise: torch.Tensor | None = None,
        choice: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`act`, and the joint choice of discrete grippers [B] int64 (None without them).

        Args:
            choice: [B] int64; an entry >= 0 is taken instead of the best one (exploration).
        """
        params = self.params
        base_action = observation[BASE_ACTION]
        if not params.compose_base:
            base_action = torch.zeros_like(base_action)
        inputs = self._encoder_inputs(observation)
        x = self.encoder(*inputs)
        mean, log_std = self.actor(x, base_action)
        u = mean if noise is None else mean + log_std.exp() * noise
        delta = torch.tanh(u) if params.use_tanh_squash else u.clamp(-1.0, 1.0)
        origin, unit = action_frame(params.compose_base, self.action_low, self.action_high)
        action = compose_action(
            base_action + origin,
            delta,
            self.residual_scale,
            self.residual_dims * unit,
            self.action_low,
            self.action_high,
        )
        if self.discrete_critic is None:
            return action, None
        critic_x = x if self.critic_encoder is None else self.critic_encoder(*inputs)
        best = self.discrete_critic(critic_x, base_action).argmax(-1)
        joint = best if choice is None else torch.where(choice >= 0, choice, best)
        dims = params.gripper_dims
        return compose_gripper(action, joint, dims, self.action_low, self.action_high), joint

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {Columns.ACTIONS: self.act(batch[Columns.OBS])}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        observation = batch[Columns.OBS]
        with torch.no_grad():
            noise = torch.randn_like(observation[BASE_ACTION])
            return {Columns.ACTIONS: self.act(observation, noise)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("ResidualSACUpdate trains this module; see update.py")
