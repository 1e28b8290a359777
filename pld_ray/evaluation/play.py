"""Episodes from stored init states, one of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pld_ray.rollout.episode import EpisodeResult
from pld_ray.rollout.vector_env import BASE_ACTION, Observation

Act = Callable[[Observation], np.ndarray]
OnStep = Callable[[int, int], None]


def play_init_states(
    env: Any, init_state_ids: Sequence[int], act: Act | None = None, on_step: OnStep | None = None
) -> dict[int, EpisodeResult]:
    """Play one episode from each init state; an episode that its simulator fails is played again.

    Args:
        env: a `BaseActionVectorEnv` whose infos are a list, one dict per environment.
        init_state_ids: ids of stored init states.
        act: observations -> actions [N, A]; None plays the base policy.
        on_step: called with (environment, init state) after each step of a wanted episode.

    Returns:
        Init state -> result.
    """
    vector = env.unwrapped
    vector.set_init_states(init_state_ids)
    observation, infos = env.reset(seed=0)
    current = [int(info["init_state_id"]) for info in infos]
    steps = np.zeros(env.num_envs, dtype=np.int64)
    returns = np.zeros(env.num_envs)
    done = np.zeros(env.num_envs, dtype=bool)
    results: dict[int, EpisodeResult] = {}
    while len(results) < len(set(init_state_ids)):
        action = observation[BASE_ACTION] if act is None else act(observation)
        observation, reward, terminated, truncated, infos = env.step(action)
        for i in range(env.num_envs):
            if done[i]:  # this was the reset step
                current[i] = int(infos[i]["init_state_id"])
                steps[i], returns[i] = 0, 0.0
                continue
            if "env_failure" in infos[i]:
                continue
            steps[i] += 1
            returns[i] += reward[i]
            wanted = current[i] >= 0 and current[i] not in results
            if wanted and on_step is not None:
                on_step(i, current[i])
            if wanted and (terminated[i] or truncated[i]):
                results[current[i]] = EpisodeResult(
                    success=bool(infos[i]["is_success"]),
                    length=int(steps[i]),
                    sum_reward=float(returns[i]),
                    init_state_id=current[i],
                )
        done = (terminated | truncated) & ~done
    return results
