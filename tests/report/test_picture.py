"""`curves.png`."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tracked import differing_runs

from pld_ray.report.figures import HIGHLIGHTED
from pld_ray.report.inputs import select
from pld_ray.report.picture import fill_figure
from pld_ray.report.summary import summarize


def picture_of(summary, labels) -> Figure:
    """Drawn, as `draw_curves` does it."""
    figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    fill_figure(figure, summary, labels, HIGHLIGHTED)
    figure.draw_without_rendering()
    return figure


def test_a_single_evaluation_is_seen_in_the_picture(store, tmp_path):
    summary = summarize(select(differing_runs(store, tmp_path, 1, evaluations=1)))
    (line,) = picture_of(summary, ["run"]).axes[0].lines
    assert (list(line.get_xdata()), line.get_marker()) == ([1000], "o")


def test_a_point_that_not_every_seed_reached_is_hollow_in_the_picture(sweep):
    summary = summarize(select([str(sweep)]))
    labels = [point.point.label for point in summary.points]
    lines = picture_of(summary, labels).axes[0].lines
    dashed = [line for line in lines if line.get_linestyle() == "--" and line.get_marker() == "o"]
    assert dashed
    assert all(line.get_markerfacecolor() == "white" for line in dashed)
    assert all(line.get_markevery() == slice(1, None) for line in dashed)  # the first is complete


@pytest.mark.parametrize(("length", "columns"), [(20, 2), (55, 2), (56, 1), (400, 1)])
def test_the_legend_of_the_picture_stays_within_it(store, tmp_path, length, columns):
    summary = summarize(select(differing_runs(store, tmp_path, 5)))
    labels = [f"{i}: {'parameter=value, ' * 40}"[:length] for i in range(5)]
    figure = picture_of(summary, labels)
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert legend._ncols == columns
    assert legend.get_texts()[0].get_text().endswith("…") == (length > 110)
