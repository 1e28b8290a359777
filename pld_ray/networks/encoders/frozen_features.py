"""Features of a frozen vision encoder: computed once per frame, stored in half precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pld_ray.columns import FEATURE_PREFIX, IMAGE_PREFIX
from pld_ray.networks.encoders.backbones import Backbone


def feature_key(image_key: str) -> str:
    """`observation.images.NAME` -> `observation.features.NAME`.

    Raises:
        ValueError: not the name of a camera column.
    """
    if not image_key.startswith(IMAGE_PREFIX):
        raise ValueError(
            f"column {image_key!r} is no camera: their names start with {IMAGE_PREFIX!r}"
        )
    return FEATURE_PREFIX + image_key.removeprefix(IMAGE_PREFIX)


class FrozenFeatures:
    """A frozen encoder that is no part of a module: no gradient, no place in a state_dict.

    Args:
        backbone: is frozen here.

    Raises:
        ValueError: its features do not fit half precision.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone.requires_grad_(False)
        self.fingerprint = backbone.fingerprint()
        """Equal fingerprints mean equal features, but for the rounding of another device."""
        self._check_range()

    @torch.no_grad()
    def compute(self, images: np.ndarray | Tensor, rows_at_once: int = 64) -> Tensor:
        """Feature maps [N, C, h, w] float16 of images [N, H, W, 3] uint8.

        Args:
            images: frames.
            rows_at_once: frames per pass, >= 1, which bounds the memory.

        Returns:
            On the CPU for an array, on the images' device for a tensor.

        Raises:
            ValueError: another dtype or shape; a feature beyond the range of float16.
        """
        if isinstance(images, np.ndarray):  # from shared memory they are read-only: copied
            images = torch.from_numpy(np.require(images, requirements=["C", "W"]))
        device = self.backbone.mean.device
        parts = [
            self.backbone(part.to(device)).half().to(images.device)
            for part in images.split(rows_at_once)
        ]
        features = torch.cat(parts)
        if not features.isfinite().all():
            raise ValueError(f"{self._name()}: a feature is beyond the range of float16 (65504)")
        return features

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(C, h, w) for images of this size."""
        return self.backbone.feature_shape(height, width)

    def to(self, device: torch.device | str) -> FrozenFeatures:
        """Compute there from now on."""
        self.backbone.to(device)
        return self

    @torch.no_grad()
    def _check_range(self) -> None:
        """Random BatchNorm networks vanish or explode in evaluation mode: refuse them here."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=generator)
        largest = self.backbone(noise.to(self.backbone.mean.device)).abs().max().item()
        limits = torch.finfo(torch.float16)
        if not limits.tiny <= largest <= limits.max:
            raise ValueError(
                f"{self._name()}: features of a random image reach {largest:.2g}, outside of "
                "float16; give trained vision_encoder_weights, or choose resnet10"
            )

    def _name(self) -> str:
        return f"vision_encoder_name={self.backbone.name!r}"
