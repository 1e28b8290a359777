"""What a resumed sweep knows of its trials: our own JSON in their folders, nothing of Tune's.

    point.json   written by the trial: its point, and the checkpoint it told Tune of last
    ended.json   written by the driver when Tune is done with a trial, or the sweep's time is up:
                 its last figures

A resumed sweep gives Tune everything again. A trial that has ended tells its last figures at once;
one that was cut off goes on in its folder. Schedulers and searchers see every result that way.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ray.tune import Callback

from pld_ray.files.atomic import write_json_atomically
from pld_ray.runs.layout import ENDED_FILE, POINT_FILE, read_json
from pld_ray.runs.reading import is_metric

REPORTED = "eval/residual_success"
"""In whatever a trial reports: schedulers and searchers ask for it, or for what is beside it."""


class EndedTrials(Callback):
    """Notes in its folder that a trial has ended.

    Args:
        trials: folder of the trials' folders.
    """

    def __init__(self, trials: pathlib.Path) -> None:
        self.trials = trials

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        note_ended(self.trials / str(trial), trial.last_result)


def note_ended(folder: pathlib.Path, result: Mapping[str, Any] | None) -> None:
    """Write down that a trial has ended, with its last figures.

    One that has reported nothing yet has none and stays open: a resume goes on with it.
    """
    figures = {k: v for k, v in (result or {}).items() if is_metric(v)}
    if folder.is_dir() and REPORTED in figures:
        write_json_atomically(folder / ENDED_FILE, figures)


def ended_figures(folder: pathlib.Path) -> dict[str, Any] | None:
    """The last figures of a trial that has ended; None while it has not."""
    figures = read_json(folder / ENDED_FILE)
    return figures if REPORTED in figures else None


def write_trial(folder: pathlib.Path, **entries: Any) -> None:
    """Set entries of `point.json`."""
    write_json_atomically(folder / POINT_FILE, {**read_json(folder / POINT_FILE), **entries})


def known_points(trials: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Trial -> the point that it was at last, without its id, of every trial that was begun."""
    return {name: point for name, point, _ in _begun(trials)}


def known_names(trials: pathlib.Path) -> dict[str, list[str]]:
    """`point_key` -> the trials that were begun with it: a searcher may draw a point again."""
    names: dict[str, list[str]] = {}
    for name, point, index in _begun(trials):
        names.setdefault(point_key(point, index), []).append(name)
    return names


def drawn_points(trials: pathlib.Path) -> list[dict[str, Any]]:
    """The points that a searcher has drawn, in their order, each as often as it was drawn.

    A draw has a trial for each seed; a kill may have left out any of them.
    """
    drawn: list[dict[str, Any]] = []
    draws, trials_of = Counter[str](), Counter[str]()
    for _, point, index in _begun(trials):
        repetition, key = point_key(point, index), point_key(point, 0)
        trials_of[repetition] += 1
        if trials_of[repetition] > draws[key]:
            draws[key] += 1
            drawn.append(point)
    return drawn


def _begun(trials: pathlib.Path) -> Iterator[tuple[str, dict[str, Any], int | None]]:
    for path in sorted(trials.glob(f"t*/{POINT_FILE}")):
        entry = read_json(path)
        if isinstance(entry.get("point"), dict):
            yield path.parent.name, entry["point"], entry.get("index")


def point_key(point: dict[str, Any], index: int | None) -> str:
    """What tells a searcher's trials apart: the point, and which repetition of it."""
    return json.dumps([point, index or 0], sort_keys=True)
