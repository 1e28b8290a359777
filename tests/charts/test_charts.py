import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.charts.dots import DotRow, dot_chart, swarm
from pld_ray.charts.lines import Line, Mark, line_chart
from pld_ray.charts.numbers import short_number
from pld_ray.charts.panels import course_panel, effect_panel, scatter_panel
from pld_ray.charts.svg import ticks


def pictures(markup):
    """The SVG pictures of a chart, which have to be well-formed XML."""
    page = ET.fromstring(str(markup).replace("&nbsp;", " "))
    return [page] if page.tag == "svg" else page.findall("svg")


def texts(picture):
    return [element.text for element in picture.iter("text")]


def classes(picture):
    return [element.get("class", "") for element in picture.iter()]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_few_round_and_within_the_range(low, span, count):
    found = ticks(low, low + span, count)
    assert len(found) <= count
    assert all(low - 1e-6 * span <= t <= low + span + 1e-6 * span for t in found)
    if len(found) > 1:
        step = found[1] - found[0]
        digits = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(digits - d) for d in (1, 2, 5, 10)) < 1e-3


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12).map(sorted))
def test_dots_at_one_place_are_moved_apart(places):
    shifts = swarm(places)
    assert len(shifts) == len(places)
    assert max(map(abs, shifts)) <= 15
    for i in range(1, len(places)):
        if places[i] == places[i - 1]:
            assert shifts[i] != shifts[i - 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (950, "950"), (36_000, "36k"), (1_250_000, "1.25M"), (0.5, "0.5"), (999_999, "1M")],
)
def test_numbers_are_short(value, words):
    assert short_number(value) == words


def test_a_line_is_dashed_where_runs_are_missing_and_has_a_band_where_they_are_not():
    line = Line(3, "a", [0, 1000, 2000], [0.2, 0.4, 0.6], solid=2, low=[0.1, 0.3], high=[0.3, 0.5])
    chart = line_chart([line], "success", marks=[Mark(0.8, "80 %", "threshold")])
    for picture in pictures(chart):
        found = classes(picture)
        assert [c for c in found if c in ("band", "line", "line dashed")] == [
            "band",
            "line",
            "line dashed",
        ]
        assert "series s3" in found
        assert "80 %" in texts(picture)


def test_a_run_with_one_evaluation_is_still_seen():
    for picture in pictures(line_chart([Line(0, "a", [500], [0.5])], "success")):
        assert "dot" in classes(picture)


def test_what_was_not_reached_is_an_arrow_with_its_count():
    row = DotRow(0, "a", [9_000, math.inf, math.inf], censored=[36_000, 36_000])
    chart = dot_chart([row], "steps", x_name="steps", x_range=(0, 36_000), show=short_number)
    for picture in pictures(chart):
        found = classes(picture)
        assert found.count("arrow") == 1
        assert found.count("dot faint") == 1
        assert "\N{MULTIPLICATION SIGN}2" in texts(picture)


def test_a_panel_has_a_place_for_each_value_and_hollow_dots_for_runs_that_ended_early():
    (picture,) = pictures(
        effect_panel("utd", [("1", [(0.5, True), (0.6, False)]), ("2", [(0.9, True)])], 0.5)
    )
    assert {"1", "2", "utd", "80 %"} <= set(texts(picture))
    assert classes(picture).count("hollow") == 1
    assert classes(picture).count("dot faint") == 2


def test_a_parameter_over_decades_has_a_logarithmic_axis():
    values = [10 ** (-4 + i / 10) for i in range(20)]
    results = [(0.5, True)] * 20
    (logarithmic,) = pictures(scatter_panel("lr", values, results, None))
    assert "lr (log)" in texts(logarithmic)
    assert {"1e-04", "1e-03"} <= set(texts(logarithmic))
    (linear,) = pictures(scatter_panel("scale", [0.1 + i / 20 for i in range(20)], results, None))
    assert {"scale", "0.2", "0.4"} <= set(texts(linear))


def test_names_are_text_in_a_chart_too():
    name = '<script>alert("1")</script>'
    row = DotRow(0, name, [0.5])
    chart = dot_chart([row], name, x_name="x", x_range=(0, 1), show=short_number)
    assert not re.search("<script", str(chart))
    assert all(picture.get("aria-label") == name for picture in pictures(chart))


def test_a_course_leaves_out_what_is_not_finite_and_may_be_empty():
    (empty,) = pictures(course_panel("joint", [(0, np.full(5, np.nan)), (1, np.full(5, np.nan))]))
    assert "joint" in texts(empty)
    assert "line" not in classes(empty)
    (picture,) = pictures(course_panel("joint", [(0, np.array([0.25, np.nan, 0.75]))]))
    assert {"0.25", "0.75"} <= set(texts(picture))
    (course,) = (e for e in picture.iter("path") if e.get("class") == "line")
    assert course.get("d").count(",") == 2
