"""`pld-ray pretrain`: collection and Cal-QL initialisation alone, kept for later runs."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import shlex
import time
from dataclasses import asdict
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.files.atomic import undone_unless, write_json_atomically
from pld_ray.jobs.build import check_environment, running_algorithm
from pld_ray.jobs.elsewhere import located, start_folder
from pld_ray.jobs.learners import check_own_gpu
from pld_ray.jobs.loop_state import LoopState, load_first
from pld_ray.jobs.result_metrics import record_initialization, show_initialization
from pld_ray.jobs.stop_request import Stopped, StopRequest
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.runs.journal import log_line
from pld_ray.runs.layout import PROGRESS_FILE, SUMMARY_FILE, read_json, resuming
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FINISHED, INTERRUPTED
from pld_ray.runs.trust import remember
from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.progress import TrainProgress

CHECKPOINT = "pretrained"


def pretrain(config: TrainConfig, resume: pathlib.Path | None = None) -> dict[str, Any]:
    """Collect base-policy data and initialise the critic; write `checkpoints/pretrained`.

    A stop saves `checkpoints/interrupted`, from which `resume` goes on.

    Args:
        config: of the run.
        resume: folder of the run to continue.

    Returns:
        The content of `summary.json`: calql_steps, offline_transitions, the last q_data, q_policy,
        gap, bound_rate and q_out_of_bound, checkpoint, wall_s. Of one that was stopped calql_steps
        and checkpoint alone.

    Raises:
        ConfigError: nothing to do, the critic is there already, or something in the configuration
            cannot work.
    """
    if resume is not None and not getattr(config.algorithm, "calql_steps", 0):
        raise ConfigError(
            f"{resume} is no run of pld-ray pretrain: it has no Cal-QL steps; continue it with "
            f"pld-ray train {resuming(resume)}"
        )
    if config.algorithm.calql_steps == 0:
        raise ConfigError(
            "pld-ray pretrain with algorithm.calql_steps=0 has nothing to do: set it above 0, for "
            "example --algorithm.calql_steps=2000"
        )
    if (critic := config.pretrained_critic) is not None:
        raise ConfigError(
            f"pretrained_critic={critic} is a critic that was made already: leave it out, or learn "
            f"online with pld-ray train --pretrained_critic={shlex.quote(critic)}"
        )
    check_own_gpu(config.runners)
    if resume is None:
        config = located(config, start_folder())
    run = RunDir(resume or config.output_dir)
    if resume is None:
        run.check_new()
        remember([config])
    else:
        check_unfinished(run)
    check_environment(config, resumes=resume is not None)
    with undone_unless(run.path, lambda: resume is not None or run.has_begun):
        try:
            with run.disk_errors(), run.work():
                return _pretrain(config, run, resume is not None)
        finally:
            close_logging()


def check_unfinished(run: RunDir) -> None:
    """There is something left to do.

    Raises:
        ConfigError: the critic is there already, or has gone on to learn online.
    """
    newest = run.latest_checkpoint()
    if newest is None or read_json(newest / PROGRESS_FILE).get("phase") != "online":
        return
    use = f"continue it with pld-ray train {resuming(run.path)}"
    if newest.name == CHECKPOINT:
        critic = shlex.quote(str(newest))
        use = f"use its critic with pld-ray train --pretrained_critic={critic}"
    raise ConfigError(f"{run.path} is finished with Cal-QL: {use}")


def _pretrain(config: TrainConfig, run: RunDir, resumes: bool) -> dict[str, Any]:
    """`pretrain` in a folder that is this process's."""
    started = time.time()
    logger = setup_logging(run.path)
    try:
        with run.disk_errors(), running_algorithm(config) as algorithm:
            algorithm.learners.failure_dir = str(run.path)
            if resumes:
                restore(algorithm, run, logger)
            run.keep_config(config)
            ended = initialize(algorithm, run, logger)
            name = CHECKPOINT if ended else "interrupted"
            state = asdict(LoopState.begin(config))
            checkpoint = run.save_checkpoint(algorithm.save_checkpoint, name, state)
            summary = {
                "calql_steps": algorithm.progress.calql_done,
                "checkpoint": str(checkpoint),
            }
            if ended:
                last = next(row for row in reversed(run.journal.rows()) if "calql/steps" in row)
                summary |= {
                    "offline_transitions": algorithm.learners.replay_sizes()[1],
                    **{
                        name: last.get(f"calql/{name}")
                        for name in ("q_data", "q_policy", "gap", "bound_rate", "q_out_of_bound")
                    },
                    "wall_s": round(time.time() - started, 1),
                }
                write_json_atomically(run.path / SUMMARY_FILE, summary)
            run.set_status(FINISHED if ended else INTERRUPTED)
    except Exception:
        logger.exception("pretraining failed")
        raise
    return summary


def restore(algorithm: OffPolicy, run: RunDir, logger: logging.Logger) -> None:
    """Continue from the newest checkpoint that is whole, or begin where there is none yet.

    Raises:
        CheckpointError: none is whole.
    """
    found = run.find_checkpoints()
    loaded = load_first(found, lambda path: algorithm.load_checkpoint(str(path)), logger)
    calql_steps = algorithm.progress.calql_done
    run.journal.restore(algorithm.env_steps if loaded else -1, calql_steps=calql_steps)
    logger.info("resumed %s at %d Cal-QL steps", loaded, calql_steps)


def initialize(algorithm: OffPolicy, run: RunDir, logger: logging.Logger) -> bool:
    """Collect, and initialise the critic; False when a stop was requested before the end."""

    def record(row: dict[str, Any]) -> None:
        row = run.journal.append({"env_steps": algorithm.env_steps, **row})
        logger.info(log_line(row))

    with (
        TrainProgress(total_env_steps=None) as progress,
        StopRequest() as stop,
        contextlib.suppress(Stopped),
    ):
        algorithm.runners.on_wait = lambda: stop.check(progress)
        while algorithm.phase != "online":
            stop.raise_if_requested()
            algorithm.training_step()
            record_initialization(algorithm, record)
            show_initialization(algorithm, progress)
    return algorithm.phase == "online"
