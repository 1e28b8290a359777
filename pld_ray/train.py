"""`pld-ray train`: collect, train, evaluate, keep; stop and resume without losing anything."""

from __future__ import annotations

import pathlib
import signal
import time
from dataclasses import asdict, dataclass, field
from types import FrameType, TracebackType
from typing import Any

import ray

from pld_ray.algorithm.algorithm import ResidualSAC, write_json_atomically
from pld_ray.build import build_algorithm, check_environment, start_ray
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.evaluation_rows import episode_results
from pld_ray.metrics import flatten_result
from pld_ray.run_dir import RunDir, trainer_state
from pld_ray.tracking.eval_info import write_eval_info
from pld_ray.tracking.history import MetricsHistory
from pld_ray.tracking.logfile import setup_logging
from pld_ray.tracking.mlflow_run import MissingRunError, MlflowRun, read_record
from pld_ray.tracking.plots import plot_learning_curve
from pld_ray.tracking.progress import TrainProgress


@dataclass
class LoopState:
    """What the loop itself has to remember across a resume."""

    base_rows: list[dict[str, Any]] = field(default_factory=list)
    best_success: float = -1.0
    next_evaluation: int = 0
    next_checkpoint: int = 0
    train_wall_s: float = 0.0


class StopRequest:
    """Turns the first SIGINT / SIGTERM into a flag, so that a run stops between two iterations."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after this iteration and saving; once more to abort", flush=True)


def train(config: TrainConfig, resume: pathlib.Path | None = None) -> dict[str, Any]:
    """Run the main job, new or from the newest checkpoint of `resume`.

    Returns:
        The content of `summary.json`; without `residual_success` when the run was interrupted.

    Raises:
        ConfigError: something in the configuration cannot work.
        RunError: the run cannot go on; the last good checkpoint is named.
    """
    started = time.time()
    run = RunDir(resume or config.output_dir)
    check_environment(config)
    if resume is None:
        run.check_new()
    logger = setup_logging(run.path)
    tracker = open_tracker(config, run)
    if resume is None:
        run.create(config)
    own_ray = start_ray(config)
    algorithm = None
    status = "FAILED"
    try:
        algorithm = build_algorithm(config)
        algorithm.failure_dir = str(run.path)
        loop = TrainingLoop(config, run, algorithm, tracker, logger)
        if resume is not None:
            loop.restore()
        with StopRequest() as stop:
            finished = loop.run(stop)
        if finished:
            summary = loop.finish(started)
            status = "FINISHED"
        else:
            checkpoint = loop.save("interrupted")
            summary = {"env_steps": algorithm.env_steps, "checkpoint": str(checkpoint)}
            status = "KILLED"
            print(f"saved {checkpoint}\ncontinue with: pld-ray train --resume={run.path}")
    except Exception:
        logger.exception("the run failed")
        raise
    finally:
        if tracker is not None:
            tracker.finish(status)
        if algorithm is not None:
            algorithm.stop()
        if own_ray:
            ray.shutdown()
    return summary


def open_tracker(config: TrainConfig, run: RunDir) -> MlflowRun | None:
    """The MLflow run of this training run, continued when the folder knows one.

    Raises:
        ConfigError: the server does not answer, or the run is not there any more.
    """
    settings = config.tracking
    if not settings.enabled:
        return None
    try:
        if read_record(run.path) is not None:
            return MlflowRun.resume(run.path, tracking_uri=settings.uri)
        tracker = MlflowRun(
            run.path,
            tracking_uri=settings.uri,
            store_dir=run.path.parent,
            experiment_name=settings.experiment,
            run_name=settings.run_name or f"{config.env.task}-seed{config.seed}",
        )
    except (ConnectionError, MissingRunError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    tracker.log_params(asdict(config))
    return tracker


class TrainingLoop:
    """iterate -> record -> evaluate when due -> checkpoint when due."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        algorithm: ResidualSAC,
        tracker: MlflowRun | None,
        logger: Any,
    ) -> None:
        self.config, self.run_dir, self.algorithm = config, run, algorithm
        self.tracker, self.logger = tracker, logger
        self.history = MetricsHistory(run.path / "metrics.jsonl")
        self.state = LoopState(
            next_evaluation=config.evaluation.interval_steps,
            next_checkpoint=config.checkpoint.interval_steps,
        )
        held = config.evaluation.held_states
        self.held_states = list(range(held))
        self.validation_states = list(range(held, held + config.evaluation.validation_states))

    def restore(self) -> None:
        """Continue from the newest checkpoint; from the beginning when there is none yet."""
        checkpoint = self.run_dir.latest_checkpoint()
        if checkpoint is None:
            self.logger.warning("no checkpoint in %s yet: starting anew", self.run_dir.path)
            self.history = MetricsHistory(self.history.path, restored_step=-1)
            return
        self.algorithm.load_checkpoint(str(checkpoint))
        self.state = LoopState(**trainer_state(checkpoint))
        steps = self.algorithm.env_steps
        self.history = MetricsHistory(self.history.path, restored_step=steps)
        self.logger.info("resumed %s at %d steps", checkpoint, self.algorithm.env_steps)

    def run(self, stop: StopRequest) -> bool:
        """Train to `total_steps`; False when a stop was requested."""
        algorithm, total = self.algorithm, self.config.total_steps
        with TrainProgress(
            total,
            env_steps=algorithm.env_steps,
            updates=algorithm.updates,
            elapsed_s=self.state.train_wall_s,
        ) as progress:
            if not self.state.base_rows:
                progress.update(phase="base policy")
                self.state.base_rows = algorithm.evaluate_base(self.held_states)
                base = success_rate(self.state.base_rows)
                self.record({"eval/base_success": base, "eval/n_episodes": len(self.held_states)})
                progress.update(base_success=base)
            while algorithm.env_steps < total and not stop.requested:
                clock = time.monotonic()
                result = algorithm.train()
                self.state.train_wall_s += time.monotonic() - clock
                record_initialization(algorithm, self.record)
                row = flatten_result(result) | {
                    "train/success_rate": running_success(algorithm.recent_success),
                    "updates": algorithm.updates,
                    "residual_scale": algorithm.schedule.value(
                        algorithm.env_steps - algorithm.collection.env_steps
                    ),
                }
                if algorithm.updates and self._evaluation_due(total):
                    progress.update(phase="evaluate")
                    row |= self.evaluate()
                self.record(row)
                progress.update(
                    phase=algorithm.phase,
                    env_steps=algorithm.env_steps,
                    updates=algorithm.updates,
                    train_success=row.get("train/success_rate"),
                    eval_success=row.get("eval/residual_success"),
                )
                if self._checkpoint_due():
                    self.save(f"step_{algorithm.env_steps:09d}")
                    self.run_dir.prune(self.config.checkpoint.keep)
        return not stop.requested

    def evaluate(self) -> dict[str, float]:
        """Success on the validation states; the best one so far is kept as `best`."""
        rows = self.algorithm.evaluate_residual(self.validation_states)
        success = success_rate(rows)
        if success >= self.state.best_success:
            self.state.best_success = success
            self.save("best")
        return {"eval/residual_success": success, "eval/n_episodes": len(rows)}

    def finish(self, started: float) -> dict[str, Any]:
        """Final checkpoint, then base and base + residual (the best) on the held init states."""
        algorithm, run = self.algorithm, self.run_dir
        env_steps, updates = algorithm.env_steps, algorithm.updates
        final = self.save("final")
        best = run.checkpoints / "best"
        chosen = best if best.exists() else final
        if chosen == best:
            algorithm.load_checkpoint(str(best))
        clock = time.monotonic()
        rows = algorithm.evaluate_residual(self.held_states)
        eval_s = time.monotonic() - clock
        base_success = success_rate(self.state.base_rows)
        residual_success = success_rate(rows)
        write_eval_info(
            run.path / "eval_info.json",
            episode_results(rows, self.config.env),
            base=episode_results(self.state.base_rows, self.config.env),
            eval_s=eval_s,
            extra={"task": self.config.env.task, "checkpoint": str(chosen), "env_steps": env_steps},
        )
        self.record(
            {
                "eval/held_residual_success": residual_success,
                "eval/held_base_success": base_success,
            },
            env_steps,
        )
        title = f"{self.config.env.task.replace('_', ' ')}, seed {self.config.seed}"
        plot_learning_curve(self.history.rows(), run.path / "learning_curve.png", title=title)
        summary = {
            "base_success": base_success,
            "residual_success": residual_success,
            "n_episodes": len(rows),
            "env_steps": env_steps,
            "updates": updates,
            "best_validation_success": self.state.best_success,
            "train_wall_s": round(self.state.train_wall_s, 1),
            "total_wall_s": round(time.time() - started, 1),
            "mlflow_tracking_uri": self.tracker.tracking_uri if self.tracker else None,
            "mlflow_run_id": self.tracker.run_id if self.tracker else None,
            "checkpoint": str(chosen),
            "seed": self.config.seed,
            "task": self.config.env.task,
        }
        write_json_atomically(run.path / "summary.json", summary)
        if self.tracker is not None:
            names = ("config.yaml", "eval_info.json", "learning_curve.png", "summary.json")
            for name in (*names, "train.log"):
                self.tracker.log_artifact(run.path / name)
        return summary

    def save(self, name: str) -> pathlib.Path:
        """A checkpoint with the replay and the loop's own state."""
        path = self.run_dir.save_checkpoint(self.algorithm, name, asdict(self.state))
        self.logger.info("checkpoint %s at %d steps", path, self.algorithm.env_steps)
        return path

    def record(self, row: dict[str, Any], env_steps: int | None = None) -> None:
        """One line of history, log and MLflow at the present environment step."""
        steps = self.algorithm.env_steps if env_steps is None else env_steps
        row = {"env_steps": steps, **row}
        self.history.append(row)
        self.logger.info(
            " ".join(f"{k}={v:.4g}" for k, v in row.items() if isinstance(v, int | float))
        )
        if self.tracker is not None:
            self.tracker.log_metrics({k: v for k, v in row.items() if k != "env_steps"}, steps)

    def _evaluation_due(self, total: int) -> bool:
        interval = self.config.evaluation.interval_steps
        steps = self.algorithm.env_steps
        due = steps >= total or (interval > 0 and steps >= self.state.next_evaluation)
        while interval > 0 and self.state.next_evaluation <= steps:
            self.state.next_evaluation += interval
        return due

    def _checkpoint_due(self) -> bool:
        interval, steps = self.config.checkpoint.interval_steps, self.algorithm.env_steps
        if interval == 0 or steps < self.state.next_checkpoint:
            return False
        while self.state.next_checkpoint <= steps:
            self.state.next_checkpoint += interval
        return True


def record_initialization(algorithm: ResidualSAC, record: Any) -> None:
    """Hand the figures of the Cal-QL initialisation to `record` as `calql/...`; forget them."""
    for row in algorithm.calql_rows:
        record({f"calql/{name.removeprefix('calql_')}": value for name, value in row.items()})
    algorithm.calql_rows = []


def success_rate(rows: list[dict[str, Any]]) -> float:
    """Share of successful episodes, in [0, 1]."""
    return sum(bool(row["success"]) for row in rows) / len(rows)


def running_success(recent: list[bool]) -> float | None:
    """Share of successes among the last training episodes; None before the first."""
    return sum(recent) / len(recent) if recent else None
