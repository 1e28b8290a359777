"""Evaluation on held init states, spread over whichever runners there are."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from pld_ray.evaluation.play import EpisodeResult
from pld_ray.rollout.messages import PublishedWeights, without_failures

log = logging.getLogger("pld_ray")
_numbers = itertools.count()
POLL_S = 1.0
SHARES_PER_RUNNER = 2  # smaller shares even out episodes of different length

Results = dict[str, list[EpisodeResult]]
"""Contestant -> its episodes, in the order of the init states."""


@dataclass(frozen=True)
class Contestant:
    """Who is evaluated.

    Attributes:
        residual: base + tanh(mean), or the base policy alone.
        residual_scale: beta; None is the one in force.
        weights: what the runners take first; None keeps what they have.
    """

    residual: bool = True
    residual_scale: float | None = None
    weights: PublishedWeights | None = None


class Evaluation:
    """One deterministic episode per contestant and init state, played beside whatever goes on.

    Shares of the ids are dealt to the group's remote runners as they become free. Those of a runner
    that dies are dealt again to the others.

    Args:
        group: the runners.
        init_state_ids: ids of stored init states of the task.
        contestants: name -> who plays.
        restore: called again and again while no runner is alive, to look for one that has come
            back; None gives up.
        look: called again and again while `wait` waits; it may raise.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        init_state_ids: list[int],
        contestants: Mapping[str, Contestant],
        restore: Callable[[], None] | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.group = group
        self.init_state_ids = list(init_state_ids)
        self.contestants = dict(contestants)
        self._restore, self._look = restore, look
        self._waits = False
        self._tag = f"evaluate_{next(_numbers)}"
        self._played: dict[str, dict[int, EpisodeResult]] = {name: {} for name in contestants}
        self._assigned: dict[int, tuple[str, list[int]]] = {}
        runners = max(1, group.num_remote_env_runners())
        self._share = math.ceil(len(set(init_state_ids)) / (SHARES_PER_RUNNER * runners))

    def poll(self, timeout_s: float = 0.0) -> Results | None:
        """Take what is finished and deal the rest; the results when all are there.

        Raises:
            RuntimeError: no runner is left, and nobody looks for one.
            EnvRunnerError: an environment or the base policy cannot go on.
        """
        if self.group.num_remote_env_runners() == 0:
            runner = self.group.local_env_runner
            return {
                name: runner.evaluate(self.init_state_ids, contestant)
                for name, contestant in self.contestants.items()
            }
        self._deal()
        ready = self.group.fetch_ready_async_reqs(tags=self._tag, timeout_seconds=timeout_s)
        shares = without_failures([share for _, share in ready])
        for (runner, _), share in zip(ready, shares, strict=True):
            name, _ = self._assigned.pop(runner, (None, []))
            if name is not None:  # else its runner was given up meanwhile
                self._played[name] |= {episode.init_state_id: episode for episode in share}
        if any(self._missing(name) for name in self.contestants):
            return None
        return {
            name: [played[i] for i in self.init_state_ids] for name, played in self._played.items()
        }

    def wait(self) -> Results:
        """The results."""
        while (results := self.poll(POLL_S)) is None:
            self._look()
        return results

    def _healthy(self) -> list[int]:
        """Runners that can play; none while the evaluation waits for one."""
        healthy: list[int] = self.group.healthy_env_runner_ids()
        if not healthy and self._restore is None:
            raise RuntimeError("evaluation: no env runner is alive; see the runners' log")
        if not healthy and not self._waits:
            log.warning("no env runner is left to evaluate: waiting until one comes back")
        self._waits = not healthy
        if not healthy and self._restore is not None:
            self._restore()
            healthy = self.group.healthy_env_runner_ids()
        return healthy

    def _missing(self, name: str) -> list[int]:
        return [i for i in dict.fromkeys(self.init_state_ids) if i not in self._played[name]]

    def _deal(self) -> None:
        # before a runner is restored: what it had been given is lost, also if it is back at once
        present = self.group.healthy_env_runner_ids()
        self._assigned = {r: share for r, share in self._assigned.items() if r in present}
        healthy = self._healthy()
        if not self.group.num_in_flight_async_reqs(self._tag):  # somebody else has restored it
            self._assigned = {}
        for name, contestant in self.contestants.items():
            taken = {i for other, ids in self._assigned.values() if other == name for i in ids}
            left = [i for i in self._missing(name) if i not in taken]
            for runner in healthy:
                if runner in self._assigned or not left:
                    continue
                share, left = left[: self._share], left[self._share :]
                arguments = {"init_state_ids": share, "contestant": contestant}
                if self.group.foreach_env_runner_async(
                    "reply",
                    tag=self._tag,
                    kwargs={"method": "evaluate", **arguments},
                    remote_worker_ids=[runner],
                ):
                    self._assigned[runner] = name, share
