"""The report as one HTML page: charts and tables in a template."""

from __future__ import annotations

import os
import pathlib
import urllib.parse
from collections.abc import Sequence

from markupsafe import Markup

from pld_ray.charts.numbers import percent
from pld_ray.charts.page import style_sheet, templates
from pld_ray.report import figures, formats, headline
from pld_ray.report.points import short_names
from pld_ray.report.runs import ASSISTED_SUCCESS, AUTONOMOUS_SUCCESS, INTERVENTION_SHARE
from pld_ray.report.schedules import schedules
from pld_ray.report.summary import Summary, n_episodes
from pld_ray.report.videos import Video
from pld_ray.statistics import MIN_SEEDS

ASSETS = pathlib.Path(__file__).parent / "assets"
GENERATOR = "pld-ray report"
"""Content of the page's `generator` tag, by which a later report knows the file as its own."""

PERSON_COLUMNS = (
    ("autonomous, %", AUTONOMOUS_SUCCESS),
    ("assisted, %", ASSISTED_SUCCESS),
    ("by a person, %", INTERVENTION_SHARE),
)
"""Of the table of runs, where a person acted in one of them."""

LEGEND_ROWS = 12
"""Settings in a legend; the rest unfolds."""
TALL_ROWS = 40
"""With more rows than this the tables scroll in a frame."""


def render(summary: Summary, videos: Sequence[Video], output_dir: pathlib.Path) -> str:
    """The whole page; nothing in it is loaded from elsewhere."""
    environment = templates(ASSETS)
    environment.filters |= {
        "percent1": formats.percent1,
        "steps": formats.whole,
        "number": formats.number,
        "duration": formats.duration,
        "breakable": formats.breakable,
    }
    views = figures.point_views(summary)
    return environment.get_template("page.html").render(
        generator=GENERATOR,
        style=style_sheet(),
        script=Markup((ASSETS / "page.js").read_text()),
        summary=summary,
        title=summary.selection.title,
        facts=headline.facts(summary),
        tiles=headline.tiles(summary),
        views=views,
        threshold=percent(summary.threshold),
        separation=headline.separation(summary),
        min_seeds=MIN_SEEDS,
        episodes=n_episodes(summary.runs),
        final_on=summary.final_on,
        curves=figures.curves_chart(summary, views),
        finals=figures.finals_chart(summary, views),
        efficiency=figures.efficiency_chart(summary, views),
        person=figures.person_chart(views),
        person_columns=PERSON_COLUMNS,
        panels=figures.effect_panels(summary),
        schedules=schedules(views),
        reached=headline.reached,
        state=lambda run: headline.STATES.get(run.run.status, run.run.status.lower()),
        failures=[run for run in summary.runs if run.run.status in ("FAILED", "KILLED")],
        stopped=[run for run in summary.runs if run.run.tags.get("stopped")],
        videos=[(video, link(video, output_dir)) for video in videos],
        short=short_names(summary.swept),
        has_throughput=any(run.steps_per_s is not None for run in summary.runs),
        fastest=max((run.steps_per_s or 0 for run in summary.runs), default=0),
        median=formats.median,
        by_folder=any(view.summary.point.by_folder for view in views),
        several_seeds=any(view.summary.point.seeds > 1 for view in views),
        without_interval=any(view.summary.finals and view.summary.low is None for view in views),
        dashed=any(
            view.summary.curve is not None and view.summary.curve.is_partial for view in views
        ),
        max_rows=figures.MAX_ROWS,
        legend_rows=LEGEND_ROWS,
        tall_rows=TALL_ROWS,
        tall=" tall" if len(summary.runs) > TALL_ROWS else "",
    )


def link(video: Video, output_dir: pathlib.Path) -> str | None:
    """Relative address of a video in a given folder or the report's own; None: only its path."""
    if not video.linked:
        return None
    relative = os.path.relpath(video.path, output_dir)
    return urllib.parse.quote(pathlib.PurePath(relative).as_posix())
