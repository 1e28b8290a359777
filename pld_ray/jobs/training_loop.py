"""The loop of `pld-ray train`: iterate, record, evaluate, keep."""

from __future__ import annotations

import contextlib
import pathlib
import time
from dataclasses import asdict
from typing import Any

from pld_ray.config import TrainConfig
from pld_ray.config.intervention import ATTENDED
from pld_ray.evaluation.eval_info import in_task, of_checkpoint, write_eval_info
from pld_ray.evaluation.play import EpisodeResult, success_rate
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import CheckpointError
from pld_ray.jobs import offline_stage
from pld_ray.jobs.base_evaluation import BaseEvaluation
from pld_ray.jobs.buffer_dump import BufferDump
from pld_ray.jobs.loop_state import (
    LoopState,
    agree_with_best,
    finish_best,
    forget_end,
    load_first,
    loop_state,
)
from pld_ray.jobs.recording import recording_of
from pld_ray.jobs.result_metrics import (
    flatten_result,
    learner_metrics,
    pool_row,
    record_initialization,
    show,
    show_initialization,
)
from pld_ray.jobs.start_up import StartUp
from pld_ray.jobs.stop_request import Stopped, StopRequest
from pld_ray.jobs.validation import Validation
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.runs.journal import log_line
from pld_ray.runs.layout import (
    BEST,
    CONFIG_FILE,
    CURVE_FILE,
    EVAL_INFO_FILE,
    LOG_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
)
from pld_ray.runs.run_dir import RunDir, checkpoint_steps, older_checkpoint
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.plots import plot_learning_curve
from pld_ray.tracking.progress import TrainProgress
from pld_ray.tracking.system_metrics import SystemMetrics


class TrainingLoop:
    """iterate -> record -> evaluate when due -> checkpoint when due."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        algorithm: OffPolicy,
        tracker: MlflowRun | None,
        logger: Any,
    ) -> None:
        self.config, self.run_dir, self.algorithm = config, run, algorithm
        self.tracker, self.logger = tracker, logger
        self.journal = run.journal
        self.system = SystemMetrics(run.path) if tracker is not None else None
        self.state = LoopState.begin(config)
        self.held_states = list(range(config.evaluation.held_states))
        self.base_evaluation = BaseEvaluation(config, algorithm, self.held_states, self.record)
        self.validation = Validation(config, run, algorithm, self.save, self.record, logger)
        self.dump = self._begin_dump() if config.dump_interval else None
        self.stop_requested = self.keeps_best = False  # the latter: see `agree_with_best`

    def _begin_dump(self) -> BufferDump:
        run_id = self.tracker.run_id if self.tracker is not None else None
        about = {"actor": "training", "run": self.run_dir.path.name, "mlflow_run_id": run_id}
        recording = recording_of(self.config, self.algorithm.config, **about)
        dump = BufferDump(self.run_dir.path, recording, self.config.dump_interval)
        self.algorithm.learners.on_store = dump.take
        return dump

    def stop(self) -> None:
        """Nothing is written any more."""
        if self.dump is not None:
            self.dump.stop()

    def restore(self, checkpoint: pathlib.Path | None = None) -> pathlib.Path | None:
        """Continue from a checkpoint.

        Args:
            checkpoint: the folder; None is the newest that is whole, or the beginning.

        Raises:
            CheckpointError: it is damaged; the message names the next older one.
        """
        if checkpoint is None:
            finish_best(self.run_dir)
        found = [checkpoint] if checkpoint else self.run_dir.find_checkpoints()
        try:
            loaded = load_first(found, self._load, self.logger)
        except CheckpointError as error:
            older = older_checkpoint(found[0]) if len(found) == 1 else None
            advice = (
                f"go on from the next older one with --checkpoint={older.name}"
                if older
                else f"no checkpoint of {self.run_dir.path} is whole: start anew in another folder"
            )
            raise CheckpointError(f"{error}; {advice}") from error
        if loaded is None:
            self.logger.warning("no checkpoint in %s yet: starting anew", self.run_dir.path)
            self._go_back(-1)
            return None
        agree_with_best(self.run_dir, self.state, loaded, self.keeps_best)
        newest = self.run_dir.latest_checkpoint() or loaded
        gives_up = checkpoint_steps(newest) > checkpoint_steps(loaded)
        steps = self.algorithm.env_steps
        self._go_back(steps, self.algorithm.updates, gives_up)
        self.logger.info("resumed %s at %d steps", loaded, steps)
        return loaded

    def _load(self, checkpoint: pathlib.Path) -> None:
        self.algorithm.load_checkpoint(str(checkpoint))
        self.state = loop_state(checkpoint, LoopState)

    def _go_back(self, steps: int, updates: int | None = None, gives_up: bool = False) -> None:
        """Take journal and dumped episodes back to at most `steps`, and leave no end's results."""
        if gives_up or not self.done:
            forget_end(self.run_dir)
        self.journal.restore(steps, updates, self.algorithm.progress.calql_done, gives_up)
        if self.dump is not None:
            self.dump.go_back(steps)
        if self.tracker is not None:
            self.tracker.restored(max(0, steps))

    def run(self, start: StartUp) -> bool:
        """Train until it is `done`; False when a stop was requested.

        Args:
            start: over when the first iteration begins; from then on a stop waits for its end.
        """
        algorithm = self.algorithm
        with TrainProgress(
            self.config.total_steps,
            env_steps=algorithm.env_steps,
            updates=algorithm.updates,
            elapsed_s=self.state.train_wall_s,
        ) as progress:
            self.prepare(progress)
            start.over()
            with StopRequest() as stop, contextlib.suppress(Stopped):
                algorithm.runners.on_wait = lambda: stop.check(progress)
                algorithm.on_share = lambda: self._after_share(progress, stop)
                if self.config.env.robot or self.config.intervention.device in ATTENDED:
                    algorithm.runners.end_with(stop.raise_if_requested)  # nobody is waited for
                try:
                    while not self.done and not stop.requested:
                        self.iterate(progress)
                finally:  # a learner may be lost meanwhile
                    self.stop_requested = stop.requested
        if self.learnt_enough:
            self.logger.info(
                "trained for %d of %d steps: a validation reached evaluation.stop_success (%.2f)",
                *(algorithm.env_steps, self.config.total_steps, self.state.best_success),
            )
        elif not stop.requested:
            self.warn_if_nothing_was_learnt()
        return not stop.requested

    @property
    def done(self) -> bool:
        """`total_steps` are over, or a validation has reached `evaluation.stop_success`."""
        return self.algorithm.env_steps >= self.config.total_steps or self.learnt_enough

    @property
    def learnt_enough(self) -> bool:
        """A validation has reached `evaluation.stop_success`."""
        enough = self.config.evaluation.stop_success
        return enough is not None and self.state.best_success >= enough

    def prepare(self, progress: TrainProgress | None = None) -> None:
        """Evaluate the base policy on the held init states, once it is there to be evaluated."""
        if self.state.base_rows:
            return
        self.base_evaluation.step(
            self.state, self.validation.goes_on, lambda: show(progress, phase="base policy")
        )
        show(progress, **self.state.shown_base)

    def iterate(self, progress: TrainProgress | None = None) -> dict[str, Any]:
        """One training step, an evaluation and a checkpoint when they are due; its figures."""
        self.prepare(progress)
        algorithm = self.algorithm
        clock, offline = time.monotonic(), algorithm.progress.offline_done
        try:
            result = algorithm.train()
        finally:  # a stop ends it, too
            self.state.train_wall_s += time.monotonic() - clock
        record_initialization(algorithm, self.record)
        row = (
            flatten_result(result)
            | learner_metrics(result)
            | {
                "train/success_rate": None,  # a column from the first row on
                **algorithm.progress.recent_metrics(),
                "updates": algorithm.updates,
                "residual_scale": algorithm.residual_scale,
                "time/wall_s": round(self.state.train_wall_s, 2),
            }
        )
        row |= pool_row(algorithm.base_policy_pool)
        self.record(row)
        row |= self.validation.step(self.state, lambda: show(progress, phase="evaluate"))
        show(
            progress,
            phase=algorithm.phase,
            env_steps=algorithm.env_steps,
            updates=algorithm.updates,
            train_success=row.get("train/success_rate"),
            assisted_success=row.get("train/assisted_success_rate"),
            intervention_share=row.get("train/intervention_share"),
            late_step_share=row.get("train/late_step_share"),
            eval_success=row.get("eval/residual_success"),
            **self.state.shown_base,
        )
        if offline_stage.checkpoint_due(self.config, algorithm.progress, before=offline):
            self._save_offline(progress)
        if self.state.checkpoint_due(algorithm.env_steps, self.config.checkpoint.interval_steps):
            self.save_periodic()
        if self.dump is not None:
            self.dump.step(algorithm.env_steps)
        return row

    def _after_share(self, progress: TrainProgress, stop: StopRequest) -> None:
        """For what comes before `online`, which may be one long iteration; raises Stopped."""
        record_initialization(self.algorithm, self.record)
        show_initialization(self.algorithm, progress)
        stop.raise_if_requested()

    def _save_offline(self, progress: TrainProgress | None) -> None:
        """A checkpoint named after its updates; at the phase's end with what it has led to."""
        path = self.save(offline_stage.checkpoint_name(self.algorithm.updates))
        self.run_dir.prune(self.config.checkpoint.keep, offline_stage.CHECKPOINTS)
        self.prepare(progress)
        offline_stage.note_state(path, self.state)

    def save_periodic(self) -> pathlib.Path:
        """A checkpoint named after its environment steps; the oldest beyond `keep` are deleted."""
        path = self.save(f"step_{self.algorithm.env_steps:09d}")
        self.run_dir.prune(self.config.checkpoint.keep)
        return path

    def warn_if_nothing_was_learnt(self) -> None:
        """Say so when the collection took all steps."""
        if self.algorithm.updates == 0:
            self.logger.warning(
                "all %d total_steps went into %s: nothing was learnt. Raise total_steps, or lower "
                "algorithm.offline_episodes (base successes), collection_steps or warmup_steps",
                self.config.total_steps,
                "the collection" if self.algorithm.phase == "collect" else "collection and Cal-QL",
            )

    def finish(self, started: float) -> dict[str, Any]:
        """Final checkpoint, then base + residual (the best) on the held init states, where the base
        policy, if there is one, was evaluated at the start."""
        algorithm, run = self.algorithm, self.run_dir
        env_steps, updates = algorithm.env_steps, algorithm.updates
        if env_steps >= self.config.total_steps:  # a stop may have come before the last one
            self.validation.step(self.state, lambda: None)
        self.base_evaluation.finish(self.state)
        final = self.save("final")
        best = run.checkpoints / BEST
        chosen = best if best.exists() else final
        if chosen == best:
            try:
                algorithm.load_checkpoint(str(best))
            except CheckpointError as error:
                self.logger.warning("%s; the final checkpoint is evaluated in its place", error)
                algorithm.load_checkpoint(str(final))
                chosen = final
        clock = time.monotonic()
        episodes = algorithm.evaluate_residual(self.held_states)
        base = [EpisodeResult.of_row(row) for row in self.state.base_rows]
        eval_s = time.monotonic() - clock
        base_success = success_rate(base) if base else None
        residual_success = success_rate(episodes)
        write_eval_info(
            run.path / EVAL_INFO_FILE,
            in_task(episodes, self.config.env),
            base=in_task(base, self.config.env) if base else None,
            eval_s=eval_s,
            extra={"task": self.config.env.task, **of_checkpoint(chosen), "env_steps": env_steps},
        )
        held = {"eval/held_residual_success": residual_success}
        if base_success is not None:
            held["eval/held_base_success"] = base_success
        self.record(held, env_steps)
        title = f"{self.config.env.task.replace('_', ' ')}, seed {self.config.seed}"
        curve, value_range = run.path / CURVE_FILE, self.config.algorithm.value_range
        plot_learning_curve(self.journal.rows(), curve, title=title, value_range=value_range)
        summary = {
            "base_success": base_success,
            "residual_success": residual_success,
            "n_episodes": len(episodes),
            "env_steps": env_steps,
            "updates": updates,
            "best_validation_success": self.state.best_success,
            "validation_base_success": self.state.validation_base,
            "train_wall_s": round(self.state.train_wall_s, 1),
            "total_wall_s": round(time.time() - started, 1),
            "mlflow_tracking_uri": self.tracker.tracking_uri if self.tracker else None,
            "mlflow_run_id": self.tracker.run_id if self.tracker else None,
            "checkpoint": str(chosen),
            "seed": self.config.seed,
            "task": self.config.env.task,
        }
        write_json_atomically(run.path / SUMMARY_FILE, summary)
        self._log_artifacts(chosen)
        return summary

    def _log_artifacts(self, checkpoint: pathlib.Path) -> None:
        """The run's results, and the networks of `checkpoint` without its replay."""
        if self.tracker is None:
            return
        results = (EVAL_INFO_FILE, CURVE_FILE, SUMMARY_FILE)
        for name in (CONFIG_FILE, *results, LOG_FILE, METRICS_FILE):
            self.tracker.log_artifact(self.run_dir.path / name)
        self.tracker.log_checkpoint(checkpoint)

    def save(self, name: str) -> pathlib.Path:
        """A checkpoint with the replay and the loop's own state; what it has seen is dumped."""
        if self.dump is not None:
            self.dump.close(self.algorithm.env_steps)
        path = self.run_dir.save_checkpoint(
            self.algorithm.save_checkpoint, name, asdict(self.state) | self.validation.unfinished
        )
        self.logger.info("checkpoint %s at %d steps", path, self.algorithm.env_steps)
        return path

    def record(self, row: dict[str, Any], env_steps: int | None = None) -> None:
        """One row of the journal at the present environment step, for log and MLflow too."""
        steps = self.algorithm.env_steps if env_steps is None else env_steps
        machine = self.system.sample(steps) if self.system is not None else {}
        self.logger.info(log_line(self.journal.append({"env_steps": steps, **row, **machine})))
