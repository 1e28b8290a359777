"""What becomes of the base policy's episodes whose target is tilted, when they are played on.

    python -m experiments.studies.toppled [TASK ...] [--episodes 100] [--json]

plays each task of `pld_tabletop` (all five, or those named) from its first stored init states.
`tilted` are the episodes whose target was tilted by more than 60 degrees before their last step,
`lay` those where it was so no more than 2 cm above where it stood, which ends a training episode
with `env.terminate_when_toppled`; `_and_saved` are the successes of each.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from envs.libero import TOPPLED_RISE, TOPPLED_TILT
from envs.observations import ENVIRONMENT_STATE
from envs.pld_tabletop import SUITE, TASKS
from pld_ray.columns import BASE_ACTION
from pld_ray.evaluation.play import play_init_states
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.vector_env import InfosPerEnv

POLICY = {"type": "lerobot", "path": "pld_tabletop_act"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--episodes", type=int, default=100, help="stored init states 0, 1, ...")
    parser.add_argument("--json", action="store_true", help="one JSON object a task")
    args = parser.parse_args()
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}: known are {', '.join(TASKS)}")
    torch.set_num_threads(1)  # networks this small are slower with more
    for task in args.tasks or TASKS:
        row = {"task": task, "episodes": args.episodes, **counts(task, args.episodes)}
        print(json.dumps(row) if args.json else row, flush=True)


def counts(task: str, episodes: int) -> dict[str, int]:
    """How many succeeded, were tilted, lay, and were saved after each."""
    made = create_vector_env({"suite": SUITE, "task": task, "base_policy": POLICY, "num_envs": 1})
    env = InfosPerEnv(made)
    won, tilted, lay = np.zeros((3, episodes), dtype=bool)
    for state in range(episodes):
        poses: list[np.ndarray] = []

        def act(observation: Any, poses: list[np.ndarray] = poses) -> np.ndarray:
            poses.append(observation[ENVIRONMENT_STATE][0])
            return observation[BASE_ACTION]

        won[state] = play_init_states(env, [state], act)[state].success
        tilt, rise = tilt_and_rise(np.array(poses))
        tilted[state] = (tilt > TOPPLED_TILT).any()
        lay[state] = ((tilt > TOPPLED_TILT) & (rise <= TOPPLED_RISE)).any()
    env.close()
    named = {"success": won, "tilted": tilted, "lay": lay}
    saved = {"tilted_and_saved": tilted & won, "lay_and_saved": lay & won}
    return {name: int(which.sum()) for name, which in {**named, **saved}.items()}


def tilt_and_rise(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the target in `SceneReader.environment_state` [T, 24]: radians [T], and metres [T]."""
    x, y, height = states[:, 7], states[:, 8], states[:, 18]
    return np.arccos(np.clip(1.0 - 2.0 * (x**2 + y**2), -1.0, 1.0)), height - height[0]


if __name__ == "__main__":
    main()
