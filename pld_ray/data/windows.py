"""Windows of H actions straight from a LeRobotDataset: vectors in memory, images where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pld_ray.columns import START, SUCCESS
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import no_starts
from pld_ray.data.errors import DataError
from pld_ray.replay import ChunkRing, ColumnSpec, ReplaySchema

STATE = "observation.state"
NEEDED = ("action", "next.reward", "next.done")


class DatasetWindows:
    """Draws the windows of a dataset as `ChunkRing.sample_windows` draws those of a ring.

    A recorded episode of L frames ends with its last action and without the frame that follows it.
    Where it ended in success it terminated: L transitions, and what follows is never looked at. Any
    other episode was cut: its last frame is what its last window bootstraps from, which leaves
    L - 1 transitions. Without `next.success` see `Dataset.successes`.

    Args:
        dataset: with `action`, `next.reward`, `next.done` and the observation columns.
        observation_keys: vector columns that make up the observation, in order.
        cameras: image or video features that a batch brings along; decoded when they are drawn.
        seed: of the draws.

    Raises:
        DataError: a column is missing, no episode has two frames, or no row may start a window.
    """

    def __init__(
        self,
        dataset: Dataset,
        observation_keys: tuple[str, ...] = (STATE,),
        cameras: tuple[str, ...] = (),
        seed: int = 0,
    ) -> None:
        dataset.require([*observation_keys, *cameras, *NEEDED])
        self.dataset, self.cameras = dataset, cameras
        marks = [name for name in ("next.success", START) if name in dataset.features]
        columns = dataset.columns([*observation_keys, *NEEDED, *marks])
        last_frames = dataset.first_frames + dataset.lengths - 1
        success = columns.get("next.success")
        ended = dataset.successes() if success is None else success[last_frames]
        assert ended is not None  # there are rewards
        frames, lengths, terminated = [], [], []
        for first, last, over in zip(dataset.first_frames, last_frames, ended, strict=True):
            rows = np.arange(first, last + 1)
            if over:
                rows = np.append(rows, rows[-1])
            if len(rows) < 2:
                continue
            frames.append(rows)
            lengths.append(len(rows) - 1)
            terminated.append(bool(over))
        if not frames:
            raise DataError(f"{dataset.root}: no episode has two frames; give a longer recording")
        self.frame_of_row = np.concatenate(frames)
        """Frame of the dataset that each row of the ring shows."""
        self.ring = self._filled_ring(columns, observation_keys, lengths, terminated, seed)

    def _filled_ring(
        self,
        columns: dict[str, np.ndarray],
        observation_keys: tuple[str, ...],
        lengths: list[int],
        terminated: list[bool],
        seed: int,
    ) -> ChunkRing:
        rows, number = self.frame_of_row, len(self.frame_of_row)
        last = np.cumsum(np.array(lengths) + 1) - 2  # each episode's last transition
        flags = {name: np.zeros(number, bool) for name in ("terminated", "truncated", SUCCESS)}
        flags["terminated"][last] = terminated
        flags["truncated"][last] = ~np.array(terminated)
        success = columns.get("next.success")
        if success is None:
            flags[SUCCESS][last] = terminated
        else:
            flags[SUCCESS] = success[rows]
        action = columns["action"][rows].astype(np.float32)
        given = {key: columns[key][rows].astype(np.float32) for key in observation_keys}
        given |= flags | {
            "action": action,
            "base_action": np.zeros_like(action),
            "reward": columns["next.reward"][rows].astype(np.float32).reshape(number),
            "residual_scale": np.zeros(number, np.float32),
            "intervened": np.zeros(number, bool),
            START: columns[START][rows] if START in columns else np.ones(number, bool),
        }
        specs = {
            name: ColumnSpec(values.shape[1:], "bool" if values.dtype == bool else "float32")
            for name, values in given.items()
        }
        ring = ChunkRing(ReplaySchema(specs, observation_keys), number, seed=seed)
        ring.add_episodes(given, lengths, gamma=1.0)
        if not len(ring):
            raise no_starts(self.dataset)
        return ring

    def sample(
        self,
        batch_size: int,
        horizon: int,
        gamma: float,
        positive_share: float = 0.1,
        tail: str = "pad",
    ) -> dict[str, Tensor]:
        """B windows, see `ChunkRing.sample_windows`.

        Returns:
            as there; further `frame` and `next_frame` [B] int64, of the dataset, and images
            [B, H, W, 3] uint8 under the cameras' names and `next.` before them.

        Raises:
            DataError: with `drop`, H is longer than every episode.
        """
        try:
            batch = self.ring.sample_windows(batch_size, horizon, gamma, positive_share, tail)
        except ValueError as error:
            raise DataError(f"{self.dataset.root}: {error}") from None
        frame = torch.from_numpy(self.frame_of_row)[batch["row"]]
        following = torch.from_numpy(self.frame_of_row)[batch["row"] + batch["window"]]
        batch |= {"frame": frame, "next_frame": following}
        for camera in self.cameras:
            both = torch.cat([frame, following]).numpy()
            images = torch.from_numpy(self.dataset.images_at(camera, both))
            batch[camera], batch[f"next.{camera}"] = images[:batch_size], images[batch_size:]
        return batch
