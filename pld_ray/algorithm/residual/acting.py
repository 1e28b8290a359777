"""What acts: base action and residual, without PyTorch's dispatch where the networks allow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import BASE_ACTION


class Actor:
    """Acts with the weights that the networks have at the moment.

    Args:
        networks: those of a learner, or of `keep_what_acts`.
    """

    def __init__(self, networks: ResidualNetworks) -> None:
        self._networks = networks
        self._numpy = NumpyActor(networks) if NumpyActor.stands_for(networks) else None

    @property
    def residual_scale(self) -> float:
        """beta."""
        return float(self._networks.residual_scale if self._numpy is None else self._numpy.scale)

    def act(
        self,
        observation: Mapping[str, np.ndarray],
        noise: np.ndarray | None = None,
        forced_choice: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """a = clip(a_base + beta * delta) (formulas 2-4), and the discrete grippers' joint choice.

        Args:
            observation: columns of N environments, `base_action` among them.
            noise: [N, A] float32 of unit variance; None takes the mean.
            forced_choice: [N], joint choices of discrete grippers; -1, or None, is the best one.

        Returns:
            Action [N, A] float32; choice [N], None without discrete grippers.
        """
        if self._numpy is not None:
            columns = [observation[key] for key in self._networks.observation_keys]
            columns = [values.reshape(len(values), -1) for values in columns]
            vector = np.concatenate(columns, axis=-1, dtype=np.float32)
            return self._numpy.act(vector, observation[BASE_ACTION], noise), None
        with torch.inference_mode():
            action, choice = self._networks.act(
                {key: torch.from_numpy(value) for key, value in observation.items()},
                None if noise is None else torch.from_numpy(noise),
                None if forced_choice is None else torch.from_numpy(forced_choice),
            )
        return action.numpy(), None if choice is None else choice.numpy()


class NumpyActor:
    """`ResidualNetworks.act` of networks that read state vectors alone, equal up to rounding.

    PyTorch's dispatch costs more than the arithmetic of a row. The arrays are views of parameters
    and buffers: weights that the networks take are in force here at once.

    Args:
        networks: some that `stands_for` accepts.

    Attributes:
        scale: beta, 0-d.
    """

    def __init__(self, networks: ResidualNetworks) -> None:
        self._params = networks.params
        actor, normalizer = networks.acting_actor, networks.normalizer
        self._layers = [
            (view(layer.weight).T, view(layer.bias))
            for layer in [*actor.trunk, actor.head]
            if isinstance(layer, nn.Linear)
        ]
        self._log_std_range = actor.log_std_min, actor.log_std_max
        self._mean, self._std = view(normalizer.mean), view(normalizer.std)
        self._limit = view(normalizer.limit)
        self.scale, self._dims = view(networks.residual_scale), view(networks.residual_dims)
        self._low, self._high = view(networks.action_low), view(networks.action_high)
        if not self._params.compose_base:  # see `losses.action_frame`
            self._origin, unit = (self._low + self._high) / 2, (self._high - self._low) / 2
            self._dims = self._dims * unit

    @staticmethod
    def stands_for(networks: ResidualNetworks) -> bool:
        """Whether they read no image, choose no discrete gripper and are on the CPU."""
        return (
            networks.encoder.is_identity
            and networks.discrete_critic is None
            and networks.action_low.device.type == "cpu"
        )

    def act(
        self, vector: np.ndarray, base_action: np.ndarray, noise: np.ndarray | None = None
    ) -> np.ndarray:
        """a = clip(a_base + beta * dims * tanh(mean + std * noise)) [N, A] (formulas 1-4).

        Args:
            vector: concatenated observation columns [N, D] float32, not normalised.
            base_action: [N, A] float32.
            noise: [N, A] float32 of unit variance; None is the deterministic action.
        """
        if not self._params.compose_base:
            base_action = np.zeros_like(base_action)
        x = clip((vector - self._mean) / self._std, -self._limit, self._limit)
        hidden = np.concatenate((x, base_action), axis=-1)
        for weight, bias in self._layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        weight, bias = self._layers[-1]
        head, n = hidden @ weight + bias, base_action.shape[-1]
        u = head[:, :n]
        if noise is not None:
            u = u + np.exp(clip(head[:, n:], *self._log_std_range)) * noise
        delta = np.tanh(u) if self._params.use_tanh_squash else clip(u, -1.0, 1.0)
        origin = base_action if self._params.compose_base else self._origin
        action = origin + (self.scale * self._dims) * delta
        return clip(action, self._low, self._high)


def view(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as an array."""
    return tensor.detach().numpy()


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """`np.clip` in a third of its time for small arrays."""
    return np.minimum(np.maximum(x, low), high)
