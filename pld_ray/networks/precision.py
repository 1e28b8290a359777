"""In which precision networks multiply."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MixedPrecision(nn.Module):
    """A network whose matrix products have a precision of their own.

    Attributes:
        dtype: of them; parameters and all that is put out stay float32.
    """

    dtype = torch.float32


def set_precision(networks: nn.Module, precision: str, device: torch.device) -> None:
    """Multiply as `precision` says on this device, in every `MixedPrecision` of the networks."""
    dtype = product_dtype(precision, device)
    for module in networks.modules():
        if isinstance(module, MixedPrecision):
            module.dtype = dtype


def product_dtype(precision: str, device: torch.device | str = "cpu") -> torch.dtype:
    """Of matrix products.

    Args:
        precision: `float32`, `bfloat16`, or `auto`: bfloat16 on a CPU with instructions for it
            (AVX512-BF16, AMX), float32 elsewhere. On a GPU, where an update of these networks waits
            for its launches, bfloat16 is slower (experiments/benchmarks/devices.py).
        device: that multiplies; the machine may have another one.
    """
    if precision == "auto":
        faster = torch.device(device).type == "cpu" and cpu_multiplies_bfloat16()
        precision = "bfloat16" if faster else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; without them it is slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a layer makes of x, multiplied in x's precision; its parameters stay what they are."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)
