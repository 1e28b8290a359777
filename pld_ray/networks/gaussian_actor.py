"""The residual actor: a Gaussian over u, of which the residual is the tanh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pld_ray.networks.precision import MixedPrecision, linear


class GaussianActor(MixedPrecision):
    """MLP from [observation, base_action] to mean and log standard deviation of u.

    The last layer's weights start at zero: tanh(mean) is 0 for every input, so training begins at
    exactly the base policy, with the exploration of `log_std_init`.

    Args:
        observation_dim: D.
        action_dim: A.
        hidden_dims: widths of the hidden layers (ReLU).
        log_std_init, log_std_min, log_std_max: of u, in nats.
        init_final: the last layer's weights start in Unif[-init_final, init_final] instead.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int] = (256, 256),
        log_std_init: float = -0.5,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        init_final: float = 0.0,
    ) -> None:
        super().__init__()
        self.log_std_min = log_std_min
        self.log_std_max = log_std_max
        widths = [observation_dim + action_dim, *hidden_dims]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], 2 * action_dim)
        if init_final:
            nn.init.uniform_(self.head.weight, -init_final, init_final)
        else:
            nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias[:action_dim] = 0.0
            self.head.bias[action_dim:] = log_std_init

    def forward(
        self, observation: Tensor, base_action: Tensor, exact: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean and log_std [B, A] from observation [B, D] and base_action [B, A].

        Args:
            exact: multiply in float32 whatever `dtype` says, as what is played is.
        """
        dtype = torch.float32 if exact else self.dtype
        hidden = torch.cat((observation, base_action), dim=-1).to(dtype)
        for layer in self.trunk:
            hidden = linear(layer, hidden) if isinstance(layer, nn.Linear) else layer(hidden)
        mean, log_std = self.head(hidden.float()).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)
