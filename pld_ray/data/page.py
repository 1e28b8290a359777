"""A dataset as one HTML page: numbers, ranges, film strips and courses of chosen episodes."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from markupsafe import Markup

from pld_ray.charts.numbers import percent
from pld_ray.charts.page import style_sheet, templates
from pld_ray.charts.panels import course_panel
from pld_ray.data.summary import DatasetSummary

ASSETS = pathlib.Path(__file__).parent / "assets"
FRAMES, FRAME_WIDTH = 8, 168  # of a film strip; pixels


@dataclass(frozen=True)
class Strip:
    """Images of one camera, evenly spread over an episode."""

    camera: str
    pictures: list[tuple[str, str]]
    """(caption, data address)."""


@dataclass(frozen=True)
class Shown:
    """One episode on the page."""

    number: int
    facts: str
    strips: list[Strip]
    panels: list[Markup]


def render(summary: DatasetSummary, episodes: Sequence[int]) -> str:
    """The whole page; nothing in it is loaded from elsewhere."""
    environment = templates(ASSETS)
    environment.filters["number"] = lambda value: f"{value:.4g}"
    columns: dict[str, np.ndarray] = {
        name: summary.dataset.columns([name])[name]
        for name in ("observation.state", "action")
        if name in summary.dataset.features
    }
    return environment.get_template("dataset.html").render(
        style=style_sheet(),
        title=summary.dataset.root.resolve().name,
        summary=summary,
        facts=facts(summary),
        shown=[show(summary, columns, number) for number in episodes],
    )


def facts(summary: DatasetSummary) -> dict[str, str]:
    """Name -> value."""
    dataset, lengths = summary.dataset, summary.lengths
    seconds = lengths.sum() / dataset.fps
    share = summary.success_share
    median = int(np.median(lengths))
    cameras = [
        f"{name.rpartition('.')[2]} "
        f"({'x'.join(str(n) for n in dataset.shape(name)[:2])}, {f['dtype']})"
        for name, f in dataset.features.items()
        if name in dataset.cameras
    ]
    tasks = list(dict.fromkeys(t for row in dataset.episodes for t in row.get("tasks") or []))
    return {
        "episodes": str(len(lengths)),
        "frames": f"{lengths.sum()} at {dataset.fps:g} per second, {seconds / 60:.1f} minutes",
        "success": "not recorded" if share is None else percent(share),
        "length": f"{lengths.min()} to {lengths.max()} frames, median {median}",
        "cameras": ", ".join(cameras) or "none",
        "task": ", ".join(tasks[:5]) + (f" and {len(tasks) - 5} more" if len(tasks) > 5 else ""),
        "robot": str(dataset.info.get("robot_type") or "unknown"),
    }


def show(summary: DatasetSummary, columns: dict[str, np.ndarray], number: int) -> Shown:
    """Strips and panels of one episode."""
    dataset, length = summary.dataset, int(summary.lengths[number])
    known = [f"{length} frames"]
    if summary.success is not None:
        known.append("success" if summary.success[number] else "no success")
    if summary.returns is not None:
        known.append(f"return {summary.returns[number]:g}")
    source = dataset.episodes[number].get("source")
    known += [str(source)] if source else []
    frames = np.unique(np.linspace(0, length - 1, FRAMES).astype(int)).tolist()
    strips = [
        Strip(
            camera.rpartition(".")[2],
            [
                (f"{frame / dataset.fps:.2f} s", data_address(image))
                for frame, image in zip(frames, dataset.images(number, camera, frames), strict=True)
            ],
        )
        for camera in dataset.cameras
    ]
    first = dataset.first_frames[number]
    rows = {
        name: values[first : first + length].reshape(length, -1) for name, values in columns.items()
    }
    return Shown(number, ", ".join(known), strips, panels(summary, rows))


def panels(summary: DatasetSummary, rows: dict[str, np.ndarray]) -> list[Markup]:
    """A chart a dimension; state and action of one name share it."""
    lines: dict[str, list[tuple[int, np.ndarray]]] = {}
    same = len({tuple(summary.dataset.names(name)) for name in rows}) == 1
    for series, (name, values) in enumerate(rows.items()):
        for k, label in enumerate(summary.dataset.names(name)):
            key = label if same else f"{name.rpartition('.')[2]} {label}"
            lines.setdefault(key, []).append((series, values[:, k]))
    return [course_panel(label, of_label) for label, of_label in lines.items()]


def data_address(image: np.ndarray) -> str:
    """A small JPEG that is part of the page."""
    height = max(1, round(image.shape[0] * FRAME_WIDTH / image.shape[1]))
    small = cv2.resize(image, (FRAME_WIDTH, height), interpolation=cv2.INTER_AREA)
    data = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR))[1].tobytes()
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
