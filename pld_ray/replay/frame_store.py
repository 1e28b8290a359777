"""Frames in memory and on disk: each stored once, the oldest episodes evicted."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pld_ray.columns import START
from pld_ray.files.random_state import restore_generator
from pld_ray.replay import ingest
from pld_ray.replay.schema import ReplaySchema
from pld_ray.replay.segments import SegmentFiles
from pld_ray.replay.storage import ReplayFileError

INDEX_BYTES = 17  # of a row in _steps_left, _starts and _is_start


class FrameStore:
    """The part of a `FrameRing` that stores; see there.

    Attributes:
        dropped_first: what it stored first has left, since it was made, cleared or loaded.
    """

    dropped_first: bool

    def __init__(
        self,
        schema: ReplaySchema,
        capacity: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        if capacity < 2:
            raise ValueError(f"replay: capacity={capacity} must be >= 2")
        self.schema = schema
        self.capacity = int(capacity)
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._rows = self._zeros((schema.row_width,), "float32")
        self._tensors = {
            key: self._zeros(schema.columns[key].shape, schema.columns[key].dtype)
            for key in schema.tensor_keys
        }
        # transitions from a row to the end of its episode; 0 on a final frame
        self._steps_left = self._zeros((), "int64")
        # start rows in order of age, itself a ring: the oldest at _first_start
        self._starts = self._zeros((), "int64")
        self._is_start = self._zeros((), "bool")
        self.clear()

    def _zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """[capacity, *shape]; on the CPU memory is taken only as rows are written."""
        size = (self.capacity, *shape)
        if self.device.type == "cpu":
            return torch.from_numpy(np.zeros(size, dtype))
        return torch.zeros(size, dtype=getattr(torch, dtype), device=self.device)

    def clear(self) -> None:
        """Forget every episode."""
        self._files = SegmentFiles()
        self._first_episode = 0  # number of the oldest stored one, since the ring was empty
        self.dropped_first = False
        self._episode_lengths: deque[int] = deque()
        self._starts_per_episode: deque[int] = deque()
        self._head = 0  # row that is written next
        self._used = 0  # rows in use, the ones before the head
        self._first_start = 0
        self._num_starts = 0

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._num_starts

    @property
    def num_rows(self) -> int:
        """Frames in use."""
        return self._used

    @property
    def episode_lengths(self) -> list[int]:
        """Transitions of each stored episode, oldest first."""
        return list(self._episode_lengths)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for rows, images, features and indices."""
        tensors = [self._rows, *self._tensors.values()]
        tensors += [self._steps_left, self._starts, self._is_start]
        return sum(t.numel() * t.element_size() for t in tensors)

    @staticmethod
    def predict_nbytes(schema: ReplaySchema, capacity: int) -> int:
        """Bytes that a full ring of this capacity [rows] holds, without making one."""
        apart = [schema.columns[key] for key in schema.tensor_keys]
        row_bytes = 4 * schema.row_width + INDEX_BYTES
        row_bytes += sum(math.prod(c.shape) * np.dtype(c.dtype).itemsize for c in apart)
        return capacity * row_bytes

    # --- writing ---------------------------------------------------------------------------------

    def add_episodes(
        self,
        columns: Mapping[str, np.ndarray | Tensor],
        episode_lengths: Sequence[int],
        gamma: float,
        window: int | None = None,
    ) -> None:
        """Store finished or cut episodes and their returns-to-go, evicting the oldest as needed.

        Args:
            columns: each [sum(L + 1), ...]: per episode L transition rows, then its final frame.
                With a bool column `start` only transitions that it marks start a window; the
                others are part of windows alone.
            episode_lengths: L of each episode, >= 1.
            gamma: discount of `mc_return`; a truncated episode's return ends where it was cut,
                unless it failed all along, see `ingest.bounds_to_go`.
            window: with `start`, rows that no window of so many steps sees are not stored: parts of
                an episode are stored as episodes, and longer windows end with their part.

        Raises:
            ValueError: a column is missing or misshapen or holds a NaN or an infinity, an episode
                is empty or longer than the ring, or `terminated` stands before an episode's last
                transition. Nothing has been stored then.
        """
        lengths = [int(n) for n in episode_lengths]
        rows = ingest.packed_episodes(self.schema, columns, lengths, self.capacity)
        end = 0
        for length in lengths:
            episode = slice(end, end + length + 1)
            tensors = {k: torch.as_tensor(columns[k][episode]) for k in self.schema.tensor_keys}
            starts = torch.as_tensor(columns[START][episode]) if START in columns else None
            outcome = ingest.with_outcome(self.schema, rows[episode], gamma)
            end = episode.stop
            if starts is None or window is None:
                self._add_episode(outcome, tensors, starts)
                continue
            for part in ingest.stretches(starts, window):
                piece = ingest.cut(self.schema, outcome, part)
                cut = {key: values[part] for key, values in tensors.items()}
                self._add_episode(piece, cut, starts[part])

    def _add_episode(
        self, rows: Tensor, tensors: Mapping[str, Tensor], starts: Tensor | None
    ) -> None:
        num_rows = len(rows)
        while self.capacity - self._used < num_rows:
            self._evict_oldest()
        where = (self._head + torch.arange(num_rows, device=self.device)) % self.capacity
        self._write(self._rows, rows)
        for key, values in tensors.items():
            self._write(self._tensors[key], values)
        self._steps_left[where] = torch.arange(num_rows - 1, -1, -1, device=self.device)
        starting = where[:-1]
        if starts is not None:
            starting = starting[starts[:-1].reshape(-1).bool().to(self.device)]
        self._is_start[where] = False
        self._is_start[starting] = True
        self._append_starts(starting)
        self._starts_per_episode.append(len(starting))
        self._episode_lengths.append(num_rows - 1)
        self._head = (self._head + num_rows) % self.capacity
        self._used += num_rows

    def _write(self, ring: Tensor, values: Tensor) -> None:
        """Copy rows at the head, in two parts where the ring wraps."""
        before_end = min(len(values), self.capacity - self._head)
        ring[self._head : self._head + before_end].copy_(values[:before_end])
        ring[: len(values) - before_end].copy_(values[before_end:])

    def _append_starts(self, rows: Tensor) -> None:
        slots = torch.arange(len(rows), device=self.device)
        slots = (self._first_start + self._num_starts + slots) % self.capacity
        self._starts[slots] = rows
        self._num_starts += len(rows)

    def _evict_oldest(self) -> None:
        self.dropped_first |= self._first_episode == 0
        length = self._episode_lengths.popleft()
        self._first_episode += 1
        self._used -= length + 1
        num_starts = self._starts_per_episode.popleft()
        self._num_starts -= num_starts
        self._first_start = (self._first_start + num_starts) % self.capacity

    # --- files -----------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Make `folder` a complete copy of the episodes and the generator's state, atomically.

        Only episodes since this ring's last save or load are written; the files of the others are
        shared with the folder of that one, see `segments`.
        """
        self._files.save(
            folder,
            self._first_episode,
            self.episode_lengths,
            self._stored,
            {
                "schema": self.schema.describe(),
                "generator": self.generator.get_state().numpy().tobytes().hex(),
            },
        )

    def _stored(self, first_episode: int, num_episodes: int) -> dict[str, list[Tensor]]:
        """Rows of stored episodes by column, in one part, or two where the ring wraps."""
        skipped = first_episode - self._first_episode
        lengths = list(islice(self._episode_lengths, skipped + num_episodes))
        start = self._head - self._used + sum(lengths[:skipped]) + skipped
        start %= self.capacity
        end = start + sum(lengths[skipped:]) + num_episodes
        parts = [slice(start, min(end, self.capacity))]
        if end > self.capacity:
            parts.append(slice(0, end - self.capacity))
        rings = {"rows": self._rows, **self._tensors}
        if list(islice(self._starts_per_episode, skipped, len(lengths))) != lengths[skipped:]:
            rings[START] = self._is_start
        return {name: [ring[part] for part in parts] for name, ring in rings.items()}

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Replace the contents by what `save` wrote; the next sample is the one it would have made,
        unless that ring was on another kind of device, whose random stream cannot go on.

        The capacity may differ from the saved ring's, if the episodes fit.

        Raises:
            FileNotFoundError: a file is missing.
            ReplayFileError: a file is damaged, is not a saved ring, or has other columns, features
                of another encoder, or more rows than this ring. The contents are as before then.
        """
        saved = self._files.load(folder, self.schema.describe())
        lengths = saved.episode_lengths
        used = sum(lengths) + len(lengths)
        if used > self.capacity:
            raise ReplayFileError(
                f"replay {folder}: it holds {used} rows but the capacity is {self.capacity}; "
                "raise online_capacity or offline_capacity"
            )
        self.clear()
        for piece in saved.read():
            self._write(self._rows, piece["rows"])
            # left out where every transition starts a window
            every = torch.ones(len(piece["rows"]), dtype=torch.bool)
            self._write(self._is_start, piece.get(START, every))
            for key, ring in self._tensors.items():
                self._write(ring, piece[key])
            self._head += len(piece["rows"])
        self._head %= self.capacity
        self._used = used
        self._episode_lengths = deque(lengths)
        self._index(lengths)
        restore_generator(self.generator, saved.generator)
        self._first_episode = self._files.adopt(saved)

    def _index(self, episode_lengths: Sequence[int]) -> None:
        """Rebuild the indices of episodes that lie from row 0 on."""
        num_rows = torch.tensor(episode_lengths, dtype=torch.int64, device=self.device) + 1
        final_frame = (num_rows.cumsum(0) - 1).repeat_interleave(num_rows)
        rows = torch.arange(len(final_frame), device=self.device)
        self._steps_left[: len(rows)] = final_frame - rows
        self._is_start[: len(rows)] &= rows < final_frame
        self._append_starts(rows[self._is_start[: len(rows)]])
        counts = self._is_start[: len(rows)].cumsum(0)[num_rows.cumsum(0) - 1].tolist()
        self._starts_per_episode = deque(int(n) for n in np.diff([0, *counts]))
