"""`pld-ray distill`: what residuals have learnt becomes the policy's own, stage by stage."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import envs
from pld_ray.config import ConfigError, InterventionConfig, TrainConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.episode_writer import PROGRESS_FILE, read_progress
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.lock import FolderLock
from pld_ray.jobs.collect import Goal, collect
from pld_ray.jobs.distill_evaluation import Say, evaluate_all
from pld_ray.jobs.distill_inputs import (
    COLLECTED,
    FINETUNE,
    begin,
    check_folder,
    check_inputs,
)
from pld_ray.jobs.distill_table import write_results
from pld_ray.jobs.distill_teachers import (
    Teacher,
    asked_fingerprint,
    check_played_alike,
    corrected_fingerprint,
)
from pld_ray.jobs.elsewhere import joined_now, located, start_folder
from pld_ray.jobs.export import chosen
from pld_ray.jobs.finetune import finetune
from pld_ray.jobs.learners import check_gpus
from pld_ray.rllib.stream_seed import RECORDED, stream_seed
from pld_ray.runs.layout import CONFIG_FILE, POLICY_FOLDER, SUMMARY_FILE, read_json
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.trust import check_trusted
from pld_ray.sharded.policy_folder import PROVENANCE_FILE


@dataclass(frozen=True)
class Part:
    """A dataset that the policy is distilled from."""

    root: pathlib.Path
    config: TrainConfig
    """Of who plays."""
    successes: int
    """Episodes."""
    checkpoint: pathlib.Path | None
    """Of a residual; None is the base policy alone."""
    share: float
    """Of the windows."""


def distill(
    config: DistillConfig, runs: Sequence[pathlib.Path], say: Say = print, trust: bool = False
) -> dict[str, Any]:
    """Collect, fine-tune, evaluate; each stage's output is kept, and recognised by the next call
    with the same inputs.

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
        parts = planned(config, teachers, out)
        learning = learning_from(config, parts, out)
        begin(out, inputs_of(config, teachers), learning)
        for part in parts:
            record(part, config.collected.num_env_runners, say)
        folder = learn(config, learning.dataset, learning.dataset_weights, out, say)
        note_ancestors(folder, teachers if config.collected.teacher == "residual" else [])
        rows = evaluate_all(config, teachers, tasks, folder, out, say, trust)
        return write_results(out, rows, folder, [str(t.run.path) for t in teachers], config.seed)
    finally:
        lock.release()


def open_teachers(
    config: DistillConfig, runs: Sequence[pathlib.Path], trust: bool
) -> list[Teacher]:
    """The runs with the checkpoints that act; what `distill` would refuse is refused here.

    Raises:
        ConfigError: a run is no residual run, runs and policy do not belong together, runs do not
            play alike, a policy is gone, a task is none of the suite's, there are more learners
            than GPUs for them, or the folder is another's or was begun with something else.
    """
    if not runs:
        raise ConfigError("pld-ray distill needs the folder of a residual run, or of several")
    out = pathlib.Path(config.output_dir).resolve()
    check_folder(out)
    wanted = asked_fingerprint(config.policy.path)
    teachers: list[Teacher] = []
    for path in runs:
        run = RunDir(path)
        own = run.load_config()
        if type(own) is not TrainConfig or own.policy.type == "none":
            raise ConfigError(f"{path} is no residual run: give runs of pld-ray train")
        check_trusted(own, run.path / CONFIG_FILE, trust)
        own = joined_now(own)
        if own.env.environment_class is not None:
            raise ConfigError(f"{path}: {own.env.environment_class} has no suite to compare on")
        found = corrected_fingerprint(run, own.policy.path)
        if found != wanted:
            raise ConfigError(
                f"{path} corrects the base policy {found[:12]}, and --policy.path is "
                f"{wanted[:12]}: give the policy that the runs were trained with"
            )
        teachers.append(Teacher(run, own, chosen(run, None), found))
        if teachers[-1].config.env.suite != teachers[0].config.env.suite:
            raise ConfigError(f"{path} is of another suite than {runs[0]}: distil one suite")
        if config.evaluation.held_states > own.evaluation.held_states:
            raise ConfigError(
                f"evaluation.held_states={config.evaluation.held_states}: {path} held "
                f"{own.evaluation.held_states} init states back, give at most those"
            )
    if len({teacher.task for teacher in teachers}) < len(teachers):
        raise ConfigError("two of the runs are of the same task: give one for each")
    check_played_alike(teachers)
    known = envs.suite_tasks(teachers[0].config.env.suite)
    asked = (*config.evaluation.tasks, *config.collected.base_tasks)
    if unknown := [task for task in asked if task not in known]:
        raise ConfigError(f"{unknown[0]} is no task of the suite: {', '.join(known)}")
    check_gpus(config.learning([], [], config.output_dir))
    learning = learning_from(config, planned(config, teachers, out), out)
    check_inputs(out, inputs_of(config, teachers), learning)
    return teachers


def inputs_of(config: DistillConfig, teachers: Sequence[Teacher]) -> dict[str, Any]:
    """What decides the result before anything is learnt, see `check_inputs`."""
    collected = dataclasses.asdict(config.collected)
    del collected["num_env_runners"]
    return {
        "base_policy": teachers[0].base_policy,
        "runs": [teacher.origin for teacher in teachers],
        "collected": collected,
    }


# --- collecting -----------------------------------------------------------------------------------


def planned(config: DistillConfig, teachers: Sequence[Teacher], out: pathlib.Path) -> list[Part]:
    """Successes of each residual (or of the control), and of the base policy on each task."""
    wanted, share, collected = config.collected, config.collected.base_share, out / COLLECTED
    is_control = wanted.teacher == "base"
    parts: list[Part] = []
    for teacher in teachers:
        root = collected / ("control" if is_control else "residual") / teacher.task
        acting = None if is_control else teacher.checkpoint
        own = of_control(teacher.config, root) if is_control else teacher.config
        part_share = (1 - share) / len(teachers)
        parts.append(Part(root, own, wanted.residual_successes, acting, part_share))
    first, judged = teachers[0].config, {teacher.task: teacher.config.env for teacher in teachers}
    unjudged = dataclasses.replace(first.env, reward_classifier=None)  # it knows the run's task
    tasks = wanted.base_tasks or envs.suite_tasks(first.env.suite)
    for task in tasks if wanted.base_successes and share else []:
        env = judged.get(task) or dataclasses.replace(unjudged, task=task)
        own = dataclasses.replace(first, env=env)
        root = collected / "base" / task
        parts.append(Part(root, own, wanted.base_successes, None, share / len(tasks)))
    return parts


def of_control(config: TrainConfig, root: pathlib.Path) -> TrainConfig:
    """The base policy on a run's task, from other placements than its own share of the windows has.

    Args:
        config: of the run.
        root: of the dataset; one that was begun goes on with the seed that it has.

    Raises:
        DataError: its progress is damaged.
    """
    begun, seed = root / PROGRESS_FILE, stream_seed(RECORDED, config.seed) % 2**31
    if begun.is_file():
        seed = read_progress(begun)["recording"].get("seed", seed)
    return dataclasses.replace(config, seed=seed)


def record(part: Part, num_env_runners: int, say: Say) -> None:
    """One dataset of successes from sampled placements, unless it is there; nobody takes over: the
    person of the run is not here.
    """
    progress = part.root / PROGRESS_FILE
    if progress.is_file() and read_progress(progress)["state"] == "finished":
        return
    say(f"collecting {part.successes} successes: {part.root}")
    runners = dataclasses.replace(part.config.runners, num_env_runners=num_env_runners)
    own = dataclasses.replace(part.config, runners=runners, intervention=InterventionConfig())
    actor: Any = "base" if part.checkpoint is None else "residual"
    collect(own, part.root, Goal(successes=part.successes), actor, part.checkpoint)


# --- learning -------------------------------------------------------------------------------------


def learning_from(
    config: DistillConfig, parts: Sequence[Part], out: pathlib.Path
) -> FinetuneConfig:
    """The fine-tuning on these datasets, in `OUT/finetune`."""
    datasets, weights = [str(part.root) for part in parts], [part.share for part in parts]
    return config.learning(datasets, weights, str(out / FINETUNE))


def learn(
    config: DistillConfig,
    datasets: list[str],
    weights: list[float],
    out: pathlib.Path,
    say: Say,
) -> pathlib.Path:
    """The distilled policy's folder, `OUT/policy`."""
    run, folder = RunDir(out / FINETUNE), out / POLICY_FOLDER
    if folder.is_dir():
        return folder
    summary = read_json(run.path / SUMMARY_FILE)
    if "policy" not in summary:
        say(f"fine-tuning: {run.path}")
        resume = run.path if (run.path / CONFIG_FILE).is_file() else None
        learning = located(config.learning(datasets, weights, str(run.path)), start_folder())
        # `check_learning` has seen to what decides the policy; all else is the command's own
        summary = finetune(learning, resume)
    if "policy" not in summary:
        raise KeyboardInterrupt(f"stopped while fine-tuning: the same command goes on in {out}")
    partial = out / ".policy"
    shutil.rmtree(partial, ignore_errors=True)
    learnt = run.checkpoints / "final" / POLICY_FOLDER
    shutil.copytree(learnt, partial, copy_function=shutil.copyfile)
    partial.rename(folder)
    return folder


def note_ancestors(folder: pathlib.Path, teachers: Sequence[Teacher]) -> None:
    """Beside the policy: which runs it was distilled from, each by its checkpoint's checksum."""
    path = folder / PROVENANCE_FILE
    runs = [teacher.origin for teacher in teachers]
    write_json_atomically(path, {**read_json(path), "distilled_from": runs})
