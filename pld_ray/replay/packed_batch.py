"""A sampled batch, still packed; two of them join with one `cat` each before they are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pld_ray.replay.schema import DISCRETE_PENALTY, MC_RETURN, ReplaySchema


@dataclass
class PackedBatch:
    """B starts and their n-step successors.

    Attributes:
        rows, next_rows: packed, [B, row_width].
        reward: n-step return of rewards, [B].
        discount: gamma^m * (1 - terminated), [B].
        tensors: `observation.images.*` [B, H, W, 3] uint8, `observation.features.*` [B, C, h, w]
            float16, and those of the successors under `next.*`.
        penalty: n-step sum of `discrete_penalty`, [B], if the schema has that column.
    """

    rows: Tensor
    next_rows: Tensor
    reward: Tensor
    discount: Tensor
    tensors: dict[str, Tensor]
    penalty: Tensor | None = None

    @staticmethod
    def join(parts: Sequence[PackedBatch]) -> PackedBatch:
        """The parts one after the other."""
        penalties = [p.penalty for p in parts if p.penalty is not None]
        return PackedBatch(
            torch.cat([p.rows for p in parts]),
            torch.cat([p.next_rows for p in parts]),
            torch.cat([p.reward for p in parts]),
            torch.cat([p.discount for p in parts]),
            {key: torch.cat([p.tensors[key] for p in parts]) for key in parts[0].tensors},
            torch.cat(penalties) if penalties else None,
        )

    def unpack(self, schema: ReplaySchema) -> dict[str, Tensor]:
        """Named tensors; vectors are views of the packed rows."""
        batch = {
            "observation": schema.observation(self.rows),
            "base_action": schema.view(self.rows, "base_action"),
            "action": schema.view(self.rows, "action"),
            "reward": self.reward,
            "discount": self.discount,
            "next_observation": schema.observation(self.next_rows),
            "next_base_action": schema.view(self.next_rows, "base_action"),
            "residual_scale": schema.view(self.rows, "residual_scale"),
            "mc_return": schema.view(self.rows, MC_RETURN),
            "intervened": schema.view(self.rows, "intervened") > 0,
            **self.tensors,
        }
        batch |= {name: schema.extra(self.rows, name) for name in schema.extra_keys}
        if self.penalty is not None:
            batch[DISCRETE_PENALTY] = self.penalty
        return batch
