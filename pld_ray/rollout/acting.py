"""What a runner acts with: base action and residual, in NumPy where the module allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pld_ray.networks.numpy_actor import NumpyActor
from pld_ray.rollout.vector_env import BASE_ACTION, Observation


class Actor:
    """Acts with the weights that the module has at the moment.

    Args:
        module: a `ResidualModule`.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._numpy = NumpyActor(module) if NumpyActor.stands_for(module) else None

    @property
    def residual_scale(self) -> float:
        """beta."""
        return float(self._module.residual_scale if self._numpy is None else self._numpy.scale)

    def act(
        self,
        observation: Observation,
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
            columns = [observation[key] for key in self._module.observation_keys]
            vector = np.concatenate(columns, axis=-1, dtype=np.float32)
            return self._numpy.act(vector, observation[BASE_ACTION], noise), None
        with torch.inference_mode():
            action, choice = self._module.act_and_choose(
                {key: torch.from_numpy(value) for key, value in observation.items()},
                None if noise is None else torch.from_numpy(noise),
                None if forced_choice is None else torch.from_numpy(forced_choice),
            )
        return action.numpy(), None if choice is None else choice.numpy()
