r"""What a person at the robot costs, and what they bring.

    python experiments/benchmarks/human.py --json
    python experiments/benchmarks/human.py --json --seconds=0 --helped RUN... --alone RUN... \
        --demonstrated STEPS...

- `stepping_overhead_ms` <= 0.1: time that asking a person adds to one step of an environment, with
  hands off. A `ScriptedPerson` at a `PointEnv` and nobody take turns in one process, so that a busy
  neighbour slows down both; the median over the blocks.
- `late_step_share` <= 0.01: of an environment in a process of its own at 20 Hz, whose steps take
  5 ms, the steps that began late while a learner updated beside it without a pause, on the same
  machine; `late_learner_updates_per_s` says how busy it was. Neighbours on the machine count too.
- of finished runs of `pld-ray train` with a person and without, one of each for every seed, the
  median over seeds: `intervention_share_first` > 0.3 and `intervention_share_last` < 0.05, of the
  first and last tenth of the steps after the collection; `autonomous_success` >= 0.95 on the held
  states; `steps_to_90_ratio` <= 0.6: environment steps until the validation states are solved in
  90 %, with the person (demonstrations included) over without, null where a run never gets there.
- of runs from scratch on `lift_the_can` (`--lift`): `rlpd_lift_success` >= 0.9 on the held states.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from plain import PLAIN

from envs.point import PointEnv
from pld_ray.config import InterventionConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.policies import NoBasePolicy
from pld_ray.rllib import ResidualSACConfig
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.scripted_person import ScriptedPerson, make_helper
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

REACHED = 0.9
CONTROL_HZ = 20.0
OVERHEAD_MS = 0.1


class Still:
    """An actor that does nothing, so that what remains is the machinery."""

    residual_scale = 1.0

    def act(self, observation: Any, noise: Any = None, forced: Any = None) -> tuple[Any, None]:
        """The base action."""
        return observation["base_action"].copy(), None


def open_streams(with_person: bool, seed: int) -> tuple[InfosPerEnv, Streams]:
    """One environment of 200 steps, and its open episode."""
    vector = BaseActionVectorEnv([PointEnv(episode_length=200)], NoBasePolicy(7))
    env = InfosPerEnv(vector)
    observation, _ = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    person = None
    if with_person:
        options = InterventionConfig(device="scripted", patience_steps=10**6)
        person = ScriptedPerson(make_helper(vector.envs), 1, options, rng)
    actor: Any = Still()
    space = vector.group.action_space
    params = ResidualSACParams(use_probing=False)
    return env, Streams(
        observation, space, params, actor, rng, False, intervenor=person, env=vector
    )


def stepping_overhead(blocks: int, steps: int, seed: int = 0) -> float:
    """Milliseconds that a person with hands off adds to one step."""
    request = SampleRequest(1, intervene=True)
    contestants = {person: open_streams(person, seed) for person in (False, True)}
    added = []
    for _ in range(blocks):
        taken = {}
        for person, (env, streams) in contestants.items():
            finished = FinishedEpisodes()
            began = time.perf_counter()
            for _ in range(steps):
                streams.step(env.step, request, 0, finished)
            taken[person] = time.perf_counter() - began
        added.append(1000 * (taken[True] - taken[False]) / steps)
    return round(statistics.median(added[1:]), 4)


def late_steps(seconds: float) -> dict[str, float]:
    """Late steps at `CONTROL_HZ` beside a learner that always has updates to make."""
    config = (
        ResidualSACConfig()
        .environment(env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"step_s": 0.005}})
        .base_policy(type="none")
        .env_runners(num_env_runners=1)
        .training(
            **PLAIN | {"utd": 50},
            offline_episodes=0,
            warmup_steps=200,
            warmup_actions="random",
            use_probing=False,
            compose_base=False,
            actor_delay_updates=0,
            sampling="asynchronous",
            control_hz=CONTROL_HZ,
        )
        .debugging(log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 20
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="error")
    algorithm = config.build_algo()
    try:
        while not algorithm.updates:
            algorithm.train()
        progress, began = algorithm.progress, time.monotonic()
        before = progress.control_steps, progress.late_steps, progress.updates
        while time.monotonic() - began < seconds:
            algorithm.train()
        took = time.monotonic() - began
        steps = progress.control_steps - before[0]
        return {
            "late_step_share": round((progress.late_steps - before[1]) / steps, 4),
            "late_steps_of": steps,
            "late_learner_updates_per_s": round((progress.updates - before[2]) / took, 1),
        }
    finally:
        algorithm.stop()
        ray.shutdown()


def rows_of(run: pathlib.Path) -> list[dict[str, Any]]:
    """The metrics of a run."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps_to(rows: list[dict[str, Any]], key: str) -> int | None:
    """Environment steps of the first evaluation that reaches the threshold."""
    reached = [row["env_steps"] for row in rows if row.get(key, 0.0) >= REACHED]
    return min(reached, default=None)


def of_helped(run: pathlib.Path) -> dict[str, float | None]:
    """The figures of one run with a person."""
    shares = [
        row["train/intervention_share"]
        for row in rows_of(run)
        if row.get("train/intervention_share") is not None
    ]
    tenth = max(1, len(shares) // 10)
    return {
        "intervention_share_first": statistics.fmean(shares[:tenth]) if shares else None,
        "intervention_share_last": statistics.fmean(shares[-tenth:]) if shares else None,
        "autonomous_success": held_success(run),
    }


def held_success(run: pathlib.Path) -> float | None:
    """On the held states, at the end."""
    return json.loads((run / "summary.json").read_text()).get("residual_success")


def ratio(helped: pathlib.Path, alone: pathlib.Path, demonstrated: int) -> float | None:
    """Steps that the helped run needed, its demonstrations included, over those of the other."""
    to = [steps_to(rows_of(run), "eval/residual_success") for run in (helped, alone)]
    return (to[0] + demonstrated) / to[1] if to[0] and to[1] else None


def medians(runs: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Of each figure over the seeds; None where one of them has none."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return {
        name: None if None in values else round(statistics.median(values), 4)  # type: ignore[type-var]
        for name, values in columns.items()
    }


def compare(
    helped: Sequence[pathlib.Path],
    alone: Sequence[pathlib.Path],
    lift: Sequence[pathlib.Path],
    demonstrated: Sequence[int],
) -> dict[str, float | None]:
    """The figures of finished runs, those that can be told.

    Args:
        helped, alone: with a person and without, in the order of their seeds.
        lift: from scratch, on `lift_the_can`.
        demonstrated: environment steps of the demonstrations of each helped run.
    """
    found: dict[str, float | None] = {}
    if helped:
        found |= medians([of_helped(run) for run in helped]) | {"seeds": len(helped)}
    if helped and len(alone) == len(helped):
        pairs = zip(helped, alone, demonstrated or [0] * len(helped), strict=True)
        found |= medians([{"steps_to_90_ratio": ratio(*pair)} for pair in pairs])
    if lift:
        found |= medians([{"rlpd_lift_success": held_success(run)} for run in lift])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of steps at the control rate; 0: runs alone"
    )
    folders: Any = {"type": pathlib.Path, "nargs": "+", "default": []}
    parser.add_argument("--helped", help="runs with a person", **folders)
    parser.add_argument("--alone", help="the same runs without", **folders)
    parser.add_argument("--lift", help="runs from scratch on lift_the_can", **folders)
    parser.add_argument(
        "--demonstrated", type=int, nargs="+", default=[],
        help="environment steps of the demonstrations of each of --helped",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measured: dict[str, Any] = compare(
        arguments.helped, arguments.alone, arguments.lift, arguments.demonstrated
    )
    if arguments.seconds:
        measured["stepping_overhead_ms"] = stepping_overhead(arguments.blocks, arguments.steps)
        measured |= late_steps(arguments.seconds)
    if arguments.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:26}{value}")


if __name__ == "__main__":
    main()
