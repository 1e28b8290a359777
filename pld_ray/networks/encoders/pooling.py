"""From a feature map to a latent vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

POOLINGS = ("spatial_embeddings", "average")


class SpatialLearnedEmbeddings(nn.Module):
    """Weighted sums over positions with learned weights, several per channel (SERL).

    Args:
        channels: C of the feature map.
        height: h of it.
        width: w of it.
        num_features: F, weighted sums per channel.
    """

    def __init__(self, channels: int, height: int, width: int, num_features: int = 8) -> None:
        super().__init__()
        # variance 1 / (terms of a sum), so that a sum starts with the variance of a feature
        bound = math.sqrt(3.0 / (height * width))
        kernel = torch.empty(channels, height, width, num_features).uniform_(-bound, bound)
        self.kernel = nn.Parameter(kernel)

    def forward(self, features: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C * F]: sum over (i, j) of features[c, i, j] * kernel[c, i, j, f]."""
        # one matrix product per channel, without the [B, C, h, w, F] of the plain product
        positions = features.flatten(2).transpose(0, 1)
        return torch.bmm(positions, self.kernel.flatten(1, 2)).transpose(0, 1).flatten(1)


class AveragePooling(nn.Module):
    """Mean over positions, [B, C, h, w] -> [B, C]."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


class ImageHead(nn.Module):
    """Pooling -> Linear -> LayerNorm -> tanh: one camera's latent (seed 004, section 2.2).

    Args:
        shape: (C, h, w) of the feature map.
        latent_dim: width of the latent.
        pooling: `spatial_embeddings` or `average`.
        num_features: of the spatial embeddings.

    Raises:
        ValueError: another pooling.
    """

    def __init__(
        self, shape: tuple[int, int, int], latent_dim: int, pooling: str, num_features: int = 8
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"image_pooling={pooling!r}: must be one of {', '.join(POOLINGS)}")
        self.shape = shape
        self.pool: nn.Module = AveragePooling()
        inputs = shape[0]
        if pooling == "spatial_embeddings":
            self.pool = SpatialLearnedEmbeddings(*shape, num_features)
            inputs *= num_features
        self.project = vector_encoder(inputs, latent_dim)

    def forward(self, features: Tensor) -> Tensor:
        """[B, C, h, w] in any float type -> [B, latent_dim] float32.

        Raises:
            ValueError: maps of another shape, or images in their place.
        """
        if features.shape[1:] != self.shape or not features.is_floating_point():
            raise ValueError(
                f"feature maps are {features.dtype} of shape {tuple(features.shape)}, need floats "
                f"[B, {', '.join(map(str, self.shape))}]; a frozen vision encoder's are computed "
                "by FrozenFeatures"
            )
        return self.project(self.pool(features.float()))


def vector_encoder(inputs: int, outputs: int) -> nn.Sequential:
    """Linear -> LayerNorm -> tanh."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.Tanh())
