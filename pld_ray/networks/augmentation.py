"""DrQ's random shift of images (Yarats et al. 2021, "Image Augmentation Is All You Need")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def random_shift(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Each image padded by repeating its border, then cropped to its size at a random place.

    Args:
        images: [B, H, W, C] uint8.
        pad: pixels on every side, >= 0; the shift of an image is uniform over the integers
            -pad..pad, for each axis by itself.
        generator: draws the shifts, on any device.

    Returns:
        [B, H, W, C] uint8 on the images' device, new memory unless pad is 0.

    Raises:
        ValueError: another dtype or number of axes, an empty image, or a negative pad.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"random_shift: images are {images.dtype}, need torch.uint8")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(
            f"random_shift: images have shape {tuple(images.shape)}, need [B, H, W, C] with pixels"
        )
    if pad < 0:
        raise ValueError(f"random_shift: pad={pad} must be >= 0; 0 leaves images as they are")
    if pad == 0:
        return images
    size = (len(images), 2)
    shifts = torch.randint(-pad, pad + 1, size, generator=generator, device=generator.device)
    if images.device.type == "cpu" and pad < min(images.shape[1:3]):
        return shift_by_copies(images, shifts)
    return shift_by_index(images, shifts)


def shift_by_index(images: Tensor, shifts: Tensor) -> Tensor:
    """Pixel (y, x) of image b is its pixel (y + shifts[b, 0], x + shifts[b, 1]), clamped.

    One gather, without a loop: the form for GPUs.

    Args:
        images: [B, H, W, C].
        shifts: [B, 2] int64, rows then columns, of any size.
    """
    batch, height, width, _ = images.shape
    shifts = shifts.to(images.device)
    image = torch.arange(batch, device=images.device)
    rows = torch.arange(height, device=images.device) + shifts[:, :1]
    columns = torch.arange(width, device=images.device) + shifts[:, 1:]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    return images[image[:, None, None], rows[:, :, None], columns[:, None, :]]


def shift_by_copies(images: Tensor, shifts: Tensor) -> Tensor:
    """`shift_by_index` for the CPU: of each image one block and its borders; over 10 times as
    fast there.

    Args:
        images: [B, H, W, C] uint8 on the CPU.
        shifts: [B, 2] int64, rows then columns, smaller than the image.
    """
    batch, height, width, channels = images.shape
    source = np.ascontiguousarray(images.numpy())
    target = np.empty_like(source)
    # lines of bytes: numpy copies each of them at once
    source_lines = source.reshape(batch, height, width * channels)
    target_lines = target.reshape(batch, height, width * channels)
    for b, (dy, dx) in enumerate(shifts.tolist()):
        top, bottom = max(-dy, 0), height - max(dy, 0)
        left, right = max(-dx, 0), width - max(dx, 0)
        block = source_lines[
            b, top + dy : bottom + dy, (left + dx) * channels : (right + dx) * channels
        ]
        target_lines[b, top:bottom, left * channels : right * channels] = block
        image, lines = target[b], target_lines[b]
        image[top:bottom, :left] = image[top:bottom, left : left + 1]
        image[top:bottom, right:] = image[top:bottom, right - 1 : right]
        lines[:top] = lines[top]
        lines[bottom:] = lines[bottom - 1]
    return torch.from_numpy(target)
