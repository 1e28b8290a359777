"""One trial of a sweep: a training run that Ray Tune steps, saves, stops and restarts."""

from __future__ import annotations

import contextlib
import pathlib
import time
from typing import Any

from ray import tune

from pld_ray.config import ConfigError, TrackingConfig
from pld_ray.config.acrlpd_train import config_class_of
from pld_ray.config.file import decode
from pld_ray.files.atomic import write_json_atomically
from pld_ray.jobs.build import build_algorithm
from pld_ray.jobs.open_tracker import open_tracker
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.runs.layout import (
    CONFIG_FILE,
    POINT_FILE,
    STATUS_FILE,
    SUMMARY_FILE,
    TRIAL_FILE,
    read_json,
    trial_folder,
)
from pld_ray.runs.reading import wall_before
from pld_ray.runs.run_dir import RunDir, checkpoint_steps
from pld_ray.runs.status import FAILED, FINISHED, RUNNING, STOPPED, failure_reason
from pld_ray.sweep.config import Sweep, SweepConfig, label, short
from pld_ray.sweep.ended import ended_figures, write_trial
from pld_ray.sweep.space import varied_axes
from pld_ray.tracking.logfile import setup_logging
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.outbox import said_its_end

POINTER_FILE = "trial_checkpoint.json"
CLAIM_WAIT_S = 60.0
"""Tune may give a trial to a process that is free while it kills the one it had begun to start."""


class SweepTrial(tune.Trainable):
    """`pld-ray train` in steps: each `step` ends with an evaluation.

    The run's folder is `<sweep>/trials/<trial>`. Tune's checkpoint is a pointer to a checkpoint in
    such a folder, so nothing is copied; a trial that died goes on from the newest one it wrote.

    Args of `setup`:
        config: `point`, axis -> value.
        sweep: what all trials share, see `plan.context`.
    """

    def setup(self, config: dict[str, Any], sweep: dict[str, Any] | None = None) -> None:
        assert sweep is not None
        self._started = time.time()
        self._sweep_dir = pathlib.Path(sweep["folder"])
        self._is_population = sweep["settings"]["scheduler"]["type"] == "pbt"
        self._loop: TrainingLoop | None = None
        self._algorithm: OffPolicy | None = None
        self._tracker: MlflowRun | None = None
        self._figures_at_end: dict[str, Any] | None = None
        self._run = RunDir(trial_folder(self._sweep_dir, self.trial_name))
        plan = Sweep(
            decode(SweepConfig, sweep["settings"]),
            decode(config_class_of(sweep["base"]), sweep["base"]),
            sweep["preset"],
            started_in=sweep.get("started_in"),
        )
        point = resolve_seed(config["point"], config.get("__trial_index__"), plan.config.seeds)
        self._config = plan.trial_config(point)
        self._config.output_dir = str(self._run.path)
        self._config.tracking = TrackingConfig(**sweep["tracking"])
        self._stop = plan.config.stop
        self._run.path.mkdir(parents=True, exist_ok=True)
        self._run.claim(wait_s=CLAIM_WAIT_S)  # another process may be ending it at the moment
        known = (self._run.path / CONFIG_FILE).is_file()
        summary = read_json(self._run.path / SUMMARY_FILE)
        self._figures_at_end = ended_figures(self._run.path)
        if "residual_success" in summary and (self._figures_at_end or not self._is_population):
            self._figures_at_end = final_figures(summary)
            if self._said_its_end():
                self._run.release()
            else:  # it ended, and died before it had said so
                self._track(point, sweep, plan.config.name)
                self._end("FINISHED", FINISHED)
            return
        if self._figures_at_end is not None:
            self._run.release()
            return  # its scheduler had stopped it
        write_json_atomically(self._run.path / TRIAL_FILE, {"point": label(point)})
        self._logger = setup_logging(self._run.path)
        write_trial(
            self._run.path,
            point={axis: value for axis, value in config["point"].items() if axis != "id"},
            index=config.get("__trial_index__"),
        )
        try:
            self._start(point, known, sweep, plan.config.name)
        except Exception as error:
            self._fail(error)
            raise

    def _start(
        self, point: dict[str, Any], known: bool, sweep: dict[str, Any], sweep_name: str
    ) -> None:
        """Open the tracker and build the algorithm, restored where the folder has a checkpoint."""
        self._track(point, sweep, sweep_name)
        if not known or self._is_population:
            self._run.create(self._config)
        self._algorithm = build_algorithm(self._config)
        self._algorithm.learners.failure_dir = str(self._run.path)
        self._loop = TrainingLoop(
            self._config, self._run, self._algorithm, self._tracker, self._logger
        )
        self._loop.keeps_best = self._is_population
        if known and self._is_population and sweep["resumed"]:
            name = read_json(self._run.path / POINT_FILE).get("checkpoint")
            path = self._run.checkpoints / str(name)  # not the newest: a donor's may be older
            self._loop.restore(path if path.is_dir() else None)
        elif known and not self._is_population:
            self._started -= wall_before(self._run.path)
            restored = self._loop.restore()
            if restored is not None:
                self._run.go_on_from(restored)

    def _said_its_end(self) -> bool:
        """Whether nothing is left to be said: Tune may make a process for a trial that ends in
        another one meanwhile, and kill it at any moment."""
        if read_json(self._run.path / STATUS_FILE).get("state") != FINISHED:
            return False
        return not self._config.tracking.enabled or said_its_end(self._run.path)

    def _track(self, point: dict[str, Any], sweep: dict[str, Any], sweep_name: str) -> None:
        """Make or continue the folder's MLflow run under the sweep's."""
        self._run.set_status(RUNNING)
        settings = sweep["settings"]
        space = {**settings["space"], **settings["scheduler"]["mutations"]}
        varied = varied_axes(space, settings["variants"])
        self._tracker = open_tracker(
            self._config,
            self._run,
            kind="trial",
            parent_run_id=sweep["parent_run_id"],
            extra_tags={
                "sweep": sweep_name,
                "trial": self.trial_name,
                "point": label(point),
                "failure": "",
                "stopped": "",
            },
            preset=sweep["preset"],
            varied={axis: short(value) for axis, value in point.items() if axis in varied},
            sweep_host=sweep["host"],
        )

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial: a process that has imported everything saves ten seconds."""
        self.cleanup()
        self.setup(new_config)  # `tune.with_parameters` adds what all trials share
        return True

    def step(self) -> dict[str, Any]:
        """Train until an evaluation is over, or to the end of the run."""
        if self._loop is None:
            assert self._figures_at_end is not None
            return {**self._figures_at_end, "done": True}
        try:
            self._loop.prepare()
            row: dict[str, Any] = {}
            while not self._loop.done and "eval/residual_success" not in row:
                row = self._loop.iterate()
            figures = self._figures(row)
            if self._loop.done or self._has_learnt_enough(figures):
                self._loop.warn_if_nothing_was_learnt()
                summary = self._loop.finish(self._started)
                self._end("FINISHED", FINISHED)
                self._figures_at_end = {**figures, **final_figures(summary)}
                return {**self._figures_at_end, "done": True}
            return figures
        except Exception as error:
            self._fail(error)
            raise

    def _figures(self, row: dict[str, Any]) -> dict[str, Any]:
        assert self._loop is not None
        algorithm, state = self._loop.algorithm, self._loop.state
        success = row.get("eval/residual_success", max(state.best_success, 0.0))
        return {
            "env_steps": algorithm.env_steps,
            "updates": algorithm.updates,
            "eval/residual_success": success,
            "best_success": max(state.best_success, 0.0),
            "train/success_rate": row.get("train/success_rate"),
            "wall_s": state.train_wall_s,
        }

    def _has_learnt_enough(self, figures: dict[str, Any]) -> bool:
        stop, wall_s = self._stop, figures["wall_s"]
        if stop.success is not None and figures["eval/residual_success"] >= stop.success:
            return True
        return stop.trial_wall_time_s is not None and wall_s >= stop.trial_wall_time_s

    # --- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save in the run's folder; Tune keeps where."""
        name = "final" if self._loop is None else self._loop.save_periodic().name
        pointer = {"trial": self.trial_name, "checkpoint": name}
        write_json_atomically(pathlib.Path(checkpoint_dir) / POINTER_FILE, pointer)
        if self._loop is not None:
            write_trial(self._run.path, checkpoint=name)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from it, or from a newer one that this trial wrote before it died.

        Raises:
            ConfigError: the checkpoint is gone.
        """
        if self._loop is None:
            return
        pointer = read_json(pathlib.Path(checkpoint_dir) / POINTER_FILE)
        run = RunDir(trial_folder(self._sweep_dir, pointer["trial"]))
        path = run.checkpoints / pointer["checkpoint"]
        if pointer["trial"] == self.trial_name and not self._is_population:
            newest = self._run.latest_checkpoint()
            if newest is not None and (
                not path.exists() or checkpoint_steps(newest) >= checkpoint_steps(path)
            ):
                return  # setup restored it
        if not path.exists():
            raise ConfigError(
                f"{path}, the checkpoint to continue trial {self.trial_name} from, is gone"
            )
        self._loop.restore(path)
        before, now = (
            getattr(config.algorithm, "temperature_init", None)
            for config in (run.load_config(), self._config)
        )
        if now is not None and now != before:
            self._loop.algorithm.learners.set_temperature(now)

    # --- ends ------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Leave the reason where people look for it, and the folder to the next attempt."""
        reason = failure_reason(error)
        self._logger.exception("the trial failed")
        if self._tracker is not None:
            self._tracker.set_tag("failure", reason)
        self._end("FAILED", FAILED, reason)

    def _end(self, mlflow_status: str, state: str, reason: str = "") -> None:
        """Say how it ended, close the MLflow run, end the processes, free the folder."""
        with contextlib.suppress(OSError):  # a full disk: the rest must end nevertheless
            self._run.set_status(state, reason)
        if self._tracker is not None:
            self._tracker.finish(mlflow_status)
            self._tracker = None
        if self._loop is not None:
            self._loop.stop()
        if self._algorithm is not None:
            self._algorithm.stop()
            self._algorithm = None
        self._loop = None
        self._run.release()

    def cleanup(self) -> None:
        """The scheduler or the user ends the trial, unless it is over already."""
        if self._loop is None:
            return
        steps = self._loop.algorithm.env_steps
        reason = f"by the scheduler or the user at {steps} steps"
        if self._tracker is not None:
            self._tracker.set_tag("stopped", reason)
        self._end("FINISHED", STOPPED, reason)


def resolve_seed(point: dict[str, Any], repetition: int | None, seeds: list[int]) -> dict[str, Any]:
    """A searcher's point with the seed of its repetition; other points have theirs already."""
    point = {axis: value for axis, value in point.items() if axis != "id"}
    return point if "seed" in point else {**point, "seed": seeds[repetition or 0]}


def final_figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What the end of a trial adds to its last report."""
    return {
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "base_success": summary["base_success"],
        "held_success": summary["residual_success"],
        "best_success": max(summary["best_validation_success"], 0.0),
        "eval/residual_success": max(summary["best_validation_success"], 0.0),
        "wall_s": summary["train_wall_s"],
    }
