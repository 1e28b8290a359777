"""Episodes from stored init states, one of each, and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pld_ray.columns import BASE_ACTION
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.rollout.vector_env import Observation

Act = Callable[[Observation], np.ndarray]
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class EpisodeResult:
    """What one evaluation episode came to."""

    success: bool
    sum_reward: float
    """Undiscounted return."""
    max_reward: float
    length: int
    """Environment steps."""
    init_state_id: int = -1
    """Stored initial state; -1 when the placement was sampled."""
    seed: int | None = None
    task_group: str = "pld_tabletop"
    """Suite."""
    task_id: int = 0
    """Index of the task in its suite."""
    video_path: str | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> EpisodeResult:
        """From a dict of its fields; older releases wrote others too, and no `max_reward`."""
        known = {f.name: row[f.name] for f in fields(cls) if f.name in row}
        return cls(**{"max_reward": row["sum_reward"], **known})


def check_init_states(config: TrainConfig | FinetuneConfig, env: Any, task: str) -> None:
    """Refuse to evaluate on more init states than a task has.

    Raises:
        ConfigError: naming the settings and the task.
    """
    needed = config.evaluation.held_states + config.evaluation.validation_states
    if needed > env.num_init_states:
        raise ConfigError(
            f"evaluation.held_states + evaluation.validation_states = {needed}, but {task} has "
            f"{env.num_init_states} stored init states"
        )


def success_rate(episodes: Sequence[EpisodeResult]) -> float:
    """Share of successful episodes, in [0, 1]."""
    return sum(episode.success for episode in episodes) / len(episodes)


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
    returns, highest = np.zeros(env.num_envs), np.full(env.num_envs, -np.inf)
    done = np.zeros(env.num_envs, dtype=bool)
    results: dict[int, EpisodeResult] = {}
    while len(results) < len(set(init_state_ids)):
        action = observation[BASE_ACTION] if act is None else act(observation)
        observation, reward, terminated, truncated, infos = env.step(action)
        for i in range(env.num_envs):
            if done[i]:  # this was the reset step
                current[i] = int(infos[i]["init_state_id"])
                steps[i], returns[i], highest[i] = 0, 0.0, -np.inf
                continue
            if "env_failure" in infos[i]:
                continue
            steps[i] += 1
            returns[i] += reward[i]
            highest[i] = max(highest[i], reward[i])
            wanted = current[i] >= 0 and current[i] not in results
            if wanted and on_step is not None:
                on_step(i, current[i])
            if wanted and (terminated[i] or truncated[i]):
                results[current[i]] = EpisodeResult(
                    success=bool(infos[i]["is_success"]),
                    sum_reward=float(returns[i]),
                    max_reward=float(highest[i]),
                    length=int(steps[i]),
                    init_state_id=current[i],
                )
        done = (terminated | truncated) & ~done
    return results
