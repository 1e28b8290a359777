"""Base policy and base + residual where something is otherwise than in training.

    python -m experiments.studies.robustness RUN [--checkpoint best] [--episodes 50] [--json]

plays the run's task of `pld_tabletop` from the same stored init states under each of CONDITIONS
(`envs.disturbed`), once with the base policy alone and once with the residual, both without
exploration. Printed are successes, and 95 % intervals (Wilson).
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from experiments.studies.critic_beliefs import env_config_of, networks_of
from pld_ray.algorithm.residual.acting import Actor
from pld_ray.evaluation.play import Act, EpisodeResult, play_init_states
from pld_ray.rollout.factory import create_vector_env, divided
from pld_ray.rollout.vector_env import InfosPerEnv
from pld_ray.runs.run_dir import RunDir
from pld_ray.statistics import wilson_interval

TRANSLATIONS = (0, 1, 2)
CONDITIONS: dict[str, dict[str, Any]] = {
    "as in training": {},
    "placed 1 cm outside the region": {"displacement": 0.01},
    "placed 2 cm outside the region": {"displacement": 0.02},
    "5 % noise on translations": {"action_noise": 0.05, "noisy_dims": TRANSLATIONS},
    "5 % noise on all dimensions": {"action_noise": 0.05},
    "target seen with 3 mm of noise": {"perception_noise": 0.003},
    "one step of delay": {"delay": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--episodes", type=int, default=50, help="stored init states 0, 1, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a condition")
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower with more
    run = RunDir(args.run)
    config = run.load_config()
    _, vector = divided(env_config_of(config))
    states = list(range(args.episodes))
    for name, disturbance in CONDITIONS.items():
        kwargs = {"task": config.env.task, "seed": args.seed, **disturbance}
        place = {"entry_point": "envs.disturbed:DisturbedEnv", "kwargs": kwargs}
        env = InfosPerEnv(create_vector_env({**vector, **place}))
        actor = Actor(networks_of(config, env.unwrapped, run.checkpoint_named(args.checkpoint)))
        row: dict[str, Any] = {"condition": name}
        row["base"] = successes(play_init_states(env, states))
        row["residual"] = successes(play_init_states(env, states, acting(actor)))
        env.close()
        if args.json:
            print(json.dumps(row | {"episodes": args.episodes}), flush=True)
        else:
            shares = [shown(row[who], args.episodes) for who in ("base", "residual")]
            print(f"| {name} | {' | '.join(shares)} |", flush=True)


def acting(actor: Actor) -> Act:
    """Its actions without exploration."""
    return lambda observation: actor.act(observation)[0]


def successes(results: Mapping[int, EpisodeResult]) -> int:
    """How many of the episodes succeeded."""
    return sum(result.success for result in results.values())


def shown(number: int, episodes: int) -> str:
    """A rate with its interval."""
    low, high = wilson_interval(number, episodes)
    return f"{number / episodes:.0%} ({low:.0%} to {high:.0%})"


if __name__ == "__main__":
    main()
