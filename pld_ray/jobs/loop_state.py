"""What the training loop remembers across a resume: what is due when, and what is known already."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pld_ray.config import TrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.evaluation.play import EpisodeResult, success_rate
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import (
    CheckpointError,
    add_to_manifest,
    check_manifest,
    damaged,
    take_from_manifest,
)
from pld_ray.runs.layout import (
    BEST,
    CANDIDATE,
    CURVE_FILE,
    EVAL_INFO_FILE,
    PAST_SUMMARY_FILE,
    SUMMARY_FILE,
    TRAINER_FILE,
)
from pld_ray.runs.run_dir import RunDir, checkpoint_steps, trainer_state

BEST_FIELDS = ("best_success", "best_loss")
"""Of a state: what `best` is worth."""
FOUND = (*BEST_FIELDS, "validation_base", "next_evaluation", "evaluated_at")
"""Of a state: what an evaluation tells, and that it is over."""


@dataclass
class LoopState:
    """Counters and results of the loop itself; `trainer.json` of a checkpoint."""

    base_rows: list[dict[str, Any]] = field(default_factory=list)
    """Episodes of the base policy on the held states."""
    best_success: float = -1.0
    """Highest validation success so far, in [0, 1]; -1 before the first."""
    validation_base: float | None = None
    """Success of the frozen base policy on the validation states, once it has played them."""
    next_evaluation: int = 0
    """Environment steps."""
    evaluated_at: int = -1
    """Environment steps of the newest weights whose evaluation is over."""
    next_checkpoint: int = 0
    """Environment steps."""
    train_wall_s: float = 0.0

    @classmethod
    def begin(cls, config: TrainConfig | FinetuneConfig) -> Self:
        """The state of a new run."""
        return cls(
            next_evaluation=config.evaluation.interval_steps,
            next_checkpoint=config.checkpoint.interval_steps,
        )

    @property
    def base_success(self) -> float | None:
        """On the validation states where it is known, else on the held ones; in [0, 1]."""
        if self.validation_base is not None or not self.base_rows:
            return self.validation_base
        return success_rate([EpisodeResult.of_row(row) for row in self.base_rows])

    @property
    def shown_base(self) -> dict[str, Any]:
        """`base_success` and the states that it is of, for a display."""
        states = "held" if self.validation_base is None else "validation"
        return {"base_success": self.base_success, "base_states": states}

    def evaluation_due(self, env_steps: int, interval: int, total: int) -> bool:
        """Whether an evaluation is due, once at the end; the next one is `interval` later.

        Args:
            env_steps: done.
            interval: environment steps between evaluations; 0 evaluates at the end alone.
            total: environment steps of the run.
        """
        at_end = env_steps >= total and self.evaluated_at < env_steps
        due = at_end or (interval > 0 and env_steps >= self.next_evaluation)
        self.next_evaluation = next_multiple(self.next_evaluation, env_steps, interval)
        return due

    def checkpoint_due(self, env_steps: int, interval: int) -> bool:
        """Whether a checkpoint is due; the next one is `interval` steps later, 0 makes none."""
        due = interval > 0 and env_steps >= self.next_checkpoint
        self.next_checkpoint = next_multiple(self.next_checkpoint, env_steps, interval)
        return due


def next_multiple(due: int, env_steps: int, interval: int) -> int:
    """`due`, moved on by whole intervals until it lies beyond `env_steps`."""
    while interval > 0 and due <= env_steps:
        due += interval
    return due


def loop_state[T: LoopState](checkpoint: pathlib.Path, kind: type[T]) -> T:
    """The loop's own state in a checkpoint.

    Args:
        kind: of the loop.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return kind(**trainer_state(checkpoint))
    except TypeError as error:
        raise damaged(checkpoint / TRAINER_FILE, f"it holds another state ({error})") from None


def note_evaluation(run: RunDir, state: LoopState, is_best: bool) -> None:
    """Write into `candidate` what its evaluation found; the best one becomes `best`.

    It was saved before it was evaluated. A run that is killed goes on from it, often: it must not
    take a worse policy for the best then, nor evaluate this one again. Killed at any moment in
    here the checkpoint is whole, see also `finish_best`.
    """
    folder = run.checkpoints / CANDIDATE
    found = {name: getattr(state, name) for name in FOUND if hasattr(state, name)}
    take_from_manifest(folder, TRAINER_FILE)
    write_json_atomically(folder / TRAINER_FILE, trainer_state(folder) | found)
    add_to_manifest(folder, TRAINER_FILE)
    if is_best:
        run.rename_checkpoint(CANDIDATE, BEST)


def finish_best(run: RunDir) -> None:
    """Let `candidate` become `best` where a kill came between its evaluation and that."""
    candidate, best = run.checkpoints / CANDIDATE, run.checkpoints / BEST
    try:
        found, known = trainer_state(candidate), trainer_state(best)
        told = found.get("evaluated_at") == checkpoint_steps(candidate)[0]
        older_release = best.is_dir() and "evaluated_at" not in known
        if told and not older_release and worth(found) > worth(known):
            check_manifest(candidate)
            run.rename_checkpoint(CANDIDATE, BEST)
    except CheckpointError:  # who loads it says so
        return


def forget_end(run: RunDir) -> None:
    """Remove the results of an end that the run goes on from, or goes back behind.

    The next end writes them anew; until then they would pass for results of the `best` to come.
    The summary is put aside, for the time that the run has taken.
    """
    with contextlib.suppress(FileNotFoundError):
        os.replace(run.path / SUMMARY_FILE, run.path / PAST_SUMMARY_FILE)
    for name in (EVAL_INFO_FILE, CURVE_FILE):
        (run.path / name).unlink(missing_ok=True)


def worth(state: dict[str, Any]) -> tuple[float, float]:
    """What orders policies: the validation success, then how small the loss is."""
    loss = state.get("best_loss")
    return state.get("best_success", -1.0), -math.inf if loss is None else -loss


def agree_with_best(
    run: RunDir, state: LoopState, loaded: pathlib.Path, keeps_best: bool = False
) -> None:
    """Let the state of the checkpoint `loaded` know what `best` is worth.

    It may have been found out after `loaded` was saved. A `best` that is newer will be set aside,
    and the next policy is the best there is, whatever an earlier one was worth.

    Args:
        run, state, loaded: of the loop.
        keeps_best: `best` stays, though it is newer, and only what it is worth counts: in a
            population, where a trial goes on from another's checkpoint, which may be older.
    """
    best = run.checkpoints / BEST
    there = best.is_dir() and (keeps_best or checkpoint_steps(best) <= checkpoint_steps(loaded))
    try:
        known = loop_state(best, type(state)) if there else type(state)()
    except CheckpointError:  # of `best` alone, which the end of the run looks at
        return
    if there and known.evaluated_at < 0:  # of a release that saved it before it was evaluated
        return
    if keeps_best or not there or known.best_success >= state.best_success:
        for name in BEST_FIELDS:
            if hasattr(state, name):
                setattr(state, name, getattr(known, name))


def load_first(
    checkpoints: Sequence[pathlib.Path], load: Callable[[pathlib.Path], None], log: logging.Logger
) -> pathlib.Path | None:
    """Load the first checkpoint that is whole, and say which were not; None where there is none.

    Args:
        checkpoints: newest first.
        load: takes one over, or raises CheckpointError.

    Raises:
        CheckpointError: no checkpoint is whole; what is wrong with the first.
    """
    failures: list[CheckpointError] = []
    for path in checkpoints:
        try:
            load(path)
        except CheckpointError as error:
            log.warning("%s", error)
            failures.append(error)
        else:
            if failures:
                log.warning("going on from the next older checkpoint, %s", path)
            return path
    if failures:
        raise failures[0]
    return None
