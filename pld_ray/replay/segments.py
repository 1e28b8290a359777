"""A ring on disk as a few segment files, of which a save writes only the new one.

    ring.json                      what the ring holds, and the SHA-256 of every file
    segment-<digest>.safetensors   consecutive episodes, in one or two parts: rows.0, rows.1, ...

A segment that the former save wrote already is hard-linked into the new folder, so every folder is
complete by itself and deleting any of them harms no other. The oldest segment goes when its last
episode has been evicted; until then its file holds evicted episodes as well.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pld_ray.replay import storage

MAX_SEGMENTS = 64
MERGED_SEGMENTS = 32  # after a merge: one save in 32 pays for it
Read = Callable[[int, int], dict[str, list[Tensor]]]


@dataclass(frozen=True)
class Segment:
    """Consecutive episodes, numbered from the ring's first one ever; no file: not yet written."""

    first_episode: int
    episode_lengths: tuple[int, ...]
    file: str = ""
    sha256: str = ""
    num_bytes: int = 0

    @property
    def end(self) -> int:
        """Number of the episode after the last one."""
        return self.first_episode + len(self.episode_lengths)

    @property
    def num_rows(self) -> int:
        """Rows of all its episodes, final frames included."""
        return sum(self.episode_lengths) + len(self.episode_lengths)


@dataclass(frozen=True)
class SavedRing:
    """A saved ring whose files have been checked.

    Attributes:
        folder: where it lies.
        segments: oldest first.
        num_evicted: leading episodes of the first segment that are not the ring's any more.
        generator: state of the ring's generator, [n] uint8.
    """

    folder: pathlib.Path
    segments: list[Segment]
    num_evicted: int
    generator: Tensor

    @property
    def episode_lengths(self) -> list[int]:
        """Transitions of each episode, oldest first, without the evicted ones."""
        return [n for s in self.segments for n in s.episode_lengths][self.num_evicted :]

    def read(self) -> Iterator[dict[str, Tensor]]:
        """The rows of these episodes, by column, in consecutive pieces."""
        evicted = self.segments[0].episode_lengths[: self.num_evicted] if self.segments else ()
        skip = sum(evicted) + len(evicted)
        for segment in self.segments:
            tensors = load_file(self.folder / segment.file)  # mapped, not copied
            names = {key.rpartition(".")[0] for key in tensors}
            for part in range(len(tensors) // len(names)):
                piece = {name: tensors[f"{name}.{part}"] for name in names}
                num_rows = len(piece["rows"])
                yield {name: tensor[skip:] for name, tensor in piece.items()}
                skip = max(0, skip - num_rows)


class SegmentFiles:
    """Which episodes of a ring are on disk, and in which folder they were saved last."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._folder: storage.OpenFolder | None = None

    def save(
        self,
        folder: str | os.PathLike[str],
        first_episode: int,
        episode_lengths: Sequence[int],
        read: Read,
        meta: dict[str, Any],
    ) -> None:
        """Make `folder` a complete copy of the ring.

        Args:
            folder: created if it does not exist.
            first_episode: number of the oldest episode that the ring holds.
            episode_lengths: transitions of each, oldest first.
            read: of a number of an episode and how many from there on, their rows by column, each
                in one or two parts.
            meta: further entries of `ring.json`.
        """
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        segments = [
            self._linked(segment, path) or self._written(segment, first_episode, path, read)
            for segment in self._plan(first_episode, episode_lengths)
        ]
        num_evicted = first_episode - segments[0].first_episode if segments else 0
        meta = {**meta, "evicted_episodes": num_evicted, "segments": [asdict(s) for s in segments]}
        storage.write_meta(path, meta, {s.file for s in segments})
        self._segments, self._folder = segments, storage.OpenFolder(path)

    def load(self, folder: str | os.PathLike[str], schema: dict[str, Any]) -> SavedRing:
        """What `save` wrote, every file checked; the next save builds on it once it is `adopt`ed.

        Args:
            folder: that a ring was saved to.
            schema: that it must have.

        Raises:
            FileNotFoundError, ReplayFileError: as `FrameRing.load`.
        """
        path = pathlib.Path(folder)
        meta = storage.read_meta(path, schema)
        segments = [
            Segment(**{**entry, "episode_lengths": tuple(entry["episode_lengths"])})
            for entry in meta["segments"]
        ]
        for segment in segments:
            storage.check_file(path / segment.file, segment.sha256, segment.num_bytes)
        generator = torch.frombuffer(bytearray.fromhex(meta["generator"]), dtype=torch.uint8)
        return SavedRing(path, segments, meta["evicted_episodes"], generator)

    def adopt(self, saved: SavedRing) -> int:
        """Build further saves on this one; the number of its oldest episode."""
        self._segments, self._folder = saved.segments, storage.OpenFolder(saved.folder)
        return saved.segments[0].first_episode + saved.num_evicted if saved.segments else 0

    def _plan(self, first_episode: int, episode_lengths: Sequence[int]) -> list[Segment]:
        """The segments of the next save; those without a file are to be written."""
        plan = [segment for segment in self._segments if segment.end > first_episode]
        saved_to = plan[-1].end if plan else first_episode
        new = tuple(episode_lengths[saved_to - first_episode :])
        if new:
            plan.append(Segment(saved_to, new))
        if len(plan) > MAX_SEGMENTS:
            while len(plan) > MERGED_SEGMENTS:
                pairs = [one.num_rows + other.num_rows for one, other in pairwise(plan)]
                k = pairs.index(min(pairs))
                merged = plan[k].episode_lengths + plan[k + 1].episode_lengths
                plan[k : k + 2] = [Segment(plan[k].first_episode, merged)]
        return plan

    def _linked(self, segment: Segment, folder: pathlib.Path) -> Segment | None:
        """The segment, if its file could be taken over from the former save."""
        if not segment.file or self._folder is None:
            return None
        return segment if self._folder.give(segment.file, segment.num_bytes, folder) else None

    def _written(
        self, segment: Segment, first_episode: int, folder: pathlib.Path, read: Read
    ) -> Segment:
        """What of the segment is still in the ring, written."""
        first = max(first_episode, segment.first_episode)
        lengths = segment.episode_lengths[first - segment.first_episode :]
        columns = read(first, len(lengths))
        tensors = {f"{key}.{k}": t for key, parts in columns.items() for k, t in enumerate(parts)}
        return Segment(first, lengths, *storage.write_tensors(folder, tensors))
