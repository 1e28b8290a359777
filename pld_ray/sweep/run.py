"""`pld-ray sweep`: start, resume and conclude a sweep."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ray import tune

from pld_ray.config import TrainConfig
from pld_ray.config.file import dump_config, encode, with_flags
from pld_ray.files.atomic import undone_unless, write_atomically
from pld_ray.jobs.build import check_environment
from pld_ray.jobs.cluster import check_fits, running_ray
from pld_ray.jobs.elsewhere import joined_now, located, with_absolute_store
from pld_ray.jobs.open_tracker import config_errors
from pld_ray.jobs.pretrained_critic import UNSEEN
from pld_ray.runs.layout import (
    BASE_FILE,
    SUMMARY_FILE,
    TRIALS,
    resuming,
    trial_folder,
)
from pld_ray.runs.status import FAILED, FINISHED, INTERRUPTED, RUNNING, failure_reason, write_status
from pld_ray.runs.trust import check_trusted, remember
from pld_ray.sweep import plan
from pld_ray.sweep.config import Sweep
from pld_ray.sweep.ended import (
    EndedTrials,
    drawn_points,
    ended_figures,
    known_points,
    note_ended,
)
from pld_ray.sweep.folder import (
    TrialName,
    check_new,
    claim,
    claimed,
    load_folder,
    write_record,
    write_settings,
)
from pld_ray.sweep.outcome import as_csv, summarize, trial_rows
from pld_ray.sweep.progress import SweepProgress
from pld_ray.sweep.publish import open_sweep_run, publish
from pld_ray.tracking.logfile import setup_logging, write_to_log
from pld_ray.tracking.mlflow_record import read_record
from pld_ray.tracking.mlflow_run import MlflowRun


def run_sweep(sweep: Sweep) -> dict[str, Any]:
    """Run a new sweep.

    Returns:
        The content of its `summary.json`.

    Raises:
        ConfigError: the folder holds a sweep already, a point cannot work, the cluster is too
            small.
    """
    folder = sweep.config.folder()
    check_new(folder)
    remember(trial_configs(sweep))
    check_points(sweep)
    with running_ray(located(sweep.base, sweep.started_in), sweep.config.ray_address):
        check_resources(sweep)
        with claimed(folder), undone_unless(folder, lambda: has_begun(folder)):
            write_atomically(folder / BASE_FILE, dump_config(sweep.base))
            write_settings(sweep, folder)
            write_record(sweep, folder)
            return _Driver(sweep, folder, resumed=False).run()


def resume_sweep(
    folder: pathlib.Path, anew: Mapping[str, str] | None = None, trust: bool = False
) -> dict[str, Any]:
    """Go on with a sweep that was killed or interrupted; what is finished is not rerun.

    Args:
        folder: of the sweep.
        anew: settings as flags, in place of the sweep's own, or of its trials', from now on: a
            `ray_address`, which goes before RAY_ADDRESS, where it logs, whether and how long it
            asks for room.
        trust: run the code that the sweep names, see `pld_ray.runs.trust`.

    Raises:
        ConfigError: the folder holds no sweep, or one of another version.
    """
    folder = folder.resolve()
    sweep, anew = load_folder(folder), anew or {}
    own = {key: text for key, text in anew.items() if not key.startswith("placement.")}
    sweep.config = with_flags(sweep.config, own)
    sweep.base = with_flags(sweep.base, {key: anew[key] for key in anew.keys() - own.keys()})
    if "tracking.uri" in anew:
        sweep.config = with_absolute_store(sweep.config)
    known = known_points(folder / TRIALS)
    plan.check_begun(sweep, known)
    for config in trial_configs(sweep, known):
        check_trusted(config, folder / BASE_FILE, trust)
    joined = sweep.config if "ray_address" in anew else joined_now(sweep.config)
    with running_ray(located(sweep.base, sweep.started_in), joined.ray_address):
        check_resources(sweep)
        driver = _Driver(sweep, folder, resumed=True)
        if anew:
            write_settings(sweep, folder)
            write_atomically(folder / BASE_FILE, dump_config(sweep.base))
        return driver.run()


def trial_configs(
    sweep: Sweep, known: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[TrainConfig]:
    """Every trial's configuration; of a search the one that it starts from.

    Args:
        sweep: new, or resumed.
        known: points of a resumed one's trials.
    """
    for point in plan.points_now(sweep, known or {}) if sweep.config.searcher == "random" else [{}]:
        yield sweep.trial_config(point)


def check_points(sweep: Sweep) -> None:
    """Build every trial's configuration, and open each different environment and policy once."""
    seen = set()
    for config in trial_configs(sweep):
        parts = encode(config)
        learnt = [parts["algorithm"].get(name) for name in CHECKED_WITH_DATA]
        learnt.append(parts.get("pretrained_critic"))
        key = json.dumps(
            [parts["env"], parts["policy"], parts["evaluation"], learnt], sort_keys=True
        )
        if key not in seen:
            seen.add(key)
            check_environment(config)


def check_resources(sweep: Sweep) -> None:
    """Refuse a sweep none of whose trials finds room on the cluster."""
    for config in trial_configs(sweep):
        check_fits(config, plan.roles(sweep, config))


CHECKED_WITH_DATA = ("horizon", "bc_episodes", "actor_path", *UNSEEN)
"""Settings of an algorithm that a dataset, a policy or a pretrained critic may not fit."""


class _Driver:
    """One life of a sweep."""

    def __init__(self, sweep: Sweep, folder: pathlib.Path, resumed: bool) -> None:
        self.sweep, self.folder, self.resumed = sweep, folder, resumed
        self.started = time.time()
        seconds = sweep.config.stop.wall_time_s
        self.wall_time = None if seconds is None else plan.WallTime(seconds)
        self.logger = setup_logging(folder)
        write_to_log(logging.getLogger("ray.tune"), self.logger)  # a dead trial is forty lines
        self.lock = claim(folder)
        try:
            write_status(folder, RUNNING)
            self.tracker = self._open_tracker()
        except BaseException:
            self.lock.release()
            raise

    def run(self) -> dict[str, Any]:
        """Run Tune to the end and conclude."""
        with sigterm_as_interrupt():
            return self._run()

    def _run(self) -> dict[str, Any]:
        status, state, reason = "FAILED", FAILED, ""
        how = "goes on" if self.resumed else "begins"
        again = f"pld-ray sweep {resuming(self.folder)}"
        self.logger.info("the sweep %s: %d trials", how, plan.num_trials(self.sweep))
        # now, for Ray ends this process without a word where its head goes away
        print(f"[sweep] if it is cut off, continue with: {again}", flush=True)
        try:
            summary = self._conclude(self._fit())
            state = summary["state"]
            status = "FINISHED" if state == FINISHED else "KILLED"
        except KeyboardInterrupt:
            state, status = INTERRUPTED, "KILLED"
            self.logger.info("the sweep was interrupted")
            kept = self.resumed or has_begun(self.folder)
            left = f"continue with: {again}" if kept else "nothing was trained, and nothing is left"
            raise KeyboardInterrupt(f"interrupted; {left}") from None
        except Exception as error:
            reason = failure_reason(error)
            self.logger.exception("the sweep failed")
            if self.resumed or has_begun(self.folder):
                print(f"[sweep] it failed; continue with: {again}", flush=True)
            raise
        finally:
            write_status(self.folder, state, reason)
            if self.tracker is not None and (self.resumed or has_begun(self.folder)):
                self.tracker.finish(status)
            elif self.tracker is not None:
                self.tracker.discard()
            self.lock.release()
        return summary

    def _fit(self) -> tune.ResultGrid:
        config = self.sweep.config
        os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative paths stay what they are
        os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # our own files suffice
        os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # `SweepProgress` is the display
        os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
        uri = self.tracker.tracking_uri if self.tracker else ""
        run_id = self.tracker.run_id if self.tracker else ""
        context = plan.context(self.sweep, self.folder, uri, run_id, self.resumed)
        trainable = plan.trainable(self.sweep, context)
        trials = self.folder / TRIALS
        space = plan.param_space(self.sweep, known_points(trials))
        state = self.folder / "tune"
        remove(state)  # what Tune keeps there for itself is pickled, and never read again
        is_search = config.searcher == "optuna"
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                search_alg=plan.searcher(config, drawn_points(trials)),
                scheduler=plan.scheduler(self.sweep),
                num_samples=plan.num_trials(self.sweep) if is_search else 1,
                max_concurrent_trials=config.max_concurrent,
                # a new process imports for ten seconds; but a paused trial holds its folder in one
                reuse_actors=config.scheduler.type in ("none", "asha"),
                trial_name_creator=TrialName(self.folder),
                trial_dirname_creator=str,
            ),
            run_config=tune.RunConfig(
                name=state.name,
                storage_path=str(self.folder),
                stop=self.wall_time,
                failure_config=tune.FailureConfig(max_failures=config.max_failures),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
                callbacks=[
                    SweepProgress(
                        plan.num_trials(self.sweep),
                        config.metric,
                        config.stop.env_steps or self.sweep.base.total_steps,
                        str(self.folder),
                    ),
                    EndedTrials(trials),
                ],
                verbose=0,
            ),
        ).fit()

    # --- ends ------------------------------------------------------------------------------------

    def _conclude(self, results: tune.ResultGrid) -> dict[str, Any]:
        over = self.wall_time is not None and self.wall_time.over
        if over:  # Tune ends such trials without a word
            self._note_stopped(results)
        rows = trial_rows(self.folder, results)
        summary = {
            "name": self.sweep.config.name,
            **summarize(rows, plan.num_trials(self.sweep), over),
            "wall_s": round(time.time() - self.started, 1),
            "mlflow_tracking_uri": self.tracker.tracking_uri if self.tracker else None,
            "mlflow_run_id": self.tracker.run_id if self.tracker else None,
        }
        write_atomically(self.folder / "trials.csv", as_csv(rows))
        write_atomically(self.folder / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
        if self.tracker is not None:
            self._close_lost([row for row in rows if row["state"] == "failed"])
            env_steps = sum(row["env_steps"] or 0 for row in rows)
            publish(self.tracker, self.folder, summary, env_steps)
        self.logger.info("the sweep is %s after %.0f s", summary["state"], summary["wall_s"])
        return summary

    def _note_stopped(self, results: tune.ResultGrid) -> None:
        """What the end of the sweep's time cut short has ended, if it has figures."""
        for result in results:
            folder = trial_folder(self.folder, pathlib.Path(result.path).name)
            if result.error is None and ended_figures(folder) is None:
                note_ended(folder, result.metrics)

    def _close_lost(self, failed: list[dict[str, Any]]) -> None:
        """A trial that was killed for good could not close its MLflow run."""
        for row in failed:
            if read_record(row["folder"]) is None:
                continue
            try:
                run = MlflowRun.resume(row["folder"], tags={"failure": row["failure"][:500]})
            except (OSError, ValueError) as error:
                self.logger.warning("MLflow run of %s stays open: %s", row["trial"], error)
            else:
                run.finish("FAILED")

    def _open_tracker(self) -> MlflowRun | None:
        if not self.sweep.config.tracking.enabled:
            return None
        settings = self.sweep.config.tracking
        with config_errors():
            return open_sweep_run(
                self.folder,
                self.sweep.config.name,
                settings.uri,
                settings.experiment,
                encode(self.sweep.config),
            )


def has_begun(folder: pathlib.Path) -> bool:
    """Whether a sweep has trials, so that there is something to go on with."""
    return any(folder.glob(f"{TRIALS}/*"))


def remove(folder: pathlib.Path) -> None:
    """Delete a folder, or the link that stands for one."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, as `ray job stop` sends it, ends what is inside like Ctrl-C.

    Tune ends its trials in order on SIGINT; on SIGTERM Ray prints a native stack trace and aborts.
    To be entered when Ray runs, which sets a handler of its own; Tune leaves one behind for SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
