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


CUT = """[...document.querySelectorAll(".scroll")]
  .filter((frame) => frame.scrollWidth > frame.clientWidth)
  .map((frame) => frame.closest("section").id)"""
BROKEN_WORDS = """(() => {
  const range = document.createRange();
  return [...document.querySelectorAll("h1, .run, .setting")].flatMap((element) => {
    const lines = new Map();
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode()); )
      for (const word of node.data.matchAll(/[A-Za-z0-9]+/g)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) lines.set(word[0]);
      }
    return [...lines.keys()];
  });
})()"""


def test_long_names_break_between_words_and_cut_no_table(store, tmp_path):
    name = "pick_up_the_alphabet_soup_and_place_it_in_the_basket"
    for seed in range(4):
        metrics = {"eval/residual_success": [(1000, 0.5), (2000, 0.9)], "time/wall_s": [(1, 1.0)]}
        params = {"seed": seed, "algorithm.residual_scale": seed % 2, "algorithm.utd": seed // 2}
        folder = tmp_path / str(seed)
        store.run(f"{name}-seed{seed}", metrics=metrics, params=params, folder=folder)
    made = make_report([str(tmp_path / str(i)) for i in range(4)], output_dir=str(tmp_path / "out"))
    page = pathlib.Path(made["files"][0])
    wide = visit(page, 1280, [CUT, BROKEN_WORDS], tmp_path / "wide")
    assert wide.results == [[], []]
    alone = make_report([str(tmp_path / "0")], output_dir=str(tmp_path / "alone"))
    narrow = visit(
        pathlib.Path(alone["files"][0]), 390, [WIDTHS, BROKEN_WORDS], tmp_path / "narrow"
    )
    assert narrow.results == [[390, 390], []]  # a phone's tables scroll in their frames


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
