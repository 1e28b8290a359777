"""Q of the grippers' discrete choices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class DiscreteCritic(nn.Module):
    """MLP from [observation, base_action] to Q of each joint gripper choice, [B, num_choices].

    The last layer starts at zero: every choice is worth the same, and argmax takes the one that the
    caller prefers.

    Args:
        observation_dim: width of the encoded observation.
        action_dim: A.
        num_choices: 3^G.
        hidden_dims: widths of the hidden layers (ReLU).
        layer_norm: normalise before each ReLU, as LeRobot and HIL-SERL do: choices that nobody made
            in a state are otherwise overrated without bound, and the target takes the best of them.
        preferred: joint choice whose Q starts a hair above the others; `hold` everywhere.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        num_choices: int,
        hidden_dims: Sequence[int] = (256, 256),
        layer_norm: bool = True,
        preferred: int = 0,
    ) -> None:
        super().__init__()
        widths = [observation_dim + action_dim, *hidden_dims]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers.append(nn.Linear(inputs, outputs))
            if layer_norm:  # the next layer is affine
                layers.append(nn.LayerNorm(outputs, elementwise_affine=False))
            layers.append(nn.ReLU(inplace=True))
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_choices)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            self.head.bias[preferred] = 1e-3

    def forward(self, observation: Tensor, base_action: Tensor) -> Tensor:
        """Q [B, num_choices] at observation [B, D] and base_action [B, A]."""
        return self.head(self.trunk(torch.cat((observation, base_action), dim=-1)))
