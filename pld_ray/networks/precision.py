"""In which precision networks multiply."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def product_dtype(precision: str) -> torch.dtype:
    """Of matrix products.

    Args:
        precision: `float32`, `bfloat16`, or `auto`: bfloat16 where this machine has instructions
            for it (a GPU's, AVX512-BF16, AMX), float32 elsewhere.
    """
    if precision == "auto":
        precision = "bfloat16" if multiplies_bfloat16() else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def multiplies_bfloat16() -> bool:
    """Whether this machine has instructions for it; without them it is slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a layer makes of x, multiplied in x's precision; its parameters stay what they are."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)
