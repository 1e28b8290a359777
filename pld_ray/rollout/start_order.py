"""Episodes of several runners in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pld_ray.columns import Columns
from pld_ray.rollout.episode import EpisodeSummary, split_episodes
from pld_ray.rollout.messages import EpisodeBatch

Ended = tuple[int, Columns, EpisodeSummary]
"""Number of the runner, the episode, what became of it."""


class StartOrder:
    """Holds episodes back until all that began before them have ended.

    In the order of their ends, quick successes would come first, and what is cut off at some
    number, a recording or a warm-up, would hold too many of them.
    """

    def __init__(self) -> None:
        self._ended: list[tuple[tuple[int, int, int], Ended]] = []

    @property
    def held_back(self) -> list[Columns]:
        """Episodes that have been added and not taken."""
        return [episode for _, (_, episode, _) in self._ended]

    def add(self, ended: Ended) -> None:
        """An episode that has ended."""
        runner, _, summary = ended
        self._ended.append(((summary.start, runner, summary.env_index), ended))
        self._ended.sort(key=lambda item: item[0])

    def begin_anew(self) -> None:
        """Clocks begin at 0 again, and no episode is open: those held back come before others."""
        late = 1 + max((key[0] for key, _ in self._ended), default=0)
        self._ended = [((key[0] - late, *key[1:]), ended) for key, ended in self._ended]

    def take(self, batches: Sequence[EpisodeBatch]) -> Iterator[Ended]:
        """Those that began before any episode that is open after these batches."""
        oldest = min((batch.oldest_start for batch in batches), default=0)
        while self._ended and self._ended[0][0][0] < oldest:
            yield self._ended.pop(0)[1]


def ended_episodes(batches: Sequence[EpisodeBatch]) -> Iterator[Ended]:
    """The stored episodes of what was gathered; what died with its node is left out."""
    for runner, batch in enumerate(batches):
        if batch.columns is None:  # others will be played
            continue
        episodes = split_episodes(batch.columns, batch.episode_lengths)
        for episode, summary in zip(episodes, batch.episodes, strict=True):
            yield runner, episode, summary
