"""How close the base-policy pool comes to ideal batching, and what waiting for company brings.

    python experiments/benchmarks/pool.py --json
    python experiments/benchmarks/pool.py --waits 0 5 25 --callers 8 [--replicas 2] [--shipped]

The policy takes 50 ms and 2 ms per row, as a large policy on a GPU would, but sleeps, so that two
cores suffice. 32 callers in lock step, each with a client of its own, in a few processes, ask as
soon as they were answered. Ideal is every caller in every batch: 32 rows in 50 + 32 * 2 ms. In the
same run and of the same pool, one caller asks for one row after the other.

Bars: `share_of_ideal` >= 0.85, `vs_one_at_a_time` >= 8, `p95_over_policy` <= 2.5 (95th percentile
of what callers wait, over the policy's time for a batch of all).

`--waits` compares values of `policy.max_wait_ms` in one run, by turns and repeated: every caller
plays its chunk in an environment of 5 ms a step (sleeping, 10 % jitter) before it asks again. With
`--shipped` the policy is the shipped ACT.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np
import ray

from pld_ray.policies import Prediction
from pld_ray.pool import BasePolicyPool, PoolClient, PoolSpec

FIXED_S, PER_ROW_S, STEP_S = 0.050, 0.002, 0.005
BARS = {"share_of_ideal": 0.85, "vs_one_at_a_time": 8.0, "p95_over_policy": 2.5}
SLEEPING = {"make_policy": "pool:SleepingPolicy", "num_cpus_per_replica": 0.0}

Calls = list[tuple[float, float]]
"""Start and end (time.time) of every request."""


class SleepingPolicy:
    """Zeros, after as long as a large policy would take."""

    action_dim, n_action_steps = 7, 10
    input_features = {"observation.state": (8,)}
    fingerprint = "sleeping"

    def infer(self, observations, tasks, env_ids, seeds=None):  # type: ignore[no-untyped-def]
        time.sleep(FIXED_S + PER_ROW_S * len(tasks))
        shape = (len(tasks), self.n_action_steps, self.action_dim)
        return Prediction(np.zeros(shape, dtype=np.float32))


@ray.remote(num_cpus=0)
class Callers:
    """Threads of one process, each with its own copy of the client."""

    def ask(self, client: PoolClient, threads: int, seconds: float, step_s: float) -> Calls:
        """What all threads asked for."""
        calls: Calls = []
        workers = [
            threading.Thread(target=self._repeat, args=(copy, seconds, step_s, calls))
            for copy in (ray.get(ray.put(client)) for _ in range(threads))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return calls

    def _repeat(self, client: PoolClient, seconds: float, step_s: float, calls: Calls) -> None:
        observations = {
            key: np.zeros((1, *shape), dtype=np.float32)
            for key, shape in client.input_features.items()
        }
        rng = np.random.default_rng()
        end = time.time() + seconds
        while (start := time.time()) < end:
            client.infer(observations, ["task"], [0], [0])
            calls.append((start, time.time()))
            if step_s:
                time.sleep(step_s * rng.uniform(0.9, 1.1, client.n_action_steps).sum())


def ask_all(
    workers: list, client: PoolClient, callers: int, seconds: float, step_s: float = 0.0
) -> Calls:
    """All callers at once, shared among the processes."""
    shares = [len(part) for part in np.array_split(np.arange(callers), len(workers))]
    asked = [
        worker.ask.remote(client, share, seconds, step_s)
        for worker, share in zip(workers, shares, strict=True)
    ]
    return [call for calls in ray.get(asked) for call in calls]


def rate_and_p95(calls: Calls, warm_up_s: float) -> tuple[float, float]:
    """Answers per second and 95th percentile of seconds waited, after the warm-up."""
    starts, ends = np.array(sorted(calls)).T
    first, last = starts[0] + warm_up_s, starts[-1]
    counted = (ends > first) & (ends <= last)
    return counted.sum() / (last - first), float(np.percentile((ends - starts)[counted], 95))


def measure(workers: list, callers: int, seconds: float, max_wait_ms: float) -> dict:
    """One caller, then all in lock step."""
    pool = BasePolicyPool(PoolSpec(max_batch_size=callers, max_wait_ms=max_wait_ms, **SLEEPING))
    alone = ask_all(workers[:1], pool.client(), 1, seconds)
    together = ask_all(workers, pool.client(), callers, seconds)
    metrics = pool.metrics()
    pool.stop()
    one_rate, one_p95 = rate_and_p95(alone, 0.3 * seconds)
    rate, p95 = rate_and_p95(together, 0.3 * seconds)
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
        "processes": len(workers),
        "max_wait_ms": max_wait_ms,
    }


def compare_waits(workers: list, options: argparse.Namespace) -> dict:
    """Chunks per second with each wait, as ratios to the first, by turns."""
    policy = {"num_cpus_per_replica": 0.0} if options.shipped else SLEEPING
    pools = {
        wait: BasePolicyPool(PoolSpec(replicas=options.replicas, max_wait_ms=wait, **policy))
        for wait in options.waits
    }
    rates: dict[float, list[float]] = {wait: [] for wait in pools}
    p95s: dict[float, list[float]] = {wait: [] for wait in pools}
    for turn in range(options.repeats):
        for wait in options.waits[:: -1 if turn % 2 else 1]:
            asked = ask_all(workers, pools[wait].client(), options.callers, options.seconds, STEP_S)
            rate, p95 = rate_and_p95(asked, 0.3 * options.seconds)
            rates[wait].append(rate)
            p95s[wait].append(1e3 * p95)
    rows = {}
    for wait, pool in pools.items():
        ratios = np.divide(rates[wait], rates[options.waits[0]])
        metrics = pool.metrics()
        pool.stop()
        rows[f"{wait:g}"] = {
            "chunks_per_s": round(float(np.median(rates[wait])), 1),
            "ratio": [round(float(q), 3) for q in np.percentile(ratios, [50, 0, 100])],
            "p95_ms": round(float(np.median(p95s[wait])), 1),
            "rows_per_batch": round(metrics["rows"] / metrics["batches"], 2),
        }
    asked = {"callers": options.callers, "replicas": options.replicas, "shipped": options.shipped}
    return {"benchmark": "pool_waits", "waits_ms": rows, **asked}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--max-wait-ms", type=float, default=PoolSpec.max_wait_ms)
    parser.add_argument("--waits", type=float, nargs="+", help="milliseconds to compare")
    parser.add_argument("--replicas", type=int, default=1, help="of --waits")
    parser.add_argument("--repeats", type=int, default=5, help="of --waits")
    parser.add_argument("--shipped", action="store_true", help="--waits with the shipped policy")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    workers = [Callers.remote() for _ in range(options.processes)]
    if options.waits:
        print(json.dumps(compare_waits(workers, options)))
        ray.shutdown()
        return 0
    result = measure(workers, options.callers, options.seconds, options.max_wait_ms)
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
