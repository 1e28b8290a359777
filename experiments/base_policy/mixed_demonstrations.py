"""Record demonstrations of which some see the object where it is and some beside it.

    python experiments/base_policy/mixed_demonstrations.py --dataset DIR [--episodes 200]

Each episode's demonstrator errs or not, as drawn, and its arm is pushed with a strength of its own;
what is recorded is what was executed, and failures are kept. A third of the demonstrators see
exactly, so that a flow that clones all episodes solves about half of the held states; cloned from
successes alone it solves nearly all of them, which leaves critics nothing to show. With --cameras
what is recorded is what a robot has: its own state, and pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

import envs
from envs.demonstrator import Demonstrator
from envs.experts import Perception
from pld_ray.columns import Columns
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.rollout.episode import EpisodeBuilder

FPS = 20
CORRELATION = 0.9  # of consecutive pushes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the dataset")
    parser.add_argument("--suite", default="pld_tabletop")
    parser.add_argument("--task", default="pick_up_the_can_and_place_it_in_the_bin")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--perfect", type=float, default=0.35, help="share that sees exactly")
    parser.add_argument("--scale-error", type=float, default=0.43, help="of the others")
    parser.add_argument("--push", type=float, default=0.3, help="greatest strength of the pushes")
    parser.add_argument(
        "--cameras", nargs="*", default=[], help="image, image2; in place of environment_state"
    )
    parser.add_argument("--image-size", type=int, default=64, help="pixels")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    env = envs.LiberoEnv(
        arguments.suite,
        arguments.task,
        cameras=arguments.cameras,
        image_size=arguments.image_size,
        environment_state=not arguments.cameras,
    )
    about = {k: v for k, v in vars(arguments).items() if k not in ("dataset", "episodes")}
    recording = Recording(env.task_description, FPS, "libero", about=about)
    with contextlib.closing(env), EpisodeWriter(arguments.dataset, recording) as writer:
        try:
            record(env, writer, arguments)
        except KeyboardInterrupt:
            sys.exit(f"{len(writer)} episodes are kept: the same command goes on")
        writer.finish()
    print(f"{arguments.dataset}: {sum(writer.successes)} of {len(writer)} succeed")


def record(env: envs.LiberoEnv, writer: EpisodeWriter, arguments: argparse.Namespace) -> None:
    """Episodes until there are as many as were asked for; each of its own draws."""
    if len(writer) > arguments.episodes:
        sys.exit(f"{arguments.dataset} holds {len(writer)} episodes: ask for no fewer (--episodes)")
    while len(writer) < arguments.episodes:
        rng = np.random.default_rng([arguments.seed, len(writer)])
        perfect = bool(rng.random() < arguments.perfect)
        perception = Perception(scale_error=0.0 if perfect else arguments.scale_error)
        columns = play(env, Demonstrator(env, perception), arguments.push, rng)
        writer.add(columns, {"perfect": perfect})
        if len(writer) % 20 == 0:
            print(f"{len(writer)} episodes, {sum(writer.successes)} successes", flush=True)


def play(
    env: envs.LiberoEnv, demonstrator: Demonstrator, push: float, rng: np.random.Generator
) -> Columns:
    """One episode's columns [L + 1, ...]."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    strength, pushed = push * rng.random(), np.zeros(3)
    builder = EpisodeBuilder()
    terminated = truncated = False
    info: dict = {}
    while not (terminated or truncated):
        pushed = CORRELATION * pushed + np.sqrt(1 - CORRELATION**2) * rng.standard_normal(3)
        action = demonstrator.act()
        action[:3] = np.clip(action[:3] + strength * pushed, -1.0, 1.0)
        before = {key: value[None] for key, value in observation.items()}
        observation, reward, terminated, truncated, info = env.step(action)
        builder.add(before, 0, action, reward, terminated, truncated, residual_scale=0.0)
    after = {key: value[None] for key, value in observation.items()}
    return builder.finish(after, 0, bool(info["is_success"]))


if __name__ == "__main__":
    main()
