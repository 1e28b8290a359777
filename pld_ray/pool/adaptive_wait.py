"""How long a forming batch should wait for company. Plain arithmetic: every time is an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable

FORGETTING = 0.95  # weight of the past per new batch: about the last twenty batches count
LEARNING_RATE = 0.25  # of each caller's return time
SPREADS = 2.0  # a caller is waited for until its mean return time plus so many deviations
FORGET_CALLER_S = 60.0


class ServiceTime:
    """Time that a batch of n rows takes, learnt as fixed + per_row * n."""

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """One batch of `rows` took `seconds`."""
        for name, value in (
            ("_weight", 1.0),
            ("_n", rows),
            ("_nn", rows * rows),
            ("_t", seconds),
            ("_nt", rows * seconds),
        ):
            setattr(self, name, FORGETTING * getattr(self, name) + value)

    def coefficients(self) -> tuple[float, float]:
        """Seconds (fixed, per row), both at least zero; all is fixed until two sizes were seen."""
        if self._weight == 0.0:
            return 0.0, 0.0
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - mean_n**2
        if variance < 1e-6 * mean_n**2:
            return mean_t, 0.0
        per_row = (self._nt / self._weight - mean_n * mean_t) / variance
        per_row = min(max(per_row, 0.0), mean_t / mean_n)
        return mean_t - per_row * mean_n, per_row

    def __call__(self, rows: float) -> float:
        fixed, per_row = self.coefficients()
        return fixed + per_row * rows if rows > 0 else 0.0


@dataclasses.dataclass
class Caller:
    """One caller's habit: how soon after an answer it asks again, and with how many rows."""

    rows: int
    asking: int = 1
    answered: float | None = None
    mean: float | None = None
    deviation: float = 0.0

    def returned(self, seconds: float) -> None:
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
            return
        error = seconds - self.mean
        self.deviation += LEARNING_RATE * (abs(error) - self.deviation)
        self.mean += LEARNING_RATE * error

    def expected(self) -> float | None:
        """When it will have asked again, if it keeps its habit; None if nothing is known."""
        if self.asking or self.answered is None or self.mean is None:
            return None
        return self.answered + self.mean + SPREADS * self.deviation


class AdaptiveWait:
    """Learns service times and callers' habits; says until when a forming batch should wait.

    A simulator asks again a while after its last answer. Those who were answered and are about to
    ask again are waited for if that is cheaper than serving them in a batch of their own: with k
    rows waiting and m more expected after w seconds, if

        w + service(k + m)  <  service(k) + service(m).

    So callers in lock step share one batch, and a lone caller, or a policy without a fixed cost
    per batch, never waits.

    Args:
        max_rows: rows of a full batch.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._callers: dict[Hashable, Caller] = {}
        self.service = ServiceTime()

    def asked(self, caller: Hashable, rows: int, now: float) -> None:
        """A request of `rows` rows came in."""
        known = self._callers.get(caller)
        if known is None:
            self._callers[caller] = Caller(rows)
            return
        if known.answered is not None and not known.asking:
            known.returned(now - known.answered)
        known.rows, known.asking = rows, known.asking + 1

    def answered(self, callers: Iterable[Hashable], now: float) -> None:
        """These requests left, one entry each."""
        for name in callers:
            caller = self._callers.get(name)
            if caller is not None:
                caller.asking, caller.answered = max(0, caller.asking - 1), now
        self._forget(now)

    def wait_until(self, waiting_rows: int, now: float, limit: float) -> float:
        """The time until which `waiting_rows` rows should wait for more; `now` is not at all.

        It is asked again whenever a request arrives. `limit` is never exceeded.
        """
        alone = self.service(waiting_rows)
        # whoever comes after this batch would have ended shares the next one without any wait
        horizon = min(limit, now + alone)
        room = self._max_rows - waiting_rows
        expected = []
        for time, rows in self._expected(now, horizon):
            room -= rows
            if room < 0:
                break
            expected.append((time, rows))
        later, joined = sum(rows for _, rows in expected), 0
        best, best_makespan = now, alone + self.service(later)
        for time, rows in expected:
            joined, later = joined + rows, later - rows
            makespan = time - now + self.service(waiting_rows + joined) + self.service(later)
            if makespan < best_makespan:
                best, best_makespan = time, makespan
        return best

    def _expected(self, now: float, horizon: float) -> list[tuple[float, int]]:
        """Times and rows of callers who should ask again after `now`, up to `horizon`."""
        times = ((caller.expected(), caller.rows) for caller in self._callers.values())
        return sorted((t, rows) for t, rows in times if t is not None and now < t <= horizon)

    def _forget(self, now: float) -> None:
        gone = [
            name
            for name, caller in self._callers.items()
            if not caller.asking
            and caller.answered is not None
            and now - caller.answered > FORGET_CALLER_S
        ]
        for name in gone:
            del self._callers[name]
