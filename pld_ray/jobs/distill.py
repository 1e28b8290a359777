"""`pld-ray distill`: what residuals have learnt becomes the policy's own, stage by stage."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import envs
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.episode_writer import PROGRESS_FILE, read_progress
from pld_ray.evaluation.eval_info import read_eval_info
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.lock import FolderLock
from pld_ray.files.manifest import MANIFEST_FILE
from pld_ray.jobs.collect import Goal, collect
from pld_ray.jobs.distill_table import Row, write_results
from pld_ray.jobs.evaluate import evaluate_checkpoint
from pld_ray.jobs.export import chosen
from pld_ray.jobs.finetune import finetune
from pld_ray.jobs.learners import check_gpus
from pld_ray.policies import load_base_policy
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.runs.layout import CONFIG_FILE, EVAL_INFO_FILE, SUMMARY_FILE, read_json
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.trust import check_trusted
from pld_ray.sharded.policy_folder import PROVENANCE_FILE

Say = Callable[[str], None]


@dataclass(frozen=True)
class Teacher:
    """A residual that is distilled."""

    run: RunDir
    config: TrainConfig
    checkpoint: pathlib.Path

    @property
    def task(self) -> str:
        """Of its run."""
        return self.config.env.task


def distill(
    config: DistillConfig, runs: Sequence[pathlib.Path], say: Say = print, trust: bool = False
) -> dict[str, Any]:
    """Collect, fine-tune, evaluate; each stage's output is kept, and recognised by the next call.

    Args:
        config: of the distillation.
        runs: folders of residual runs, one a task, of the same base policy.
        say: is told each stage.
        trust: run the code that foreign runs name, see `pld_ray.runs.trust`.

    Returns:
        The content of `OUT/summary.json`.

    Raises:
        ConfigError: see `open_teachers`.
    """
    teachers = open_teachers(config, runs, trust)
    out = pathlib.Path(config.output_dir).resolve()
    tasks = config.evaluation.tasks or envs.suite_tasks(teachers[0].config.env.suite)
    out.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(out)
    if owner := lock.claim():
        raise ConfigError(f"{out} is in use by {owner}: wait for it, or choose another folder")
    try:
        datasets, weights = collect_all(config, teachers, out, say)
        folder = learn(config, datasets, weights, out, say)
        note_ancestors(folder, teachers if config.collected.teacher == "residual" else [])
        rows = evaluate_all(config, teachers, tasks, folder, out, say)
        return write_results(out, rows, folder, [str(t.run.path) for t in teachers], config.seed)
    finally:
        lock.release()


def open_teachers(
    config: DistillConfig, runs: Sequence[pathlib.Path], trust: bool
) -> list[Teacher]:
    """The runs with the checkpoints that act; what `distill` would refuse is refused here.

    Raises:
        ConfigError: a run is no residual run, runs and policy do not belong together, a task is
            none of the suite's, or there are more learners than GPUs for them.
    """
    if not runs:
        raise ConfigError("pld-ray distill needs the folder of a residual run, or of several")
    wanted = open_checkpoint(config.policy.path).fingerprint()
    teachers: list[Teacher] = []
    for path in runs:
        run = RunDir(path)
        own = run.load_config()
        if type(own) is not TrainConfig or own.policy.type == "none":
            raise ConfigError(f"{path} is no residual run: give runs of pld-ray train")
        check_trusted(own, run.path / "config.yaml", trust)
        if own.env.environment_class is not None:
            raise ConfigError(f"{path}: {own.env.environment_class} has no suite to compare on")
        found = open_checkpoint(own.policy.path).fingerprint()
        if found != wanted:
            raise ConfigError(
                f"{path} corrects the base policy {found[:12]}, and --policy.path is "
                f"{wanted[:12]}: give the policy that the runs were trained with"
            )
        teachers.append(Teacher(run, own, chosen(run, None)))
        if teachers[-1].config.env.suite != teachers[0].config.env.suite:
            raise ConfigError(f"{path} is of another suite than {runs[0]}: distil one suite")
        if config.evaluation.held_states > own.evaluation.held_states:
            raise ConfigError(
                f"evaluation.held_states={config.evaluation.held_states}: {path} held "
                f"{own.evaluation.held_states} init states back, give at most those"
            )
    if len({teacher.task for teacher in teachers}) < len(teachers):
        raise ConfigError("two of the runs are of the same task: give one for each")
    known = envs.suite_tasks(teachers[0].config.env.suite)
    asked = (*config.evaluation.tasks, *config.collected.base_tasks)
    if unknown := [task for task in asked if task not in known]:
        raise ConfigError(f"{unknown[0]} is no task of the suite: {', '.join(known)}")
    check_gpus(config.learning([], [], config.output_dir))
    return teachers


# --- collecting -----------------------------------------------------------------------------------


def collect_all(
    config: DistillConfig, teachers: Sequence[Teacher], out: pathlib.Path, say: Say
) -> tuple[list[str], list[float]]:
    """Successes of each residual (or of the control), and of the base policy on each task.

    Returns:
        Datasets and their shares of the windows.
    """
    wanted, share = config.collected, config.collected.base_share
    datasets: list[str] = []
    weights: list[float] = []
    for teacher in teachers:
        is_control = wanted.teacher == "base"
        root = out / "collected" / ("control" if is_control else "residual") / teacher.task
        acting = None if is_control else teacher.checkpoint
        record(teacher.config, root, wanted.residual_successes, acting, config, say)
        datasets.append(str(root))
        weights.append((1 - share) / len(teachers))
    suite = teachers[0].config.env.suite
    tasks = wanted.base_tasks or envs.suite_tasks(suite)
    for task in tasks if wanted.base_successes and share else []:
        root = out / "collected" / "base" / task
        env = dataclasses.replace(teachers[0].config.env, task=task)
        own = dataclasses.replace(teachers[0].config, env=env)
        record(own, root, wanted.base_successes, None, config, say)
        datasets.append(str(root))
        weights.append(share / len(tasks))
    return datasets, weights


def record(
    own: TrainConfig,
    root: pathlib.Path,
    successes: int,
    checkpoint: pathlib.Path | None,
    config: DistillConfig,
    say: Say,
) -> None:
    """One dataset of successes from sampled placements, unless it is there."""
    progress = root / PROGRESS_FILE
    if progress.is_file() and read_progress(progress)["state"] == "finished":
        return
    say(f"collecting {successes} successes: {root}")
    runners = dataclasses.replace(own.runners, num_env_runners=config.collected.num_env_runners)
    own = dataclasses.replace(own, runners=runners)
    actor: Any = "base" if checkpoint is None else "residual"
    collect(own, root, Goal(successes=successes), actor, checkpoint)


# --- learning -------------------------------------------------------------------------------------


def learn(
    config: DistillConfig,
    datasets: list[str],
    weights: list[float],
    out: pathlib.Path,
    say: Say,
) -> pathlib.Path:
    """The distilled policy's folder, `OUT/policy`."""
    run, folder = RunDir(out / "finetune"), out / "policy"
    if folder.is_dir():
        return folder
    summary = read_json(run.path / SUMMARY_FILE)
    if "policy" not in summary:
        say(f"fine-tuning: {run.path}")
        resume = run.path if (run.path / CONFIG_FILE).is_file() else None
        learning = config.learning(datasets, weights, str(run.path))
        summary = finetune(run.load_config(FinetuneConfig) if resume else learning, resume)
    if "policy" not in summary:
        raise KeyboardInterrupt(f"stopped while fine-tuning: the same command goes on in {out}")
    partial = out / ".policy"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(run.checkpoints / "final" / "policy", partial)
    partial.rename(folder)
    return folder


def note_ancestors(folder: pathlib.Path, teachers: Sequence[Teacher]) -> None:
    """Beside the policy: which runs it was distilled from, each by its checkpoint's checksum."""
    path = folder / PROVENANCE_FILE
    runs = [
        {
            "path": str(teacher.run.path),
            "checkpoint": teacher.checkpoint.name,
            "checksum": read_json(teacher.checkpoint / MANIFEST_FILE).get("checksum"),
        }
        for teacher in teachers
    ]
    write_json_atomically(path, {**read_json(path), "distilled_from": runs})


# --- evaluation -----------------------------------------------------------------------------------


def evaluate_all(
    config: DistillConfig,
    teachers: Sequence[Teacher],
    tasks: Sequence[str],
    folder: pathlib.Path,
    out: pathlib.Path,
    say: Say,
) -> list[Row]:
    """Base, base + residual and distilled base on the same held states of all tasks."""
    states = list(range(config.evaluation.held_states))
    # a run has measured its base policy and its residual on the held states of its own task
    measured = {t.task: outcomes_of_run(t, states, out, say) for t in teachers}
    env = teachers[0].config.env
    played: dict[str, dict[str, list[bool]]] = {}
    for name, path in (("base", config.policy.path), ("distilled", str(folder))):
        fingerprint = open_checkpoint(path).fingerprint()
        policy = None
        played[name] = {}
        for task in tasks:
            if name == "base" and task in measured:
                played[name][task] = measured[task]["base"]
                continue
            file = out / "evaluation" / f"{name}-{task}.json"
            asked = {"policy": fingerprint, "states": states}
            found = read_json(file)
            if {key: found.get(key) for key in asked} != asked:
                say(f"evaluating {name} on {task}")
                player = PolicyPlayer(env, [task])
                policy = policy or load_base_policy(path)
                episodes = player.play(policy, states)[task]
                player.close()
                found = {**asked, "success": [episode.success for episode in episodes]}
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


def outcomes_of_run(
    teacher: Teacher, states: Sequence[int], out: pathlib.Path, say: Say
) -> dict[str, list[bool]]:
    """Success of `base` and `residual` on held states: what the run measured, or played now."""
    path = teacher.run.path / EVAL_INFO_FILE
    info = read_eval_info(path) if path.is_file() else {}
    if info.get("checkpoint") != str(teacher.checkpoint):
        folder = out / "evaluation" / f"residual-{teacher.task}"
        path = folder / EVAL_INFO_FILE
        if not path.is_file():
            say(f"evaluating base and base + residual on {teacher.task}")
            evaluate_checkpoint(str(teacher.checkpoint), len(states), str(folder))
        info = read_eval_info(path)
    outcomes: dict[str, list[bool]] = {}
    for policy in ("base", "residual"):
        rows = {r["init_state_id"]: r for r in info["episodes"] if r["policy"] == policy}
        outcomes[policy] = [bool(rows[state]["success"]) for state in states]
    return outcomes
