"""Base, base + residual and distilled base on the same held init states, played in one way."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pld_ray.config import TrainConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.evaluation.eval_info import of_checkpoint, read_eval_info
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.files.atomic import write_json_atomically
from pld_ray.jobs.distill_table import Row
from pld_ray.jobs.distill_teachers import Teacher
from pld_ray.jobs.evaluate import evaluate_checkpoint
from pld_ray.policies import BasePolicy, load_base_policy
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.runs.layout import EVAL_INFO_FILE, read_json

Say = Callable[[str], None]


def evaluate_all(
    config: DistillConfig,
    teachers: Sequence[Teacher],
    tasks: Sequence[str],
    folder: pathlib.Path,
    out: pathlib.Path,
    say: Say,
    trust: bool = False,
) -> list[Row]:
    """Base, base + residual and distilled base on the same held states of all tasks.

    Args:
        config: of the distillation.
        teachers: which play alike.
        tasks: that are played.
        folder: of the distilled policy.
        out: what was played is kept in `OUT/evaluation`.
        say: is told what is played.
        trust: see `distill`.
    """
    states = list(range(config.evaluation.held_states))
    # a run has measured its base policy and its residual on the held states of its own task
    measured = {
        t.task: outcomes_of_run(t, states, out, say, trust) for t in teachers if t.task in tasks
    }
    way, loader = teachers[0].config, played_with(config, teachers[0])
    played: dict[str, dict[str, list[bool]]] = {}
    for name, path in (("base", config.policy.path), ("distilled", str(folder))):
        fingerprint = open_checkpoint(path).fingerprint(**loader)
        policy = None
        played[name] = {}
        for task in tasks:
            if name == "base" and task in measured:
                played[name][task] = measured[task]["base"]
                continue
            file = out / "evaluation" / f"{name}-{task}.json"
            asked: dict[str, Any] = {"policy": fingerprint, "states": states}
            if way.env.reward_classifier:  # it judged here once
                asked["reward"] = "of the environment"
            if way.policy.prefetch:  # it was left out here once
                asked["prefetch"] = True
            found = read_json(file)
            if {key: found.get(key) for key in asked} != asked:
                say(f"evaluating {name} on {task}")
                policy = policy or load_base_policy(path, **loader)
                found = {**asked, "success": successes(way, task, policy, states)}
                write_json_atomically(file, found)
            played[name][task] = list(found["success"])
    return [
        Row(
            task,
            played["base"][task],
            measured[task]["residual"] if task in measured else None,
            played["distilled"][task],
        )
        for task in tasks
    ]


def played_with(config: DistillConfig, teacher: Teacher) -> dict[str, Any]:
    """What `load_base_policy` is given for base and distilled policy: as the run plays, with the
    names and the tokeniser of the command.

    `policy.dtype` of the command is what is learnt in; played in it, the base policy would not
    compare with what the run measured.
    """
    own = {name: value for name, value in config.policy.loader().items() if name != "dtype"}
    return {**teacher.config.policy.loader(), **own}


def successes(way: TrainConfig, task: str, policy: BasePolicy, states: Sequence[int]) -> list[bool]:
    """Of a policy alone from each init state, in their order.

    Args:
        way: of a run: its environment, with the reward that evaluations go by, and `prefetch`.
        task: of the suite.
        policy: that plays.
        states: ids of stored init states.
    """
    player = PolicyPlayer(way.env, [task], way.policy.prefetch)
    with contextlib.closing(player):
        return [episode.success for episode in player.play(policy, states)[task]]


def outcomes_of_run(
    teacher: Teacher, states: Sequence[int], out: pathlib.Path, say: Say, trust: bool = False
) -> dict[str, list[bool]]:
    """Success of `base` and `residual` on held states: what the run measured, or played now.

    Args:
        teacher: whose run it is.
        states: ids of held init states.
        out: of the distillation.
        say: is told what is played.
        trust: see `distill`.
    """
    info = known_info(teacher.run.path)
    found = outcomes_in(info, states)
    if of_checkpoint(teacher.checkpoint).items() <= info.items() and found is not None:
        return found
    folder = out / "evaluation" / f"residual-{teacher.task}"
    found = outcomes_in(known_info(folder), states)
    if found is None:
        say(f"evaluating base and base + residual on {teacher.task}")
        evaluate_checkpoint(str(teacher.checkpoint), len(states), str(folder), trust=trust)
        found = outcomes_in(known_info(folder), states)
        assert found is not None  # all of them were played
    return found


def known_info(folder: pathlib.Path) -> dict[str, Any]:
    """`eval_info.json` of a folder; `{}` where there is none."""
    path = folder / EVAL_INFO_FILE
    return read_eval_info(path) if path.is_file() else {}


def outcomes_in(info: Mapping[str, Any], states: Sequence[int]) -> dict[str, list[bool]] | None:
    """Success of `base` and `residual` on these states; None where one of them did not play all."""
    outcomes: dict[str, list[bool]] = {}
    for policy in ("base", "residual"):
        rows = {r["init_state_id"]: r for r in info.get("episodes", []) if r["policy"] == policy}
        if not rows.keys() >= set(states):
            return None
        outcomes[policy] = [bool(rows[state]["success"]) for state in states]
    return outcomes
