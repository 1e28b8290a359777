"""State and what was seen as one vector (seed 001, section 6.2.5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pld_ray.networks.encoders.pooling import vector_encoder


class SumFusion(nn.Module):
    """`add`: each to a latent of its own (Linear -> LayerNorm -> tanh), then their sum.

    Args:
        state_dim, seen_dim: widths of the two.
        latent_dim: W.
    """

    def __init__(self, state_dim: int, seen_dim: int, latent_dim: int) -> None:
        super().__init__()
        self.state = vector_encoder(state_dim, latent_dim)
        self.seen = vector_encoder(seen_dim, latent_dim)

    def forward(self, state: Tensor, seen: Tensor) -> Tensor:
        """[B, state_dim] and [B, seen_dim] -> [B, W]."""
        return self.state(state) + self.seen(seen)


class MLPFusion(nn.Module):
    """`mlp`: both side by side through a hidden layer (ReLU) to a latent, each W wide.

    Args:
        state_dim, seen_dim, latent_dim: of `SumFusion`.
    """

    def __init__(self, state_dim: int, seen_dim: int, latent_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(state_dim + seen_dim, latent_dim)
        self.project = vector_encoder(latent_dim, latent_dim)

    def forward(self, state: Tensor, seen: Tensor) -> Tensor:
        """[B, state_dim] and [B, seen_dim] -> [B, W]."""
        return self.project(torch.relu(self.hidden(torch.cat((state, seen), -1))))


FUSIONS = {"add": SumFusion, "mlp": MLPFusion}
"""Those with weights; `concat` has none."""
