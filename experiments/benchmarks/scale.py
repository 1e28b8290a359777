"""Many runners on one machine: does the rollout plane keep up with its simulators?

The environment sleeps for the time that a simulator would need, so that the machinery around it is
what is measured. All figures are ratios of rates from this run; rates are in environment steps/s.

    python experiments/benchmarks/scale.py [--parts scaling] [--warm_s 30] [--json]

- `scaling_32`: rate of 32 asynchronous runners, learner updating, over 32 x the rate of one.
- `driver_cpu_share`: CPU seconds of the driver per second meanwhile, in cores.
- `runner_rss_mb`, `runner_pss_mb`: mean memory of a runner's process; PSS shares out shared pages.
- `runner_overhead`: share of a runner's time that is not spent in the environment.
- `async_over_sync`: asynchronous over synchronous rate, update time equal to sample time;
  `pipelined_over_sync` is the default mode's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import ray
from plain import PLAIN

from envs.point import PointEnv
from pld_ray.rllib.algorithm import ResidualSAC
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.messages import SampleRequest

STEP_S = 0.02
EPISODE_LENGTH = 100
PARTS = ("overhead", "modes", "scaling")


def config(num_env_runners: int, num_learners: int = 1, **training: Any) -> ResidualSACConfig:
    """State rows of LIBERO's size, layers of the default size, no base policy."""
    kwargs = {"step_s": STEP_S, "episode_length": EPISODE_LENGTH}
    built = (
        ResidualSACConfig()
        .environment(env_config={"entry_point": "envs.point:PointEnv", "kwargs": kwargs})
        .base_policy(type="none")
        .env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.01)
        .learners(num_learners=num_learners, num_cpus_per_learner=0.1)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 0,
                "warmup_steps": 200,
                "warmup_actions": "random",
                "use_probing": False,
                "actor_delay_updates": 0,
                "sampling": "asynchronous",
                **training,
            }
        )
        .debugging(seed=0, log_level="ERROR")
    )
    built.min_sample_timesteps_per_iteration = 1
    return built


def measure_overhead(steps: int) -> float:
    """Share of a runner's time outside the environment, in one process."""
    algorithm = config(0, num_learners=0, sampling="synchronous").build_algo()
    algorithm.initialize()
    runner = algorithm.env_runner_group.local_env_runner
    runner.sample_episodes(SampleRequest(50))
    env = PointEnv(EPISODE_LENGTH, STEP_S)
    env.reset(seed=0)
    ours = raw = 0.0
    for _ in range(4):  # in turns, so that a busy neighbour disturbs both
        clock = time.perf_counter()
        stepped = runner.sample_episodes(SampleRequest(steps // 4)).num_env_steps
        ours += (time.perf_counter() - clock) / stepped
        clock = time.perf_counter()
        for _ in range(steps // 4):
            env.step(env.action_space.low)
        raw += (time.perf_counter() - clock) / (steps // 4)
    algorithm.stop()
    return 1.0 - raw / ours


def measure_rate(algorithm: ResidualSAC, seconds: float, warm_s: float) -> dict[str, float]:
    """Environment steps/s, updates/s and the driver's CPU share over some seconds."""
    algorithm.initialize()
    train_for(algorithm, warm_s)
    steps, updates = algorithm.env_steps, algorithm.updates
    clock, cpu = time.monotonic(), time.process_time()
    train_for(algorithm, seconds)
    wall = time.monotonic() - clock
    stepped, updated = algorithm.env_steps - steps, algorithm.updates - updates
    return {
        # what was stepped ahead of the learner is not counted
        "env_steps_per_s": min(stepped, updated / algorithm.config.utd) / wall,
        "updates_per_s": updated / wall,
        "driver_cpu_share": (time.process_time() - cpu) / wall,
    }


def train_for(algorithm: ResidualSAC, seconds: float) -> None:
    """Until the first batch that arrives after so many seconds: batches are not cut in two."""
    end = time.monotonic() + seconds
    arrived = algorithm.env_steps
    while time.monotonic() < end or algorithm.env_steps == arrived:
        arrived = algorithm.env_steps
        algorithm.training_step()


def memory_mb(pids: list[int]) -> dict[str, float]:
    """Mean resident and proportional memory of these processes."""
    sums = {"Rss": 0.0, "Pss": 0.0}
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, kilobytes = line.split()[:2]
            if name.rstrip(":") in sums:
                sums[name.rstrip(":")] += float(kilobytes) / 1000 / len(pids)
    return {"runner_rss_mb": sums["Rss"], "runner_pss_mb": sums["Pss"]}


def measure_scaling(runners: int, seconds: float, warm_s: float) -> dict[str, float]:
    """One runner, then many, with a learner that updates at the same pace in both."""
    one = config(1, utd=0.02 * runners).build_algo()
    alone = measure_rate(one, seconds, warm_s)
    one.stop()
    many = config(runners, utd=0.02).build_algo()
    together = measure_rate(many, seconds, warm_s)
    pids = many.env_runner_group.foreach_env_runner(
        lambda runner: os.getpid(), local_env_runner=False
    )
    memory = memory_mb(pids)
    many.stop()
    return {
        f"scaling_{runners}": together["env_steps_per_s"] / (runners * alone["env_steps_per_s"]),
        "driver_cpu_share": together["driver_cpu_share"],
        "env_steps_per_s_1": alone["env_steps_per_s"],
        f"env_steps_per_s_{runners}": together["env_steps_per_s"],
        "updates_per_s": together["updates_per_s"],
        **memory,
    }


def measure_modes(
    seconds: float, warm_s: float, runners: int = 2, sample_steps: int = 100
) -> dict[str, float]:
    """Rates of the three modes; updates per step are set so that both halves take as long."""
    sample_s = sample_steps / runners * STEP_S
    probe = config(runners, sampling="synchronous", sample_steps=sample_steps).build_algo()
    probe.initialize()
    while probe.updates == 0:
        probe.training_step()
    clock = time.monotonic()
    probe.learners.train(200, probe.residual_scale)
    update_s = (time.monotonic() - clock) / 200
    probe.stop()
    utd = sample_s / update_s / sample_steps
    rates = {}
    for mode in ("synchronous", "pipelined", "asynchronous"):
        algorithm = config(runners, sampling=mode, utd=utd, sample_steps=sample_steps).build_algo()
        rates[mode] = measure_rate(algorithm, seconds, warm_s)["env_steps_per_s"]
        algorithm.stop()
    return {
        "async_over_sync": rates["asynchronous"] / rates["synchronous"],
        "pipelined_over_sync": rates["pipelined"] / rates["synchronous"],
        "utd_of_equal_times": utd,
        **{f"env_steps_per_s_{mode}": rate for mode, rate in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runners", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--warm_s",
        type=float,
        default=30.0,
        help="seconds before the rates are taken: at first all episodes end together, and updates "
        "lag behind",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # Ray's warnings about so many processes
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        figures = {}
        times = arguments.seconds, arguments.warm_s
        if "overhead" in arguments.parts:
            figures["runner_overhead"] = measure_overhead(400)
        if "modes" in arguments.parts:
            figures |= measure_modes(*times)
        if "scaling" in arguments.parts:
            figures |= measure_scaling(arguments.runners, *times)
        ray.shutdown()
    if arguments.json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")


if __name__ == "__main__":
    main()
