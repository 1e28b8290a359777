"""How the report writes names and numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

DASH = "\N{EN DASH}"
"""Nothing is known."""


def breakable(name: str) -> Markup:
    """A name that a line may end in only after what separates its words."""
    parts = re.split(r"(?<=[_/,=:-])(?=\w)|(?<=\.)(?=[A-Za-z])", name)
    return Markup("<wbr>").join(parts)  # escapes the parts


def percent1(value: float | None) -> str:
    """0.8333 -> `83.3`; a dash where nothing is known."""
    return DASH if value is None else f"{100 * value:.1f}"


def whole(value: float | None) -> str:
    """36000 -> `36,000`."""
    return DASH if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Three significant digits."""
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as `1 h 05 min`, `12 min` or `40 s`."""
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def median(values: Sequence[float | None]) -> float | None:
    """Of the values that are known."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
