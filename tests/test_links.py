"""Every link of a page leads to a file, and to a heading, that is there."""

import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """What a heading is linked by, as the usual renderers make it."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    return {anchor(h) for h in HEADING.findall(CODE.sub("", page.read_text()))}


def test_links_lead_somewhere():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    pages = [ROOT / name for name in listed.stdout.splitlines()] or [*ROOT.glob("*.md")]
    lost = []
    for page in pages:
        for link in LINK.findall(CODE.sub("", page.read_text())):
            if re.match("[a-z]+:", link):  # of another site
                continue
            place, _, heading = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            found = target.exists() and (
                not heading or target.suffix != ".md" or heading in anchors(target)
            )
            lost += [] if found else [f"{page.relative_to(ROOT)}: {link}"]
    assert not lost
