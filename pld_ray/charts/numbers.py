"""Numbers and names as a chart writes them."""

from __future__ import annotations

CHARACTER = 6.6
"""Width of a character at the charts' font size, in pixels, a little more than the average."""


def short_number(value: float) -> str:
    """36000 -> `36k`, 1500000 -> `1.5M`."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:  # 999,999 is 1M
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """0.8 -> `80 %`."""
    return f"{100 * value:.0f} %"


def clip(name: str, width: float) -> str:
    """A text cut to a width in pixels, with an ellipsis."""
    room = max(3, int(width / CHARACTER))
    return name if len(name) <= room else name[: room - 1].rstrip(" ,") + "…"
