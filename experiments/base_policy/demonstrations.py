"""Record the demonstrator as a LeRobotDataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import envs
from envs.demonstrator import Demonstrator
from envs.experts import Perception

STATE, ENVIRONMENT_STATE, ACTION = "observation.state", "observation.environment_state", "action"
FPS = 20
REPO_ID = "local/demonstrations"


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What pushes the arm off the commanded course, on the three translations.

    The recorded action is the command, so the imitator sees how the demonstrator answers states
    around its own course: those into which a residual will later lead it.

    Attributes:
        std: of the push, in action units; each episode draws its own strength from [0, std].
        correlation: of consecutive pushes, AR(1).
        helped: fraction of episodes in which, besides, a helper's hand leads the arm onto the true
            place of the object while the demonstrator goes on commanding what it believes.
    """

    std: float = 0.6
    correlation: float = 0.9
    helped: float = 0.5


def record(
    root: Path,
    suite: str,
    tasks: Sequence[str],
    episodes_per_task: int,
    perception: Perception,
    disturbance: Disturbance,
    seed: int,
    within: float = float("inf"),
) -> dict[str, dict[str, int]]:
    """Write demonstrations of `tasks` to a new LeRobotDataset at `root`, failures too.

    Args:
        within: metres; of placements whose target is further from the middle of its region
            nothing is demonstrated.

    Returns:
        task name -> number of episodes, frames and successes.
    """
    spaces = envs.LiberoEnv(suite, tasks[0]).observation_space
    dataset = LeRobotDataset.create(
        repo_id=REPO_ID,
        root=root,
        fps=FPS,
        robot_type="panda",
        use_videos=False,
        features={
            **{
                key: {"dtype": "float32", "shape": spaces[key].shape, "names": None}
                for key in (STATE, ENVIRONMENT_STATE)
            },
            ACTION: {"dtype": "float32", "shape": (7,), "names": None},
        },
    )
    summary = {}
    for task in tasks:
        env = envs.LiberoEnv(suite, task)
        rng = np.random.default_rng([seed, env.task_id])
        frames, successes = 0, 0
        for episode in range(episodes_per_task):
            # a seed for the first reset only: later placements continue its stream
            env_seed = int(rng.integers(2**31)) if episode == 0 else None
            length, success = _record_episode(
                dataset, env, Demonstrator(env, perception), disturbance, rng, env_seed, within
            )
            frames, successes = frames + length, successes + success
        env.close()
        summary[task] = {"episodes": episodes_per_task, "frames": frames, "successes": successes}
        print(f"{task}: {successes}/{episodes_per_task} demonstrations succeed", flush=True)
    dataset.finalize()
    return summary


def _record_episode(
    dataset: LeRobotDataset,
    env: envs.LiberoEnv,
    demonstrator: Demonstrator,
    disturbance: Disturbance,
    rng: np.random.Generator,
    env_seed: int | None,
    within: float,
) -> tuple[int, bool]:
    """One demonstration; its length and whether it succeeded."""
    length, success = 0, False
    for step in demonstrate(env, demonstrator, disturbance, rng, env_seed, within):
        frame = {**step.observation, ACTION: step.command, "task": env.task_description}
        dataset.add_frame(frame)
        length, success = length + 1, step.terminated
    dataset.save_episode()
    return length, success


class Step(NamedTuple):
    """One step of a demonstration: what was seen, what was commanded, what came of it."""

    observation: dict[str, np.ndarray]
    command: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    next_observation: dict[str, np.ndarray]


def demonstrate(
    env: envs.LiberoEnv,
    demonstrator: Demonstrator,
    disturbance: Disturbance,
    rng: np.random.Generator,
    env_seed: int | None,
    within: float = float("inf"),
) -> Iterator[Step]:
    """The steps of one disturbed demonstration, from a reset to its end."""
    observation, _ = env.reset(seed=env_seed)
    while off_middle(env) > within:
        observation, _ = env.reset()
    strength = disturbance.std * rng.random()
    helped = rng.random() < disturbance.helped
    rho = disturbance.correlation
    push = np.zeros(3)
    terminated = truncated = False
    while not (terminated or truncated):
        command = demonstrator.act()
        push = rho * push + np.sqrt(1 - rho**2) * rng.standard_normal(3)
        executed = command.copy()
        if helped and not demonstrator.is_lifted():
            executed[:2] = demonstrator.true_move()
        executed[:3] = np.clip(executed[:3] + strength * push, -1.0, 1.0)
        before = observation
        observation, reward, terminated, truncated, _ = env.step(executed)
        yield Step(before, command, float(reward), terminated, truncated, observation)


def off_middle(env: envs.LiberoEnv) -> float:
    """Metres in the plane from the target to the middle of where it may start."""
    view = env.expert_view()
    return float(np.linalg.norm(view["target_pos"][:2] - view["region_center"]))


def load_columns(root: Path) -> dict[str, np.ndarray]:
    """All frames at once: the three features [N, ...] float32 and `episode_index` [N]."""
    table = LeRobotDataset(REPO_ID, root=root).hf_dataset.with_format("numpy")
    columns = {
        key: np.stack(table[key]).astype(np.float32) for key in (STATE, ENVIRONMENT_STATE, ACTION)
    }
    columns["episode_index"] = np.asarray(table["episode_index"])
    return columns
