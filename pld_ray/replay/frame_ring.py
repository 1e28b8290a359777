"""A ring of frames in which every frame is stored once."""

from __future__ import annotations

import torch
from torch import Tensor

from pld_ray.columns import DISCRETE_PENALTY
from pld_ray.replay.frame_store import FrameStore
from pld_ray.replay.schema import END_OF_TASK, PackedBatch, ReplaySchema


class FrameRing(FrameStore):
    """Finished episodes, oldest evicted first, sampled uniformly over their transitions.

    The successor of row i is row i + 1 (modulo capacity). An episode of L transitions takes L + 1
    rows: its last row is the final frame, a successor but never a start, so that an observation is
    stored once and a truncated episode still has something to bootstrap from. Whole episodes are
    evicted: no row is ever paired with a frame of another episode. Of an episode that was given
    with a column `start` only the rows that it marks are sampled.

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
        super().__init__(schema, capacity, device, seed)
        self._powers = torch.empty(0)
        self._powers_of: tuple[int, float] | None = None

    def sample(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> dict[str, Tensor]:
        """B transitions drawn uniformly with replacement, with their n-step successors.

        The window of a start is m = min(n_step, transitions to the episode's end) long.

        Returns:
            observation, next_observation [B, D]; base_action, next_base_action, action [B, A];
            reward = sum_{k<m} gamma^k r_k, discount = gamma^m * (1 - terminated),
            residual_scale, mc_return [B] float32; intervened [B] bool; images [B, H, W, 3] uint8
            under `observation.images.*` and `next.observation.images.*`; features [B, C, h, w]
            float16 under `observation.features.*` and `next.observation.features.*`;
            discrete_penalty [B], summed as the reward is, if stored; further columns of the schema
            [B, ...] under their own names.

        Raises:
            ValueError: the ring is empty.
        """
        return self.draw(batch_size, n_step, gamma).unpack(self.schema)

    def draw(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> PackedBatch:
        """`sample`, still packed."""
        if not self._num_starts:
            raise ValueError("replay: cannot sample, no episode has been stored")
        drawn = self._numbers(batch_size, self._num_starts)
        index = self._starts.index_select(0, (drawn + self._first_start) % self.capacity)
        return self.gather(index, n_step, gamma)

    def _numbers(self, count: int, below: int) -> Tensor:
        return torch.randint(below, (count,), generator=self.generator, device=self.device)

    def gather(self, index: Tensor, n_step: int = 1, gamma: float = 1.0) -> PackedBatch:
        """The transitions that start at these rows [B]."""
        left = self._steps_left.index_select(0, index)
        window = left.clamp(max=n_step)
        successor = (index + window) % self.capacity
        rows = self._rows.index_select(0, index)
        next_rows = self._rows.index_select(0, successor)
        powers = self._gamma_powers(n_step, gamma)
        reward = self.schema.view(rows, "reward")
        penalty = self.schema.view(rows, DISCRETE_PENALTY) if self.schema.has_penalty else None
        if n_step > 1:
            reward = self._window_sum("reward", index, left, powers)
            if penalty is not None:
                penalty = self._window_sum(DISCRETE_PENALTY, index, left, powers)
        discount = powers.index_select(0, window) * (1.0 - self.schema.view(next_rows, END_OF_TASK))
        tensors = {key: ring.index_select(0, index) for key, ring in self._tensors.items()}
        tensors |= {
            f"next.{key}": ring.index_select(0, successor) for key, ring in self._tensors.items()
        }
        return PackedBatch(rows, next_rows, reward, discount, tensors, penalty)

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
        if name in self._tensors:
            return self._tensors[name][index]
        return self.schema.view(self._rows, name)[index]

    def transition_rows(self) -> Tensor:
        """Rows of all transitions, those that start no window too, oldest first; int64."""
        rows = self._head - self._used + torch.arange(self._used, device=self.device)
        rows %= self.capacity
        return rows[self._steps_left[rows] > 0]

    def start_rows(self) -> Tensor:
        """Rows of all transitions that may start a window, oldest first, [len(self)] int64."""
        order = torch.arange(self._num_starts, device=self.device) + self._first_start
        return self._starts[order % self.capacity]

    def observations(self) -> Tensor:
        """Observation vectors of all that may start a window [len(self), D], oldest first."""
        return self.schema.observation(self._rows)[self.start_rows()]

    def _window_sum(self, name: str, index: Tensor, left: Tensor, powers: Tensor) -> Tensor:
        """sum_k gamma^k r_k over the window; past the episode's end stands the final frame's 0."""
        steps = torch.arange(len(powers) - 1, device=self.device)
        rows = (index + torch.minimum(steps.unsqueeze(1), left)) % self.capacity
        rewards = self._rows[:, self.schema.start[name]].take(rows)
        return powers[:-1] @ rewards

    def _gamma_powers(self, n_step: int, gamma: float) -> Tensor:
        """gamma^0 .. gamma^n_step, kept from one call to the next."""
        if self._powers_of != (n_step, gamma):
            powers = [gamma**k for k in range(n_step + 1)]
            self._powers = torch.tensor(powers, device=self.device)
            self._powers_of = (n_step, gamma)
        return self._powers
