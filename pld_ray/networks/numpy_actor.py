"""The residual action without PyTorch's dispatch, which costs more than the arithmetic of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn


class NumpyActor:
    """`ResidualModule.act` of a module that reads state vectors alone, equal up to rounding.

    The arrays are views of the module's parameters and buffers: weights that the module takes are
    in force here at once.

    Args:
        module: a `ResidualModule` that `stands_for` accepts.

    Attributes:
        scale: beta, 0-d.
    """

    def __init__(self, module: Any) -> None:
        self._params = module.params
        actor, normalizer = module.actor, module.normalizer
        self._layers = [
            (view(layer.weight).T, view(layer.bias))
            for layer in [*actor.trunk, actor.head]
            if isinstance(layer, nn.Linear)
        ]
        self._log_std_range = actor.log_std_min, actor.log_std_max
        self._mean, self._std = view(normalizer.mean), view(normalizer.std)
        self._limit = view(normalizer.limit)
        self.scale, self._dims = view(module.residual_scale), view(module.residual_dims)
        self._low, self._high = view(module.action_low), view(module.action_high)
        if not self._params.compose_base:  # see `losses.action_frame`
            self._origin, unit = (self._low + self._high) / 2, (self._high - self._low) / 2
            self._dims = self._dims * unit

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether the module reads no image, chooses no discrete gripper and is on the CPU."""
        return (
            module.encoder.is_identity
            and module.discrete_critic is None
            and module.action_low.device.type == "cpu"
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
