"""The loop of `pld-ray finetune`: update, record, evaluate, keep."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.training_windows import TrainingWindows
from pld_ray.evaluation.play import success_rate
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.files.manifest import MARK, CheckpointError, check_manifest, write_manifest
from pld_ray.jobs.checkpoint_writer import CheckpointWriter
from pld_ray.jobs.learners import first_writes
from pld_ray.jobs.loop_state import (
    LoopState,
    agree_with_best,
    finish_best,
    load_first,
    loop_state,
    note_evaluation,
)
from pld_ray.policies import load_base_policy
from pld_ray.runs.journal import log_line
from pld_ray.runs.layout import (
    BEST,
    CANDIDATE,
    CONFIG_FILE,
    LOG_FILE,
    METRICS_FILE,
    POLICY_FOLDER,
    PROGRESS_FILE,
)
from pld_ray.runs.run_dir import RunDir
from pld_ray.sharded.components import AVERAGE, Components
from pld_ray.sharded.policy_folder import write_policy_folder
from pld_ray.sharded.trainer import Trainer, ValidationBatches, batches_from
from pld_ray.tracking.mlflow_run import MlflowRun

COMPONENTS = "components"
"""In a checkpoint: what training goes on from."""
RECORD_UPDATES = 50


class Stop(contextlib.AbstractContextManager[Any], Protocol):
    """What tells a loop to end early; it listens inside its `with`."""

    @property
    def requested(self) -> bool:
        """Whether to end after this update."""
        ...


@dataclass
class FinetuneState(LoopState):
    """What the loop remembers across a resume."""

    best_loss: float | None = None
    """Validation loss of the best checkpoint."""
    start: dict[str, float] | None = None
    """What the policy was worth before the first update."""
    collected: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Figures of the updates since the last row of them: sum, and number of updates."""

    def collect(self, metrics: Mapping[str, float]) -> None:
        """Add those of an update."""
        for name, value in metrics.items():
            total, number = self.collected.get(f"train/{name}", (0.0, 0))
            self.collected[f"train/{name}"] = total + value, number + 1

    def take_means(self) -> dict[str, float]:
        """Of what was collected, which begins anew."""
        means = {name: total / number for name, (total, number) in self.collected.items()}
        self.collected = {}
        return means


class FinetuneLoop:
    """update -> record -> evaluate when due -> checkpoint when due.

    In the journal `env_steps`, the axis of every run, counts updates: no environment is stepped to
    learn.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        run: RunDir,
        trainer: Trainer,
        windows: TrainingWindows,
        held: TrainingWindows | None,
        player: PolicyPlayer | None,
        tracker: MlflowRun | None,
        logger: Any,
        provenance: dict[str, Any],
        writer: CheckpointWriter,
    ) -> None:
        self.config, self.run_dir, self.trainer = config, run, trainer
        self.windows, self.held, self.player = windows, held, player
        self.tracker, self.logger, self.provenance = tracker, logger, provenance
        self.writer = writer
        self.state = FinetuneState.begin(config)
        first = config.evaluation.held_states
        self.states = list(range(first, first + config.evaluation.validation_states))

    # --- training --------------------------------------------------------------------------------

    def run(self, on_samples: Callable[[int], None], stop: Stop) -> bool:
        """Train to `total_steps`; False when a stop was requested.

        Args:
            on_samples: is told the windows of each update.
            stop: asked after each update; all ranks get the same answer.
        """
        config, trainer = self.config, self.trainer
        with stop:
            if self.state.start is None:
                self.state.start = self.evaluate("start")
                self.record(self.state.start)
            if trainer.updates:  # it may go on from weights that were about to be evaluated
                self._do_what_is_due()
            updates = range(trainer.updates, config.total_steps)
            batches = batches_from(
                self.windows, config.algorithm, updates, config.loader_workers, trainer.ranks
            )
            utilisation = trainer.utilisation()
            for micro_batches in batches:
                clock = time.monotonic()
                with utilisation.of_update():
                    self.state.collect(trainer.update(micro_batches))
                self.state.train_wall_s += time.monotonic() - clock
                on_samples(config.algorithm.batch_size)
                if trainer.updates % RECORD_UPDATES == 0 or trainer.updates == config.total_steps:
                    means = self.state.take_means()
                    self.record({**means, **trainer.memory(), **utilisation.take()})
                self._do_what_is_due()
                if stop.requested:
                    break
        return trainer.updates >= config.total_steps

    def _do_what_is_due(self) -> None:
        """Evaluate, then save."""
        self._evaluate_when_due()
        updates = self.trainer.updates
        if self.state.checkpoint_due(updates, self.config.checkpoint.interval_steps):
            self.save(f"step_{updates:09d}")

    def _evaluate_when_due(self) -> None:
        """Keep the weights as `best` if they are the best so far."""
        interval, total = self.config.evaluation.interval_steps, self.config.total_steps
        state, updates, due = self.state, self.trainer.updates, self.state.next_evaluation
        if not state.evaluation_due(updates, interval, total):
            return
        folder = self.save(CANDIDATE, next_evaluation=due)
        found = self.evaluate(folder)
        state.evaluated_at = updates
        first_writes(self.run_dir, self.trainer.ranks, lambda: self._note(found))

    def _note(self, found: Mapping[str, float]) -> None:
        """Write down what an evaluation found, and which policy is the best so far."""
        state = self.state
        success, loss = found.get("eval/success", 0.0), found.get("eval/loss")
        best = state.best_loss
        tied = success == state.best_success
        is_best = success > state.best_success or (
            tied and (loss is None or best is None or loss <= best)
        )
        if is_best:
            state.best_success, state.best_loss = success, loss
        # the row first: killed between the two, the run evaluates again and has the row already
        if not self._is_recorded(found):
            self._append(found)
        note_evaluation(self.run_dir, state, is_best)

    def _is_recorded(self, found: Mapping[str, float]) -> bool:
        """Whether the journal has a row of these figures at this update."""
        updates = self.trainer.updates
        rows = self.run_dir.journal.rows()
        return any(row.get("updates") == updates and found.keys() <= row.keys() for row in rows)

    def evaluate(self, checkpoint: pathlib.Path | str) -> dict[str, float]:
        """Validation loss, and success of the policy of a checkpoint on the validation states.

        Args:
            checkpoint: its folder; `start` is the policy that the run began from.
        """
        found: dict[str, float] = {}
        if self.held is not None:
            # of the size that an update's have, which may be all that a GPU has room for
            parts = self.config.algorithm.accumulation * max(1, self.config.learners.num_learners)
            batches = ValidationBatches(self.held, self.config.algorithm.batch_size // parts)
            found["eval/loss"] = self.trainer.validation_loss(batches)
        self.writer.settle()  # it is played, or becomes the best, when it is there
        if self.player is None:
            return found
        path = self.config.policy.path
        if isinstance(checkpoint, pathlib.Path):
            path = str(checkpoint / POLICY_FOLDER)
        # a GPU that holds a part of what several learners train may have no room for the whole
        device = "cpu" if self.trainer.ranks.planned > 1 else self.trainer.device
        policy = load_base_policy(path, device=device, **self.config.policy.loader())
        played = self.player.play(policy, self.states)
        rates = {task: success_rate(episodes) for task, episodes in played.items()}
        if len(rates) > 1:
            found |= {f"eval/success/{task}": rate for task, rate in rates.items()}
        return {**found, "eval/success": float(np.mean(list(rates.values())))}

    def finish(self, started: float) -> dict[str, Any]:
        """The final checkpoint, and what is left of the run in figures; the first rank has them."""
        final = self.save("final")
        self.writer.settle()
        if not self.trainer.ranks.first:
            return {}
        best = self.run_dir.checkpoints / BEST
        chosen = best if best.exists() else final
        start = self.state.start or {}
        seconds = max(self.state.train_wall_s, 1e-9)
        samples = self.trainer.updates * self.config.algorithm.batch_size
        if self.tracker is not None:
            for name in (CONFIG_FILE, LOG_FILE, METRICS_FILE):
                self.tracker.log_artifact(self.run_dir.path / name)
        return {
            "policy": str(chosen / POLICY_FOLDER),
            "checkpoint": str(chosen),
            "updates": self.trainer.updates,
            "start_loss": start.get("eval/loss"),
            "validation_loss": self.state.best_loss,
            "start_success": start.get("eval/success"),
            "validation_success": self.state.best_success if self.player else None,
            "samples_per_s": round(samples / seconds, 1),
            "train_wall_s": round(self.state.train_wall_s, 1),
            "total_wall_s": round(time.time() - started, 1),
            "mlflow_run_id": self.tracker.run_id if self.tracker else None,
            "seed": self.config.seed,
        }

    # --- files -----------------------------------------------------------------------------------

    def save(self, name: str, **other: int) -> pathlib.Path:
        """Begin a checkpoint in both forms; all ranks give their parts, the first one writes.

        Args:
            name: of the checkpoint.
            other: what its state has otherwise than the loop's.

        Raises:
            RunError: the one before could not be written.
        """
        self.writer.settle()
        components = self.trainer.components()
        if components is not None:
            state = asdict(self.state) | other
            self.writer.begin(lambda: self._write(name, components, state))
        return self.run_dir.checkpoints / name

    def _write(self, name: str, components: Components, state: dict[str, Any]) -> None:
        """In a thread of its own, while the policy is trained on."""
        updates = components.state["updates"]

        def fill(folder: str) -> None:
            path = pathlib.Path(folder)
            components.write(path / COMPONENTS)
            about = {**self.provenance, "updates": updates}
            average = components.tensors[AVERAGE]
            # whoever plays it is shown images as the datasets have them, or its environment's
            shapes = None if self.states else self.windows.image_shapes()
            write_policy_folder(self.trainer.trainee, average, path / POLICY_FOLDER, about, shapes)
            progress = {"env_steps": updates, MARK: True}
            (path / PROGRESS_FILE).write_text(json.dumps(progress))
            write_manifest(path)

        path = self.run_dir.save_checkpoint(fill, name, state)
        self.run_dir.prune(self.config.checkpoint.keep)
        self.logger.info("checkpoint %s at %d updates", path, updates)

    def restore(self) -> None:
        """Continue from the newest checkpoint that is whole, or from the beginning.

        Raises:
            CheckpointError: none of them is.
        """
        ranks = self.trainer.ranks

        def load(path: pathlib.Path) -> None:
            if damage := ranks.share(damage_of(path) if ranks.first else None):
                raise damage
            self.trainer.load(path / COMPONENTS)
            self.state = loop_state(path, FinetuneState)
            if ranks.first:
                agree_with_best(self.run_dir, self.state, path)

        if ranks.first:
            finish_best(self.run_dir)
        loaded = load_first(ranks.share(self.run_dir.find_checkpoints()), load, self.logger)
        first_writes(self.run_dir, ranks, lambda: self._go_back(loaded))

    def _go_back(self, loaded: pathlib.Path | None) -> None:
        updates = -1 if loaded is None else self.trainer.updates
        if loaded is not None:
            self.run_dir.go_on_from(loaded)
        self.run_dir.journal.restore(updates)
        if self.tracker is not None:
            self.tracker.restored(max(0, updates))

    def record(self, row: Mapping[str, float]) -> None:
        """One row of the journal, for log and MLflow too; the first rank's."""
        first_writes(self.run_dir, self.trainer.ranks, lambda: self._append(row))

    def _append(self, row: Mapping[str, float]) -> None:
        updates = self.trainer.updates
        wall_s = round(self.state.train_wall_s, 2)
        written = self.run_dir.journal.append(
            {"env_steps": updates, **row, "updates": updates, "time/wall_s": wall_s}
        )
        self.logger.info(log_line(written))


def damage_of(checkpoint: pathlib.Path) -> CheckpointError | None:
    """What is wrong with the files of a checkpoint."""
    try:
        check_manifest(checkpoint)
    except CheckpointError as error:
        return error
    return None
