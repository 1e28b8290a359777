"""The processes that train one policy together: who does which micro-batch, and sums over all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process among those that train the policy.

    Attributes:
        rank: of this one.
        number: of all.
        planned: the number that the configuration names, which decides how many micro-batches an
            update has; there may be fewer or more processes, the numbers stay the same.
    """

    rank: int = 0
    number: int = 1
    planned: int = 1

    @property
    def first(self) -> bool:
        """Whether it is this process that writes, records and plays."""
        return self.rank == 0

    def turns(self, parts: int) -> list[int]:
        """Which of `parts` this rank does, in its order; one at or past `parts` counts for nothing.

        All ranks do as many, as every part is a collective operation.
        """
        return [self.rank + self.number * k for k in range(math.ceil(parts / self.number))]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Of each value over all ranks."""
        if self.number == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=collective_device())
        dist.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """In place, over all ranks, of parameters that each rank holds whole."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.number == 1 or not gradients:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather[T](self, value: T) -> list[T]:
        """Each rank's value, on all of them."""
        if self.number == 1:
            return [value]
        gathered: list[Any] = [None] * self.number
        dist.all_gather_object(gathered, value)
        return gathered

    def share[T](self, value: T) -> T:
        """The first rank's value."""
        if self.number == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]


ALONE = Ranks()


def collective_device() -> torch.device:
    """Where tensors must lie that all ranks reduce."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
