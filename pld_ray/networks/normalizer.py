"""Fixed standardisation of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIN_STD = 1e-3  # a feature that hardly moves in the data is not blown up
CLIP = 10.0  # standard deviations


class ObservationNormalizer(nn.Module):
    """(x - mean) / std, clipped at +-10; the identity until `fit`.

    The statistics are buffers: they travel with the weights to the env runners and into
    checkpoints, and no gradient changes them.
    """

    mean: Tensor
    std: Tensor
    limit: Tensor

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(observation_dim))
        self.register_buffer("std", torch.ones(observation_dim))
        self.register_buffer("limit", torch.tensor(torch.inf))

    def fit(self, observations: Tensor) -> None:
        """Take mean and standard deviation of observations [n, D], n >= 2.

        Raises:
            ValueError: another width than D, or fewer than two rows.
        """
        if observations.ndim != 2 or observations.shape[1] != self.mean.shape[0]:
            raise ValueError(
                f"normalizer: observations have shape {tuple(observations.shape)}, "
                f"need [n, {self.mean.shape[0]}]"
            )
        if observations.shape[0] < 2:
            raise ValueError("normalizer: at least two observations are needed for statistics")
        data = observations.double()
        self.mean.copy_(data.mean(0))
        self.std.copy_(data.std(0).clamp(min=MIN_STD))
        self.limit.fill_(CLIP)

    def put(self, values: slice, center: Tensor, scale: Tensor) -> None:
        """Take given statistics for some of the D values: (x - center) / scale."""
        self.mean[values] = center
        self.std[values] = scale

    def forward(self, observation: Tensor) -> Tensor:
        """Standardised observation [..., D]."""
        return ((observation - self.mean) / self.std).clamp(-self.limit, self.limit)
