"""A ring that is sampled in windows of H actions, for policies and critics of action chunks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pld_ray.columns import SUCCESS
from pld_ray.replay.frame_ring import FrameRing
from pld_ray.replay.schema import END_OF_TASK

TAILS = ("pad", "drop")


class ChunkRing(FrameRing):
    """A `FrameRing` with windows; see there.

    If the schema has a bool column `success`, all windows of an episode in which it is ever set are
    positive.
    """

    def clear(self) -> None:
        """See `FrameStore.clear`."""
        super().clear()
        self._starts_of: tuple[object, ...] = ()

    def sample_windows(
        self,
        batch_size: int,
        horizon: int,
        gamma: float,
        positive_share: float = 0.1,
        tail: str = "pad",
        n_step: int = 1,
        earlier: int = 0,
    ) -> dict[str, Tensor]:
        """B windows of H actions, uniform over their starts but for the share of positive ones.

        A window at t is m = min(max(H, n), steps to the episode's end) long. Where fewer than
        ceil(positive_share * B) of the drawn windows are of a successful episode, others are
        replaced by such windows, if there are any. Of a batch that is drawn in parts this holds
        for the whole: a part has what the batch has up to its end, less what it had before.

        Args:
            batch_size: B.
            horizon: H.
            gamma: discount of a step.
            positive_share: in [0, 1].
            tail: `pad`: every start, actions past the end are zero and not valid; `drop`: only
                starts that have max(H, n) actions.
            n_step: n, of a return that is longer than the chunk.
            earlier: windows of the batch that other parts drew before this one.

        Returns:
            `FrameRing.sample`'s columns, `reward` being R = sum_{k<m} gamma^k r_{t+k} and
            `discount` gamma^m * mask, observations those at t and t+m; further `actions` [B, H, A],
            `valid` [B, H] bool, `mask` [B] float32: 0 if the episode terminated in the window,
            `window` [B] int64: m, `positive` [B] bool, `row` [B] int64: of the ring.

        Raises:
            ValueError: the ring is empty, no row may start a window, or with `drop` max(H, n) is
                longer than every episode.
        """
        steps = max(horizon, n_step)
        quota = math.ceil(positive_share * (earlier + batch_size))
        quota -= math.ceil(positive_share * earlier)
        index, positive = self._draw_starts(batch_size, steps, quota, tail)
        packed = self.gather(index, steps, gamma)
        batch = packed.unpack(self.schema)
        rows, valid = self.windows(index, horizon)
        stored = self.schema.view(self._rows, "action")
        actions = stored.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        batch |= {
            "actions": actions * valid.reshape(*valid.shape, *(1,) * (actions.ndim - 2)),
            "valid": valid,
            "mask": 1.0 - self.schema.view(packed.next_rows, END_OF_TASK),
            "window": self._steps_left[index].clamp(max=steps),
            "positive": positive,
            "row": index,
        }
        return batch

    def num_windows(self, horizon: int, tail: str = "pad") -> tuple[int, int]:
        """Windows that may be drawn, and how many of them are positive."""
        self._index_starts(horizon, tail)
        return len(self._window_starts), len(self._positive_starts)

    def has_windows(self, horizon: int, tail: str = "pad") -> bool:
        """Whether there is one that `sample_windows` could draw."""
        try:
            return self.num_windows(horizon, tail)[0] > 0
        except ValueError:
            return False

    def _draw_starts(
        self, batch_size: int, horizon: int, quota: int, tail: str
    ) -> tuple[Tensor, Tensor]:
        """Rows [B] and whether each is positive; at least `quota` are, if there are any."""
        if tail not in TAILS:
            raise ValueError(f"replay: tail={tail!r} must be {' or '.join(TAILS)}")
        self._index_starts(horizon, tail)
        starts = self._window_starts
        index = starts[self._numbers(batch_size, len(starts))]
        positive = self._is_positive[index]
        if len(self._positive_starts) and quota > 0:
            lacking = quota - positive.sum()
            replaced = ~positive & ((~positive).cumsum(0) <= lacking)
            others = self._positive_starts[self._numbers(batch_size, len(self._positive_starts))]
            index = torch.where(replaced, others, index)
            positive = positive | replaced
        return index, positive

    def _index_starts(self, horizon: int, tail: str) -> None:
        """Which rows may start a window; looked up again only when episodes have come or gone."""
        starts_of = (horizon, tail, self._first_episode, len(self._episode_lengths))
        if self._starts_of == starts_of:
            return
        lengths = self.episode_lengths
        if not lengths:
            raise ValueError("replay: cannot sample, no episode has been stored")
        if tail == "drop" and horizon > max(lengths):
            raise ValueError(
                f"replay: a window of {horizon} steps is longer than every episode, the longest "
                f"has {max(lengths)}; lower the horizon, or keep cut windows with tail=pad"
            )
        rows = self.transition_rows()
        keep = self._is_start[rows]
        if tail == "drop":
            keep &= self._steps_left[rows] >= horizon
        positive = torch.zeros_like(keep)
        if SUCCESS in self.schema.columns:
            reached = (self.column(SUCCESS, rows) > 0).float()
            of_episode = torch.tensor(lengths, device=self.device)
            episode = torch.repeat_interleave(
                torch.arange(len(lengths), device=self.device), of_episode
            )
            per_episode = torch.zeros(len(lengths), device=self.device)
            per_episode.index_add_(0, episode, reached)
            positive = per_episode[episode] > 0
        if not keep.any():
            raise ValueError("replay: no row of the stored episodes may start a window")
        self._window_starts = rows[keep]
        self._positive_starts = rows[keep & positive]
        self._is_positive = torch.zeros(self.capacity, dtype=torch.bool, device=self.device)
        self._is_positive[rows[positive]] = True
        self._starts_of = starts_of
