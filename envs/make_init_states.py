"""Write the stored init states of `pld_tabletop`: ``python -m envs.make_init_states``.

A state is kept when, after the settling steps of a reset with a sampled placement, the target
stands upright and at rest. The same seed writes the same states.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs.init_states import save_init_states
from envs.libero import LiberoEnv
from envs.pld_tabletop import SUITE, TASKS, TASKS_DIR

NUM_STATES = 150  # 100 held for evaluation, 50 to choose a checkpoint by
SEED = 20
MAX_TILT = 0.05  # radians
MAX_SPEED = 0.01  # any joint velocity, m/s or rad/s


def sample_init_states(task: str, count: int, seed: int) -> np.ndarray:
    """`count` settled states [count, 1 + nq + nv] float64 of a `pld_tabletop` task.

    Raises:
        RuntimeError: fewer than one placement in ten settles; the task's regions are wrong.
    """
    env = LiberoEnv(SUITE, task)
    states: list[np.ndarray] = []
    env.reset(seed=seed)
    for _ in range(10 * count + 10):
        if env.is_settled(MAX_TILT, MAX_SPEED):
            state = env.flat_state()
            state[0] = 0.0  # the clock starts with the episode
            states.append(state)
            if len(states) == count:
                env.close()
                return np.stack(states)
        env.reset()
    raise RuntimeError(f"{task}: only {len(states)} of {10 * count + 10} placements settled.")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=NUM_STATES, help="states per task")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=TASKS_DIR, help="folder to write to")
    options = parser.parse_args(arguments)
    for index, task in enumerate(TASKS):
        states = sample_init_states(task, options.count, options.seed + index)
        path = options.out / f"{task}.pruned_init"
        save_init_states(path, states)
        print(f"{path}: {states.shape[0]} states of {states.shape[1]} numbers")


if __name__ == "__main__":
    main()
