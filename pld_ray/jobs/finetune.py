"""`pld-ray finetune`: a LeRobot policy learns from datasets; stopped and resumed without loss."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

from envs.bootstrap import RenderingUnavailableError
from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.demonstrations import identity_of
from pld_ray.data.training_windows import Episode, TrainingWindows, find_episodes, hold_out
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.files.atomic import undone_unless, write_json_atomically
from pld_ray.jobs.finetune_loop import FinetuneLoop
from pld_ray.jobs.open_tracker import open_tracker
from pld_ray.options import check_paths
from pld_ray.policies.checkpoint import PolicyCheckpoint
from pld_ray.rollout.factory import env_maker
from pld_ray.runs.layout import CONFIG_FILE, SUMMARY_FILE
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FINISHED, INTERRUPTED, failure_reason
from pld_ray.runs.trust import check_trusted, remember
from pld_ray.sharded.trainee import load_trainee, needed_by, open_trainee
from pld_ray.sharded.trainer import Trainer
from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.tags import version

Advance = Callable[[int], None]


def finetune(
    config: FinetuneConfig,
    resume: pathlib.Path | None = None,
    on_samples: Advance = lambda number: None,
    trust: bool = False,
) -> dict[str, Any]:
    """Fine-tune, new or from the newest checkpoint of `resume`.

    Args:
        config: of the run.
        resume: folder of the run to continue.
        on_samples: is told the windows of each update.
        trust: run the code that the resumed run names, see `pld_ray.runs.trust`.

    Returns:
        The content of `summary.json`; without `policy` when the run was interrupted.

    Raises:
        ConfigError: something in the configuration cannot work.
        RunError: a checkpoint cannot be written.
    """
    run = RunDir(resume or config.output_dir)
    if resume is None:
        run.check_new()
        remember([config])
    else:
        check_trusted(config, run.path / CONFIG_FILE, trust)
    checkpoint, episodes = check_finetune(config)
    with undone_unless(run.path, lambda: resume is not None or run.has_begun):
        try:
            with run.work():
                return _finetune(config, run, resume is not None, checkpoint, episodes, on_samples)
        finally:
            close_logging()


def check_finetune(config: FinetuneConfig) -> tuple[PolicyCheckpoint, list[Episode]]:
    """Open policy, datasets and, where they are played, the tasks, here where an error can be read.

    Returns:
        The policy's folder, and the episodes that are learnt from or held out.

    Raises:
        ConfigError: naming what cannot be used.
    """
    if not config.dataset:
        raise ConfigError("pld-ray finetune learns from LeRobotDatasets: name one or more")
    try:
        check_paths(config)
        checkpoint = open_trainee(config)
        needed = needed_by(checkpoint, config.policy.rename_map)
        episodes = find_episodes(config.dataset, needed, config.episodes == "successes")
        states = config.evaluation.held_states + config.evaluation.validation_states
        for task in played_tasks(config):
            env: Any = env_maker({**config.env.settings(), "task": task})()
            if states > env.num_init_states:
                raise ConfigError(
                    f"evaluation.held_states + evaluation.validation_states = {states}, but {task} "
                    f"has {env.num_init_states} stored init states"
                )
            env.close()
    except (ValueError, OSError, ImportError, RenderingUnavailableError) as error:
        raise ConfigError(str(error)) from error
    return checkpoint, episodes


def played_tasks(config: FinetuneConfig) -> list[str]:
    """Tasks that are played while the policy learns."""
    if config.evaluation.validation_states == 0:
        return []
    return config.evaluation.tasks or [config.env.task]


def _finetune(
    config: FinetuneConfig,
    run: RunDir,
    resumes: bool,
    checkpoint: PolicyCheckpoint,
    episodes: list[Episode],
    on_samples: Advance,
) -> dict[str, Any]:
    """`finetune` in a folder that is this process's."""
    started = time.time()
    logger = setup_logging(run.path)
    tracker = open_tracker(config, run, kind="finetune")
    player = None
    status = "FAILED"
    try:
        trainee = load_trainee(config)
        train, held = hold_out(episodes, config.evaluation.held_out_share, config.seed)
        windows = TrainingWindows(train, trainee.needed, config.dataset_weights, config.seed)
        held_windows = TrainingWindows(held, trainee.needed) if held else None
        if tasks := played_tasks(config):
            player = PolicyPlayer(config.env, tasks)
        trainer = Trainer(trainee, config.algorithm, config.total_steps, config.seed)
        loop = FinetuneLoop(
            config, run, trainer, windows, held_windows, player, tracker, logger,
            provenance(config, checkpoint, episodes),
        )  # fmt: skip
        if resumes:
            loop.restore()
        else:
            run.create(config)
        if loop.run(on_samples):
            summary = loop.finish(started)
            write_json_atomically(run.path / SUMMARY_FILE, summary)
            run.set_status(FINISHED)
            status = "FINISHED"
        else:
            saved = loop.save("interrupted")
            summary = {"updates": trainer.updates, "checkpoint": str(saved)}
            run.set_status(INTERRUPTED)
            status = "KILLED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except Exception as error:
        logger.exception("the run failed")
        if tracker is not None:
            tracker.set_tag("failure", failure_reason(error))
        raise
    finally:
        if tracker is not None:
            tracker.finish(status)
        if player is not None:
            player.close()
    return summary


def provenance(
    config: FinetuneConfig, checkpoint: PolicyCheckpoint, episodes: list[Episode]
) -> dict[str, Any]:
    """What the policy is made from, kept beside it."""
    datasets = {str(e.dataset.root.resolve()): e.dataset for e in episodes}
    return {
        "base_policy": {
            "path": str(checkpoint.directory),
            "fingerprint": checkpoint.fingerprint(),
        },
        "datasets": [
            {"path": path, "identity": identity_of(dataset)} for path, dataset in datasets.items()
        ],
        "episodes": len(episodes),
        "seed": config.seed,
        "pld_ray": version(),
    }
