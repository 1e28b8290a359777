"""How close the base-policy pool comes to ideal batching when its callers ask one row at a time.

    python experiments/benchmarks/pool.py --json

The policy takes 50 ms and 2 ms per row, as a large policy on a GPU would, but sleeps, so that two
cores suffice. 32 callers in lock step, each with a client of its own, in a few processes, ask as
soon as they were answered. Ideal is every caller in every batch: 32 rows in 50 + 32 * 2 ms. In the
same run and of the same pool, one caller asks for one row after the other.

Bars: `share_of_ideal` >= 0.85, `vs_one_at_a_time` >= 8, `p95_over_policy` <= 2.5 (95th percentile
of what callers wait, over the policy's time for a batch of all).
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np
import ray

from pld_ray.pool import BasePolicyPool, PoolClient

FIXED_S, PER_ROW_S = 0.050, 0.002
BARS = {"share_of_ideal": 0.85, "vs_one_at_a_time": 8.0, "p95_over_policy": 2.5}


class SleepingPolicy:
    """Zeros, after as long as a large policy would take."""

    action_dim, n_action_steps = 7, 10
    input_features = {"observation.state": (8,)}
    fingerprint = "sleeping"

    def reset(self, env_ids):  # type: ignore[no-untyped-def]
        pass

    def infer(self, observations, tasks, env_ids, seeds=None):  # type: ignore[no-untyped-def]
        time.sleep(FIXED_S + PER_ROW_S * len(tasks))
        return np.zeros((len(tasks), self.n_action_steps, self.action_dim), dtype=np.float32)


@ray.remote(num_cpus=0)
class Callers:
    """Threads of one process, each with its own copy of the client."""

    def ask(self, client: PoolClient, threads: int, seconds: float) -> list[tuple[float, float]]:
        """Start and end (time.time) of every request, by all threads."""
        calls: list[tuple[float, float]] = []
        workers = [
            threading.Thread(target=self._repeat, args=(copy, seconds, calls))
            for copy in (ray.get(ray.put(client)) for _ in range(threads))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return calls

    def _repeat(self, client: PoolClient, seconds: float, calls: list) -> None:
        observations = {"observation.state": np.zeros((1, 8), dtype=np.float32)}
        end = time.time() + seconds
        while (start := time.time()) < end:
            client.infer(observations, ["task"], [0], [0])
            calls.append((start, time.time()))


def rate_and_p95(calls: list[tuple[float, float]], warm_up_s: float) -> tuple[float, float]:
    """Answers per second and 95th percentile of seconds waited, after the warm-up."""
    starts, ends = np.array(sorted(calls)).T
    first, last = starts[0] + warm_up_s, starts[-1]
    counted = (ends > first) & (ends <= last)
    return counted.sum() / (last - first), float(np.percentile((ends - starts)[counted], 95))


def measure(
    callers: int, processes: int, seconds: float, max_wait_ms: float, sockets: bool
) -> dict:
    """One caller, then all; the pool keeps what it learnt, as it would in a run."""
    pool = BasePolicyPool(
        make_policy=SleepingPolicy,
        max_batch_size=callers,
        max_wait_ms=max_wait_ms,
        num_cpus=0,
        sockets=sockets,
    )
    workers = [Callers.remote() for _ in range(processes)]
    shares = [len(part) for part in np.array_split(np.arange(callers), processes)]
    warm_up_s = 0.3 * seconds
    client = pool.client()
    alone = ray.get(workers[0].ask.remote(client, 1, seconds))
    together = ray.get(
        [w.ask.remote(client, share, seconds) for w, share in zip(workers, shares, strict=True)]
    )
    metrics = pool.metrics()
    pool.stop()
    one_rate, one_p95 = rate_and_p95(alone, warm_up_s)
    rate, p95 = rate_and_p95([call for calls in together for call in calls], warm_up_s)
    batch_s = FIXED_S + PER_ROW_S * callers
    return {
        "benchmark": "pool",
        "share_of_ideal": round(rate * batch_s / callers, 3),
        "vs_one_at_a_time": round(rate / one_rate, 2),
        "p95_over_policy": round(p95 / batch_s, 3),
        "bars": BARS,
        "inferences_per_s": round(rate, 1),
        "one_at_a_time_per_s": round(one_rate, 1),
        "p95_ms": round(1e3 * p95, 1),
        "one_at_a_time_p95_ms": round(1e3 * one_p95, 1),
        "batch_sizes": {str(n): c for n, c in sorted(metrics["batch_sizes"].items())},
        "callers": callers,
        "processes": processes,
        "max_wait_ms": max_wait_ms,
        "sockets": sockets,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--max-wait-ms", type=float, default=25.0)
    parser.add_argument("--actor-calls", action="store_true", help="no sockets, for comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    result = measure(
        options.callers,
        options.processes,
        options.seconds,
        options.max_wait_ms,
        sockets=not options.actor_calls,
    )
    ray.shutdown()
    passed = (
        result["share_of_ideal"] >= BARS["share_of_ideal"]
        and result["vs_one_at_a_time"] >= BARS["vs_one_at_a_time"]
        and result["p95_over_policy"] <= BARS["p95_over_policy"]
    )
    print(
        f"{result['callers']} callers: {result['inferences_per_s']} answers/s, "
        f"{result['share_of_ideal']} of ideal, {result['vs_one_at_a_time']} times one at a time "
        f"({result['one_at_a_time_per_s']}/s), p95 {result['p95_ms']} ms = "
        f"{result['p95_over_policy']} of the policy's own time "
        f"(bars {BARS}: {'met' if passed else 'MISSED'})"
    )
    if options.json:
        print(json.dumps(result))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
