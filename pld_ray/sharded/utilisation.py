"""How fast a policy learns, and what share of what its device can do that is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

SIDE = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices whose product is taken for the most that a device can do."""
PRODUCTS = 5

aten = torch.ops.aten


def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of these shapes."""
    return int(sdpa_flop_count(query, key, value))


def attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of these shapes."""
    return int(sdpa_backward_flop_count(gradient, query, key, value))


ON_CPU: dict[Any, Callable[..., int]] = {  # which PyTorch does not count
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}


class Utilisation:
    """Times updates; counts the floating-point operations of the first, which is not timed.

    Counted are products of matrices, convolutions and attention, forward and backward; with
    activation checkpointing those that are done again too.

    Args:
        device: `cpu` or `cuda`, the current one.
        dtype: in which the policy computes.
        samples: windows of an update, of all ranks.
    """

    def __init__(self, device: str, dtype: torch.dtype, samples: int) -> None:
        self.device, self.dtype, self.samples = device, dtype, samples
        self.flops: int | None = None
        """Of an update, of this rank."""
        self.peak = 0.0
        """Operations per second."""
        self._updates, self._seconds = 0, 0.0

    @contextlib.contextmanager
    def of_update(self) -> Iterator[None]:
        """Around each update, which returns when it is done."""
        if self.flops is None:
            with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter:
                yield
            self.flops, self.peak = counter.get_total_flops(), matmul_peak(self.device, self.dtype)
            return
        clock = time.monotonic()
        yield
        self._seconds += time.monotonic() - clock
        self._updates += 1

    def take(self) -> dict[str, float]:
        """Since the last call: `time/samples_per_s` of all ranks, `time/tflops_per_s` of this one
        and `time/flop_utilisation`, that over what a plain product of matrices reaches on the same
        device in the same dtype; empty before the second update."""
        if self.flops is None or not self._seconds:
            return {}
        updates_per_s = self._updates / self._seconds
        self._updates, self._seconds = 0, 0.0
        flops_per_s = self.flops * updates_per_s
        return {
            "time/samples_per_s": self.samples * updates_per_s,
            "time/tflops_per_s": flops_per_s / 1e12,
            "time/flop_utilisation": flops_per_s / self.peak,
        }


def matmul_peak(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of the fastest of a few products of matrices."""
    side = SIDE[device]
    a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    fastest = float("inf")
    for _ in range(PRODUCTS):
        wait()
        clock = time.monotonic()
        torch.mm(a, b)
        wait()
        fastest = min(fastest, time.monotonic() - clock)
    return 2.0 * side**3 / fastest
