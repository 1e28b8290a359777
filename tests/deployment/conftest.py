"""The documentation's commands, taken out of it and run as a reader would."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?P<fence>```)bash\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A ```bash block: its text, its first line's number, and why it is not run, if it is not."""

    code: str
    line: int
    not_tested: str | None


def blocks_of(text: str) -> list[Block]:
    """Every ```bash block of a Markdown text, in order."""
    found = []
    for match in BLOCK.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        reason = re.fullmatch(r"<!-- not tested: (.+) -->", before)
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match["code"], line, reason[1] if reason else None))
    return found


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def blocks(root) -> list[Block]:
    """The ```bash blocks of docs/operations.md."""
    return blocks_of((root / "docs" / "operations.md").read_text())
