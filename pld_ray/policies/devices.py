"""Where a base policy is computed."""

from __future__ import annotations

import torch


def check_device(device: str) -> None:
    """Refuse a GPU where there is none.

    Raises:
        ValueError: no CUDA device here.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"base policy device {device!r}: no CUDA device here; use 'cpu'")
