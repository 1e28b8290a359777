"""How often the scripted expert succeeds: ``python -m envs.evaluate_expert --task all``.

Plays each stored init state once and prints one line per setting. Each episode draws from its own
generator, so that a figure does not depend on which other settings are asked for.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import numpy as np

from envs.experts import Perception, PickPlaceExpert
from envs.libero import LiberoEnv
from envs.pld_tabletop import SUITE
from envs.suites import default_task, suite_tasks


@dataclasses.dataclass(frozen=True)
class ExpertScore:
    """Success rate over the episodes and the mean number of steps of the successful ones."""

    episodes: int
    success_rate: float
    mean_steps: float


def play_episode(
    env: LiberoEnv, expert: PickPlaceExpert, init_state_id: int, rng: np.random.Generator
) -> tuple[bool, int]:
    """Success and number of steps of one episode from a stored init state."""
    env.reset(options={"init_state_id": init_state_id})
    expert.reset(rng)
    steps, success, over = 0, False, False
    while not over:
        _, _, success, truncated, _ = env.step(expert.act())
        over = success or truncated
        steps += 1
    return success, steps


def evaluate(
    env: LiberoEnv,
    perception: Perception,
    gain: float = 2.0,
    action_noise: float = 0.0,
    episodes: int = 100,
    seed: int = 0,
) -> ExpertScore:
    """Play the first `episodes` stored init states with an expert that errs as `perception`."""
    expert = PickPlaceExpert(env, gain=gain, perception=perception, action_noise=action_noise)
    results = [
        play_episode(env, expert, i, np.random.default_rng([seed, i])) for i in range(episodes)
    ]
    lengths = [steps for success, steps in results if success]
    return ExpertScore(
        episodes=episodes,
        success_rate=len(lengths) / episodes,
        mean_steps=float(np.mean(lengths)) if lengths else float("nan"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default=SUITE)
    parser.add_argument("--task", help="a task's name or number, or all")
    parser.add_argument("--assets", help="folder of LIBERO's assets")
    parser.add_argument("--episodes", type=int, default=100, help="at most all stored states")
    parser.add_argument("--gain", type=float, default=2.0)
    parser.add_argument("--action-noise", type=float, default=0.0)
    parser.add_argument("--bias-std", type=float, nargs="*", default=[0.0], help="metres")
    parser.add_argument(
        "--scale-error", type=float, nargs="*", default=[0.0], help="0.35 is +35 %%"
    )
    parser.add_argument("--angle", type=float, default=0.0, help="radians")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    all_tasks = suite_tasks(options.suite)
    named = options.task or default_task(options.suite)
    for task in all_tasks if named == "all" else [named]:
        env = LiberoEnv(options.suite, task, assets=options.assets)
        episodes = min(options.episodes, env.num_init_states)
        for bias_std in options.bias_std:
            for scale_error in options.scale_error:
                perception = Perception(scale_error, options.angle, bias_std)
                score = evaluate(
                    env,
                    perception,
                    options.gain,
                    options.action_noise,
                    episodes,
                    options.seed,
                )
                print(
                    f"{env.task_name}: {perception}: success {score.success_rate:.2f} "
                    f"of {score.episodes}, {score.mean_steps:.0f} steps",
                    flush=True,
                )
        env.close()


if __name__ == "__main__":
    main()
