"""What exploration costs: the successes of a policy with and without the noise of training.

    python -m experiments.studies.noise RUN [--checkpoint best] [--episodes 150] [--json]

plays the run's task from the same stored init states, in the environment of its training: the base
policy alone, base + residual, and the latter with noise: that of training, parts of it, and white
noise of the same size. Nothing is probed. Printed are successes, and 95 % intervals (Wilson).
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np
import torch

from experiments.studies.critic_beliefs import env_config_of, networks_of
from experiments.studies.robustness import acting, shown, successes
from pld_ray.algorithm.residual.acting import Actor
from pld_ray.evaluation.play import Act, play_init_states
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.vector_env import InfosPerEnv
from pld_ray.runs.run_dir import RunDir

PARTS = (1.0, 0.5, 0.25)
"""Of the noise of training, by which it is multiplied."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--episodes", type=int, default=150, help="stored init states 0, 1, ...")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--rho", type=float, help="of the noise; by default the run's own")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    args = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower with more
    run = RunDir(args.run)
    config = run.load_config()
    env = InfosPerEnv(create_vector_env(env_config_of(config)))
    actor = Actor(networks_of(config, env.unwrapped, run.checkpoint_named(args.checkpoint)))
    params = config.algorithm
    rho = params.exploration_rho if args.rho is None else args.rho

    def noise(kind: str) -> ExplorationNoise:
        shape = env.num_envs, env.single_action_space.shape[0]
        rng = np.random.default_rng(args.seed)
        return ExplorationNoise(kind, *shape, rng, rho, params.exploration_hold)

    players: dict[str, Act | None] = {"base policy": None, "without noise": acting(actor)}
    for part in PARTS:
        name = f"{part:g} of the noise of training"
        players[name] = exploring(actor, noise(params.exploration_noise), part)
    players["white noise of its size"] = exploring(actor, noise("white"), 1.0)
    states = list(range(args.episodes))
    for name, act in players.items():
        number = successes(play_init_states(env, states, act))
        if args.json:
            row = {"played": name, "successes": number, "episodes": args.episodes}
            print(json.dumps(row), flush=True)
        else:
            print(f"| {name} | {shown(number, args.episodes)} |", flush=True)
    env.close()


def exploring(actor: Actor, noise: ExplorationNoise, part: float) -> Act:
    """Its actions with a part of this noise."""
    return lambda observation: actor.act(observation, part * noise.sample())[0]


if __name__ == "__main__":
    main()
