"""Which of several learners this is, and what they do together."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Learner `rank` of `count`; each holds a shard of the replay, all hold the same networks."""

    rank: int = 0
    count: int = 1

    @staticmethod
    def of_this_process() -> Shard:
        """What torch.distributed says; a single learner without it."""
        if not dist.is_available() or not dist.is_initialized():
            return Shard()
        return Shard(dist.get_rank(), dist.get_world_size())

    def seed(self, seed: int) -> int:
        """A seed of this learner's own; the first one's is `seed` itself."""
        return seed + 1_000_003 * self.rank

    def name(self, what: str) -> str:
        """File or folder of this shard in a checkpoint; a single learner's has no number."""
        return what if self.count == 1 else f"{what}_{self.rank}_of_{self.count}"

    @property
    def all_reduce(self) -> Any:
        """Averages tensors over all learners in place; None for a single one."""
        return self._average if self.count > 1 else None

    def _average(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def all_true(self, value: bool) -> bool:
        """Whether it holds on every learner; every learner must ask."""
        if self.count == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # what the backend can reduce
        flag = torch.tensor(float(value), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag > 0)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows [n, D] of all learners, in the order of their ranks, on every one of them."""
        if self.count == 1:
            return rows
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, rows.cpu().numpy())
        return torch.cat([torch.from_numpy(part) for part in gathered]).to(rows.device)

    def check_saved(self, folder: pathlib.Path) -> None:
        """Raise ValueError unless the checkpoint holds the shards of as many learners."""
        if (folder / self.name("replay")).is_dir():
            return
        found = sorted(p.name for p in folder.glob("replay*"))
        raise ValueError(
            f"{folder} holds the replay of another number of learners ({', '.join(found)}) than "
            f"this run's {self.count}: set num_learners to the one it was written with"
        )
