"""A ring of frames in which every frame is stored once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from pld_ray.replay import storage
from pld_ray.replay.packed_batch import PackedBatch
from pld_ray.replay.schema import END_OF_TASK, MC_RETURN, ReplaySchema


class FrameRing:
    """Finished episodes, oldest evicted first, sampled uniformly over their transitions.

    The successor of row i is row i + 1 (modulo capacity). An episode of L transitions takes L + 1
    rows: its last row is the final frame, a successor but never a start, so that an observation is
    stored once and a truncated episode still has something to bootstrap from. Whole episodes are
    evicted: no row is ever paired with a frame of another episode.

    Args:
        schema: the columns.
        capacity: rows, >= 2.
        device: where rows live and samples are made.
        seed: of the ring's own generator.
    """

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
        self._rows = torch.zeros(self.capacity, schema.row_width, device=self.device)
        self._images = {
            key: torch.empty(
                (self.capacity, *schema.columns[key].shape), dtype=torch.uint8, device=self.device
            )
            for key in schema.image_keys
        }
        # transitions from a row to the end of its episode; 0 on a final frame
        self._steps_left = torch.zeros(self.capacity, dtype=torch.int64, device=self.device)
        # start rows in order of age, itself a ring: the oldest at _first_start
        self._starts = torch.zeros(self.capacity, dtype=torch.int64, device=self.device)
        self._powers = torch.empty(0)
        self._powers_of: tuple[int, float] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget every episode."""
        self._episode_lengths: deque[int] = deque()
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
        """Bytes allocated for rows, images and indices."""
        tensors = [self._rows, self._steps_left, self._starts, *self._images.values()]
        return sum(t.numel() * t.element_size() for t in tensors)

    # --- writing ---------------------------------------------------------------------------------

    def add_episodes(
        self,
        columns: Mapping[str, np.ndarray | Tensor],
        episode_lengths: Sequence[int],
        gamma: float,
    ) -> None:
        """Store finished or cut episodes and their returns-to-go, evicting the oldest as needed.

        Args:
            columns: each [sum(L + 1), ...]: per episode L transition rows, then its final frame.
            episode_lengths: L of each episode, >= 1.
            gamma: discount of `mc_return`; a truncated episode's return ends where it was cut.

        Raises:
            ValueError: a column is missing or misshapen, an episode is empty or longer than the
                ring, or `terminated` stands before an episode's last transition. Nothing has been
                stored then.
        """
        lengths = [int(n) for n in episode_lengths]
        for number, length in enumerate(lengths):
            if length < 1:
                raise ValueError(f"replay: episode {number} has {length} transitions, need >= 1")
            if length + 1 > self.capacity:
                raise ValueError(
                    f"replay: episode {number} needs {length + 1} rows but the capacity is "
                    f"{self.capacity}; raise online_capacity or offline_capacity"
                )
        num_rows = sum(lengths) + len(lengths)
        self.schema.check(columns, num_rows)
        rows = self.schema.pack(columns, num_rows)
        ends = list(accumulate(length + 1 for length in lengths))
        terminated = self.schema.view(rows, "terminated")
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            if terminated[end - length - 1 : end - 2].any():
                raise ValueError(
                    f"replay: episode {number} has `terminated` before its last transition"
                )
        for length, end in zip(lengths, ends, strict=True):
            episode = slice(end - length - 1, end)
            images = {k: torch.as_tensor(columns[k][episode]) for k in self.schema.image_keys}
            self._add_episode(self._with_outcome(rows[episode], gamma), images)

    def _with_outcome(self, rows: Tensor, gamma: float) -> Tensor:
        """Fill mc_return on the transitions; of the final frame, reward 0 and end_of_task."""
        self.schema.view(rows, "reward")[-1] = 0.0
        rewards = self.schema.view(rows, "reward")[:-1].tolist()
        returns = accumulate(reversed(rewards), lambda later, reward: reward + gamma * later)
        self.schema.view(rows, MC_RETURN)[:-1] = torch.tensor(list(returns)).flip(0)
        self.schema.view(rows, END_OF_TASK)[-1] = self.schema.view(rows, "terminated")[-2]
        return rows

    def _add_episode(self, rows: Tensor, images: Mapping[str, Tensor]) -> None:
        num_rows = len(rows)
        while self.capacity - self._used < num_rows:
            self._evict_oldest()
        where = (self._head + torch.arange(num_rows, device=self.device)) % self.capacity
        self._rows[where] = rows.to(self.device)
        for key, image in images.items():
            self._write(self._images[key], image)
        self._steps_left[where] = torch.arange(num_rows - 1, -1, -1, device=self.device)
        self._append_starts(where[:-1])
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
        length = self._episode_lengths.popleft()
        self._used -= length + 1
        self._num_starts -= length
        self._first_start = (self._first_start + length) % self.capacity

    # --- reading ---------------------------------------------------------------------------------

    def sample(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> dict[str, Tensor]:
        """B transitions drawn uniformly with replacement, with their n-step successors.

        The window of a start is m = min(n_step, transitions to the episode's end) long.

        Returns:
            observation, next_observation [B, D]; base_action, next_base_action, action [B, A];
            reward = sum_{k<m} gamma^k r_k, discount = gamma^m * (1 - terminated),
            residual_scale, mc_return [B] float32; intervened [B] bool; and images [B, H, W, 3]
            uint8 under `observation.images.*` and `next.observation.images.*`.

        Raises:
            ValueError: the ring is empty.
        """
        return self.draw(batch_size, n_step, gamma).unpack(self.schema)

    def draw(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> PackedBatch:
        """`sample`, still packed."""
        if not self._num_starts:
            raise ValueError("replay: cannot sample, no episode has been stored")
        drawn = torch.randint(
            self._num_starts, (batch_size,), generator=self.generator, device=self.device
        )
        index = self._starts.index_select(0, (drawn + self._first_start) % self.capacity)
        return self.gather(index, n_step, gamma)

    def gather(self, index: Tensor, n_step: int = 1, gamma: float = 1.0) -> PackedBatch:
        """The transitions that start at these rows [B]."""
        left = self._steps_left.index_select(0, index)
        window = left.clamp(max=n_step)
        successor = (index + window) % self.capacity
        rows = self._rows.index_select(0, index)
        next_rows = self._rows.index_select(0, successor)
        powers = self._gamma_powers(n_step, gamma)
        reward = self.schema.view(rows, "reward")
        if n_step > 1:
            reward = self._window_return(index, left, powers)
        discount = powers.index_select(0, window) * (1.0 - self.schema.view(next_rows, END_OF_TASK))
        images = {key: ring.index_select(0, index) for key, ring in self._images.items()}
        images |= {
            f"next.{key}": ring.index_select(0, successor) for key, ring in self._images.items()
        }
        return PackedBatch(rows, next_rows, reward, discount, images)

    def windows(self, index: Tensor, h: int) -> tuple[Tensor, Tensor]:
        """Rows of h steps from each start, and which of them are transitions of its episode.

        Args:
            index: start rows [B].
            h: window length, >= 1.

        Returns:
            rows [B, h] int64 and mask [B, h] bool; masked rows must not be used.
        """
        steps = torch.arange(h, device=self.device)
        rows = (index.unsqueeze(1) + steps) % self.capacity
        return rows, steps < self._steps_left[index].unsqueeze(1)

    def column(self, name: str, index: Tensor) -> Tensor:
        """A stored column at rows of any shape [...], as `windows` gives them."""
        if name in self._images:
            return self._images[name][index]
        return self.schema.view(self._rows[index], name)

    def start_rows(self) -> Tensor:
        """Rows of all transitions, oldest first, [len(self)] int64."""
        order = torch.arange(self._num_starts, device=self.device) + self._first_start
        return self._starts[order % self.capacity]

    def observations(self) -> Tensor:
        """Observation vectors of all stored transitions [len(self), D], oldest first."""
        return self.schema.observation(self._rows[self.start_rows()])

    def _window_return(self, index: Tensor, left: Tensor, powers: Tensor) -> Tensor:
        """sum_k gamma^k r_k over the window; past the episode's end stands the final frame's 0."""
        steps = torch.arange(len(powers) - 1, device=self.device)
        rows = (index + torch.minimum(steps.unsqueeze(1), left)) % self.capacity
        rewards = self._rows[:, self.schema.start["reward"]].take(rows)
        return powers[:-1] @ rewards

    def _gamma_powers(self, n_step: int, gamma: float) -> Tensor:
        """gamma^0 .. gamma^n_step, kept from one call to the next."""
        if self._powers_of != (n_step, gamma):
            powers = [gamma**k for k in range(n_step + 1)]
            self._powers = torch.tensor(powers, device=self.device)
            self._powers_of = (n_step, gamma)
        return self._powers

    # --- files -----------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the stored episodes and the generator's state below `folder`, atomically."""
        first_row = (self._head - self._used) % self.capacity
        wrapped = first_row + self._used > self.capacity
        span = slice(0, self.capacity) if wrapped else slice(first_row, first_row + self._used)
        tensors = {"rows": self._rows[span], "generator": self.generator.get_state()}
        tensors |= {key: ring[span] for key, ring in self._images.items()}
        storage.save(
            folder,
            tensors,
            {
                "schema": self.schema.describe(),
                "first_row": first_row if wrapped else 0,
                "episode_lengths": self.episode_lengths,
            },
        )

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Replace the contents by what `save` wrote; the next sample is the one it would have made.

        The capacity may differ from the saved ring's, if the episodes fit.

        Raises:
            FileNotFoundError: a file is missing.
            ReplayFileError: a file is damaged, is not a saved ring, or has other columns or more
                rows than this ring.
        """
        tensors, meta = storage.load(folder, self.schema.describe())
        lengths, first_row = meta["episode_lengths"], meta["first_row"]
        used = sum(lengths) + len(lengths)
        if used > self.capacity:
            raise storage.ReplayFileError(
                f"replay {folder}: it holds {used} rows but the capacity is {self.capacity}; "
                "raise online_capacity or offline_capacity"
            )
        self.clear()
        stored = len(tensors["rows"])
        where = (first_row + np.arange(used)) % max(stored, 1)
        index = torch.from_numpy(where)
        self._rows[:used] = tensors["rows"][index].to(self.device)
        for key, ring in self._images.items():
            ring[:used] = tensors[key][index].to(self.device)
        self.generator.set_state(tensors["generator"].cpu())
        for length in lengths:
            rows = torch.arange(self._used, self._used + length + 1, device=self.device)
            self._steps_left[rows] = rows[-1] - rows
            self._append_starts(rows[:-1])
            self._used += length + 1
        self._episode_lengths = deque(lengths)
        self._head = self._used % self.capacity
