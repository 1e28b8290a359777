"""`pld-ray train`: collect, train, evaluate, keep; stop and resume without losing anything."""

from __future__ import annotations

import logging
import pathlib
import time
from typing import Any

import ray

from pld_ray.config import ConfigError, PlacementConfig, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.files.atomic import undone_unless
from pld_ray.jobs import offline_stage
from pld_ray.jobs.build import build_algorithm, check_environment
from pld_ray.jobs.cluster import check_cluster, start_ray
from pld_ray.jobs.elsewhere import located, start_folder
from pld_ray.jobs.learners import check_gpus, check_own_gpu
from pld_ray.jobs.open_tracker import open_tracker, told_of_end, untracked_unless
from pld_ray.jobs.start_up import StartUp
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.rllib.learners import LearnerLostError
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.runs.layout import resuming
from pld_ray.runs.reading import wall_before
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.runs.status import FINISHED, INTERRUPTED
from pld_ray.runs.trust import remember
from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.tags import cluster_in_words


def train(
    config: TrainConfig,
    resume: pathlib.Path | None = None,
    preset: str = "default",
    start: StartUp | None = None,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """Run the main job, new or from the newest checkpoint of `resume`.

    Args:
        config: of the run; whoever reads it from a folder asks `check_trusted` first.
        resume: folder of the run to continue.
        preset: name of the configuration file, for MLflow's tags.
        start: is told each step up to the first iteration.
        checkpoint: of the resumed run, by name; None is the newest one that is whole.

    Returns:
        The content of `summary.json`; without `residual_success` when the run was interrupted.

    Raises:
        ConfigError: something in the configuration cannot work.
        RunError: the run cannot go on; the last good checkpoint is named.
    """
    start = start or StartUp()
    if resume is None:
        config = located(config, start_folder())
    run = RunDir(resume or config.output_dir)
    check_strategy(config)
    check_learners(config)
    named = run.checkpoint_named(checkpoint) if checkpoint is not None else None
    if resume is None:
        run.check_new()
        remember([config])
    start.step("environment and base policy")
    check_environment(config, resumes=resume is not None)
    with undone_unless(run.path, lambda: resume is not None or run.has_begun):
        try:
            with run.disk_errors(), run.work():
                resumes = resume is not None
                if resumes:
                    run.keep_config(config)
                if named is None and offline_stage.is_due(config, run):
                    if not learnt_offline(config, run, resumes, start):
                        run.set_status(INTERRUPTED)
                        return stopped(run, run.latest_checkpoint())
                    resumes = True
                return _train(config, run, resumes, named, preset, start)
        finally:
            close_logging()


def _train(
    config: TrainConfig,
    run: RunDir,
    resumes: bool,
    checkpoint: pathlib.Path | None,
    preset: str,
    start: StartUp,
) -> dict[str, Any]:
    """`train` in a folder that is this process's."""
    started = time.time() - (wall_before(run.path) if resumes else 0.0)
    logger = setup_logging(run.path)
    if config.tracking.enabled:
        start.step("tracking")
    tracker = open_tracker(config, run, preset=preset)
    job = _Job(config, run, tracker, logger, started)
    own_ray = False
    try:
        with (
            told_of_end(tracker, logger, lambda: resumes or run.has_begun) as end,
            run.disk_errors(),
        ):
            start.step("Ray")
            own_ray = start_ray(config)
            if tracker is not None:
                tracker.set_tag("cluster", cluster_in_words())
            check_cluster(config)
            summary = job.run(start, resumes, checkpoint)
            finished = "residual_success" in summary
            run.set_status(FINISHED if finished else INTERRUPTED)
            end.status = "FINISHED" if finished else "KILLED"
    finally:
        job.stop()
        if own_ray:
            ray.shutdown()
    return summary


def learnt_offline(config: Any, run: RunDir, resumes: bool, start: StartUp) -> bool:
    """The offline updates by several learners; False when a stop was requested before their end."""
    start.step(f"{config.learners.num_learners} learners")
    start.over()  # who waits for them takes the signals
    with untracked_unless(run, lambda: resumes or run.has_begun):
        return offline_stage.learn_offline(config, run, resumes)


def stopped(run: RunDir, saved: pathlib.Path | None, env_steps: int = 0) -> dict[str, Any]:
    """Say how to go on from the newest checkpoint; returns what `train` does of such a run."""
    print(f"saved {saved}" if saved else "nothing was saved yet")
    print(continuing(run))
    return {"env_steps": env_steps, "checkpoint": str(saved)}


def continuing(run: RunDir) -> str:
    """How to go on with a run that was stopped."""
    return f"continue with: pld-ray train {resuming(run.path)}"


def check_strategy(config: TrainConfig) -> None:
    """Refuse a placement strategy: there is no placement group outside Ray Tune.

    Raises:
        ConfigError: `placement.strategy` is not the default.
    """
    if config.placement.strategy != PlacementConfig.strategy:
        raise ConfigError(
            f"placement.strategy={config.placement.strategy} is of the placement group that Ray "
            "Tune makes for a trial, and pld-ray train makes none: place the processes with the "
            "custom resources of placement.*, or run it as a sweep of one (pld-ray sweep FILE with "
            "`variants: {only: {}}`)"
        )


def check_learners(config: TrainConfig) -> None:
    """Refuse learners that this machine has no GPUs for; see `check_own_gpu`, `check_gpus`."""
    check_own_gpu(config.runners)
    if isinstance(config, ACRLPDTrainConfig):
        check_gpus(config)


class _Job:
    """The algorithm of a run and its loop, built anew when a learner is lost."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        tracker: MlflowRun | None,
        logger: logging.Logger,
        started: float,
    ) -> None:
        self.config, self.run_dir, self.tracker, self.logger = config, run, tracker, logger
        self.started = started
        self._algorithm: OffPolicy | None = None
        self._loop: TrainingLoop | None = None

    @property
    def loop(self) -> TrainingLoop:
        """Of the algorithm, which has been built."""
        assert self._loop is not None
        return self._loop

    def run(
        self, start: StartUp, restore: bool, checkpoint: pathlib.Path | None = None
    ) -> dict[str, Any]:
        """Train to the end and evaluate, or until a stop is requested.

        Args:
            start: is told each step.
            restore: go on from a checkpoint, `checkpoint` or the newest one.
            checkpoint: newer ones are set aside.

        Returns:
            see `TrainingLoop.finish`; of a run that was stopped, `env_steps` and `checkpoint`.

        Raises:
            RunError: a learner was lost more than `max_failures` times.
        """
        failures = 0
        while True:
            try:
                start.step("learner and env runners")
                self._algorithm = build_algorithm(self.config)
                self._algorithm.learners.failure_dir = str(self.run_dir.path)
                self._loop = TrainingLoop(
                    self.config, self.run_dir, self._algorithm, self.tracker, self.logger
                )
                if restore:
                    start.step("checkpoint")
                    restored = self.loop.restore(checkpoint)
                    if restored is not None:
                        self.run_dir.go_on_from(restored)
                else:
                    self._algorithm.check_start()
                    self.run_dir.create(self.config)
                if self.loop.run(start):
                    states = self.config.evaluation.held_states
                    print(f"[evaluate] {states} held init states", flush=True)
                    return self.loop.finish(self.started)
                saved = self.loop.save("interrupted")
                return stopped(self.run_dir, saved, self.loop.algorithm.env_steps)
            except LearnerLostError as error:
                if self._loop is not None and self._loop.stop_requested:
                    self.logger.warning("%s; the run was to stop", error)
                    newest = self.run_dir.latest_checkpoint()
                    return stopped(self.run_dir, newest, self.loop.algorithm.env_steps)
                failures += 1
                if failures > self.config.max_failures:
                    raise RunError(
                        f"{error}. It was the {failures}. time, with max_failures="
                        f"{self.config.max_failures}: see why the learner dies (memory?), then "
                        f"continue with {resuming(self.run_dir.path)}"
                    ) from error
                self.logger.warning("%s; going on from the last checkpoint", error)
                print(f"{error}; going on from the last checkpoint", flush=True)
                self.stop()
                restore, checkpoint = True, None

    def stop(self) -> None:
        """End the algorithm's processes, and what writes beside it."""
        if self._loop is not None:
            self._loop.stop()
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None
