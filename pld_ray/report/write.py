"""Making a report: read, compute, write."""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Sequence
from typing import Any

from pld_ray.config import ConfigError
from pld_ray.files.atomic import write_atomically
from pld_ray.report import headline, tables
from pld_ray.report.inputs import select
from pld_ray.report.summary import Summary, summarize
from pld_ray.report.videos import find_videos

PAGE, PICTURE, TRIALS, POINTS = "report.html", "curves.png", "trials.csv", "points.csv"


def make_report(
    targets: Sequence[str],
    *,
    output_dir: str | None = None,
    tracking_uri: str | None = None,
    threshold: float = 0.8,
) -> dict[str, Any]:
    """Write `report.html`, `curves.png`, `trials.csv` and `points.csv`.

    Args:
        targets: run folders, sweep folders or MLflow run ids.
        output_dir: None is `report` in the folder given, `outputs/report` for more than one target
            or a run id.
        tracking_uri: store of run ids; for folders, in place of the one they name.
        threshold: success rate whose first reaching is the sample efficiency, in (0, 1].

    Returns:
        `files` (paths), `points` and `trials` (rows of the tables), `missing` and `separation`
        (sentences).

    Raises:
        ConfigError: a target cannot be read, or a file in the way is not a report's.
    """
    from pld_ray.report.figures import HIGHLIGHTED, point_views
    from pld_ray.report.page import render
    from pld_ray.report.picture import draw_curves

    selection = select(targets, tracking_uri)
    target = report_dir(output_dir, selection.folders)
    files = {name: target / name for name in (PAGE, PICTURE, TRIALS, POINTS)}
    for path in files.values():
        check_ours(path)
    summary = summarize(selection, threshold)
    labels = [view.ranked for view in point_views(summary)]
    videos = find_videos([run.run for run in summary.runs], [*selection.folders, target])
    trials, points = tables.trial_rows(summary), tables.point_rows(summary)
    contents: dict[str, str | bytes] = {
        PAGE: render(summary, videos, target),
        TRIALS: tables.to_csv(trials, tables.TRIAL_COLUMNS, summary.swept),
        POINTS: tables.to_csv(points, tables.POINT_COLUMNS, summary.swept),
        PICTURE: draw_curves(summary, labels, HIGHLIGHTED),
    }
    try:
        for name, content in contents.items():
            write_atomically(files[name], content)
    except OSError as error:
        raise ConfigError(
            f"--output_dir={target} cannot be written: {error.strerror or error}"
        ) from error
    return {
        "title": selection.title,
        "threshold": threshold,
        "files": [str(path) for path in files.values()],
        "missing": missing(summary),
        "separation": headline.separation(summary),
        "points": points,
        "trials": trials,
    }


def report_dir(output_dir: str | None, folders: Sequence[pathlib.Path]) -> pathlib.Path:
    """Where the files go."""
    if output_dir is not None:
        return pathlib.Path(output_dir).resolve()
    return folders[0] / "report" if len(folders) == 1 else pathlib.Path("outputs/report").resolve()


def check_ours(path: pathlib.Path) -> None:
    """Refuse to overwrite a file that no report wrote.

    Raises:
        ConfigError: naming the file.
    """
    from pld_ray.report.page import GENERATOR
    from pld_ray.report.picture import SOFTWARE

    if not path.exists():
        return
    head = path.read_bytes()[:4096] if path.is_file() else b""
    ours = {
        PAGE: f'<meta name="generator" content="{GENERATOR}">'.encode() in head,
        PICTURE: _png_text(SOFTWARE) in head,
        TRIALS: head.startswith(",".join(tables.TRIAL_COLUMNS[:4]).encode()),  # any release's
        POINTS: head.startswith(",".join(tables.POINT_COLUMNS).encode()),
    }
    if not ours[path.name]:
        raise ConfigError(
            f"{path} exists and was not written by pld-ray report: move it, or choose another "
            "--output_dir"
        )


def _png_text(software: str) -> bytes:
    """A PNG's text chunk that names the software, without its checksum."""
    data = b"Software\0" + software.encode()
    return struct.pack(">I", len(data)) + b"tEXt" + data


def missing(summary: Summary) -> list[str]:
    """What the report could not show, a sentence each."""
    runs = summary.runs
    if not runs:
        return ["no run: the sweep has no trial yet"]
    lacking = []
    for what, count in (
        ("no evaluation", sum(run.final is None for run in runs)),
        ("no training time (time/wall_s)", sum(run.wall_s is None for run in runs)),
    ):
        if count:
            lacking.append(f"{what} in {count} of {len(runs)} run{'s' * (len(runs) != 1)}")
    return lacking
