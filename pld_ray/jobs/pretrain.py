"""`pld-ray pretrain`: collection and Cal-QL initialisation alone, kept for later runs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.files.atomic import undone_unless, write_json_atomically
from pld_ray.jobs.build import check_environment, running_algorithm
from pld_ray.jobs.loop_state import LoopState
from pld_ray.jobs.result_metrics import record_initialization, show_initialization
from pld_ray.runs.journal import log_line
from pld_ray.runs.layout import SUMMARY_FILE
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FINISHED
from pld_ray.runs.trust import remember
from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.progress import TrainProgress

CHECKPOINT = "pretrained"


def pretrain(config: TrainConfig) -> dict[str, Any]:
    """Collect base-policy data and initialise the critic; write `checkpoints/pretrained`.

    Returns:
        The content of `summary.json`: calql_steps, offline_transitions, the last q_data, q_policy,
        gap, bound_rate and q_out_of_bound, checkpoint, wall_s.

    Raises:
        ConfigError: nothing to do, or something in the configuration cannot work.
    """
    if config.algorithm.calql_steps == 0:
        raise ConfigError(
            "pld-ray pretrain with algorithm.calql_steps=0 has nothing to do: set it above 0, for "
            "example --algorithm.calql_steps=2000"
        )
    run = RunDir(config.output_dir)
    run.check_new()
    remember([config])
    check_environment(config)
    with undone_unless(run.path, lambda: run.has_begun):
        try:
            with run.work():
                summary = _pretrain(config, run)
                run.set_status(FINISHED)
                return summary
        finally:
            close_logging()


def _pretrain(config: TrainConfig, run: RunDir) -> dict[str, Any]:
    """`pretrain` in a folder that is this process's."""
    started = time.time()
    logger = setup_logging(run.path)
    last: dict[str, Any] = {}
    try:
        with running_algorithm(config) as algorithm:

            def record(row: dict[str, Any]) -> None:
                last.update(row)
                row = run.journal.append({"env_steps": algorithm.env_steps, **row})
                logger.info(log_line(row))

            algorithm.learners.failure_dir = str(run.path)
            run.create(config)
            with TrainProgress(total_env_steps=None) as progress:
                while algorithm.phase != "online":
                    algorithm.training_step()
                    record_initialization(algorithm, record)
                    show_initialization(algorithm, progress)
            state = asdict(LoopState.begin(config))
            checkpoint = run.save_checkpoint(algorithm.save_checkpoint, CHECKPOINT, state)
            summary = {
                "calql_steps": algorithm.progress.calql_done,
                "offline_transitions": algorithm.learners.replay_sizes()[1],
                **{
                    name: last.get(f"calql/{name}")
                    for name in ("q_data", "q_policy", "gap", "bound_rate", "q_out_of_bound")
                },
                "checkpoint": str(checkpoint),
                "wall_s": round(time.time() - started, 1),
            }
            write_json_atomically(run.path / SUMMARY_FILE, summary)
    except Exception:
        logger.exception("pretraining failed")
        raise
    return summary
