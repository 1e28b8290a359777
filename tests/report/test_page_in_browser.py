import pathlib

import pytest
from browser import find_browser, visit

from pld_ray.report.write import make_report

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium is installed (apt-get install chromium)"
)

WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
OUTSIDE = """[...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.right > window.innerWidth + 1 && !element.closest(".scroll");
}).length"""
CHARTS = """[...document.querySelectorAll(".chart, .panels svg")].map((chart) => {
  const box = chart.getBoundingClientRect();
  return [box.width, box.height];
})"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll("svg text")]
  .filter((text) => text.getClientRects().length)
  .map((text) => text.getBoundingClientRect().height))"""
OVERLAPPING = """[...document.querySelectorAll(".chart svg")]
  .filter((svg) => svg.getClientRects().length)
  .flatMap((svg) => {
    const texts = [...svg.querySelectorAll("text:not(.note)")];
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const across = (a, b) => a.left < b.right - 1 && b.left < a.right - 1;
    const down = (a, b) => a.top < b.bottom - 3 && b.top < a.bottom - 3;
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => across(a, b) && down(a, b)));
  }).length"""
MUTED = 'document.querySelectorAll("#curves svg.wide g.muted").length'
PRESS = 'document.querySelector("#curves .legend button.muted").click()'
SORTED = """(() => {
  const table = document.querySelector("#final table");
  const head = table.tHead.rows[0].cells[7];
  head.click();
  return [head.getAttribute("aria-sort"),
    ...[...table.tBodies[0].rows].map((row) => row.cells[7].textContent)];
})()"""


@pytest.fixture(scope="module")
def page(sweep, tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    return pathlib.Path(make_report([str(sweep)], output_dir=str(out))["files"][0])


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_window_and_asks_for_nothing(page, tmp_path, width):
    scripts = [WIDTHS, OUTSIDE, CHARTS, SMALLEST_TEXT, OVERLAPPING]
    seen = visit(page, width, scripts, tmp_path)
    (scroll_width, window_width), outside, charts, smallest, overlapping = seen.results
    assert scroll_width == window_width == width
    assert outside == 0
    assert len(charts) == 6  # curves, final, efficiency, two parameters, residual scale
    assert all(w >= 250 and h >= 150 for w, h in charts)
    assert smallest >= 10
    assert overlapping == 0
    assert seen.requests == [page.as_uri()]
    assert seen.errors == []


def test_legend_and_table_heads_work(page, tmp_path):
    seen = visit(page, 1280, [MUTED, PRESS, MUTED, SORTED], tmp_path, dark=True)
    before, _, after, column = seen.results
    assert (before, after) == (7, 6)
    direction, *steps = column
    assert direction == "ascending"
    numbers = [float(s.replace(",", "").replace("> ", "")) for s in steps]
    assert numbers == sorted(numbers)
    assert seen.errors == []


def test_a_name_that_looks_like_a_script_does_not_run(store, tmp_path):
    evil = "<img src=x onerror=console.error(1)><script>console.error(2)</script>"
    metrics = {"eval/residual_success": [(1000, 0.5), (2000, 0.9)]}
    store.run(evil, metrics=metrics, tags={"failure": evil, "task": evil}, folder=tmp_path / "r")
    page = pathlib.Path(make_report([str(tmp_path / "r")])["files"][0])
    seen = visit(page, 390, [WIDTHS, "document.title"], tmp_path / "profile")
    assert seen.results[0] == [390, 390]
    assert evil in seen.results[1]
    assert seen.errors == []
    assert len(seen.requests) == 1
