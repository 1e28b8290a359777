"""What happened in a run of updates, as means, without work or waiting between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

KEPT_UPDATES = 128  # tensors held before they are reduced


class UpdateMetrics:
    """Keeps what the updates hand over and reduces it many updates at a time.

    Args:
        value_range: lowest and highest return that the reward allows; Q outside counts as
            `q_out_of_bound`.
        active_share: fraction of action dimensions that carry a residual.
    """

    def __init__(self, value_range: Sequence[float], active_share: float) -> None:
        low, high = value_range
        # recorded tensor -> metrics, each from [updates, elements] to [updates]
        self._derived: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
            "q": {
                "q_mean": lambda q: q.mean(1),
                "q_max": lambda q: q.amax(1),
                "q_out_of_bound": lambda q: ((q < low) | (q > high)).float().mean(1),
            },
            "td_target": {"td_target_mean": lambda y: y.mean(1)},
            "log_prob": {"entropy": lambda log_prob: -log_prob.mean(1)},
            "delta": {"residual_abs": lambda delta: delta.abs().mean(1) / active_share},
        }
        self.clear()

    def clear(self) -> None:
        """Forget everything recorded."""
        self._kept: dict[str, list[Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def record(self, name: str, value: Tensor) -> None:
        """Keep a detached tensor of one update; a name always has one shape."""
        kept = self._kept.setdefault(name, [])
        kept.append(value)
        if len(kept) == KEPT_UPDATES:
            self._reduce(name)

    def means(self) -> dict[str, float]:
        """Mean of each metric over the updates recorded since `clear`; waits for the device."""
        for name in list(self._kept):
            self._reduce(name)
        if not self._sums:
            return {}
        sums = torch.stack(list(self._sums.values())).tolist()
        return {
            name: total / self._counts[name] for name, total in zip(self._sums, sums, strict=True)
        }

    def _reduce(self, name: str) -> None:
        kept = self._kept.pop(name)
        values = (
            torch.stack(kept).float().flatten(1) if kept[0].ndim else torch.stack(kept)[:, None]
        )
        metrics = self._derived.get(name, {name: lambda v: v.mean(1)})
        for metric, per_update in metrics.items():
            total = per_update(values).sum()
            self._sums[metric] = self._sums[metric] + total if metric in self._sums else total
            self._counts[metric] = self._counts.get(metric, 0) + len(kept)
