"""Success of a base policy on stored init states, alone and with an oracle's residual."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import envs
from envs.demonstrator import Demonstrator
from envs.experts import Perception
from pld_ray.policies import BasePolicy, ChunkCache

Residual = Callable[[envs.LiberoEnv, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Successes [n] and lengths [n] of n episodes."""

    success: np.ndarray
    length: np.ndarray

    def summary(self) -> dict[str, float]:
        lengths = self.length[self.success]
        return {
            "episodes": len(self.success),
            "success": round(float(self.success.mean()), 3),
            "mean_successful_length": round(float(lengths.mean()), 1) if len(lengths) else -1.0,
            "max_successful_length": int(lengths.max()) if len(lengths) else -1,
        }


def evaluate(
    policy: BasePolicy,
    suite: str,
    task: str,
    init_state_ids: Sequence[int],
    residual: Residual | None = None,
    **options: Any,
) -> Outcome:
    """One episode from each init state; `residual` [7] is added to the base action; clipped.

    `options` are the environment's.
    """
    env = envs.LiberoEnv(suite, task, **options)
    cache = ChunkCache(policy, num_envs=1)
    success, length = [], []
    for init_state_id in init_state_ids:
        observation, _ = env.reset(seed=0, options={"init_state_id": int(init_state_id)})
        cache.reset([0])
        done = truncated = False
        steps = 0
        while not (done or truncated):
            batch = {key: value[None] for key, value in observation.items()}
            action = np.clip(cache.act(batch, [env.task_description])[0], -1.0, 1.0)
            if residual is not None:
                action = np.clip(action + residual(env, action), -1.0, 1.0)
            observation, _, done, truncated, _ = env.step(action)
            steps += 1
        success.append(done)
        length.append(steps)
    env.close()
    return Outcome(np.array(success), np.array(length))


def oracle_residual(env: envs.LiberoEnv, base_action: np.ndarray) -> np.ndarray:
    """A residual [7] within +-1 that leads the hand over the true object until it is lifted.

    It acts on the two translations in the plane; height, rotation, gripper and timing stay the
    base's. So its success says how much of what the base gets wrong a residual can repair.
    """
    delta = np.zeros(7, dtype=np.float32)
    demonstrator = Demonstrator(env, Perception())
    if not demonstrator.is_lifted():
        delta[:2] = np.clip(demonstrator.true_move() - base_action[:2], -1.0, 1.0)
    return delta
