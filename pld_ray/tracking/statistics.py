"""How sure one can be of a success rate."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def wilson_interval(successes: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a success probability (Wilson 1927, J. Am. Stat. Assoc. 22).

    Args:
        successes: in [0, n].
        n: episodes; without any, nothing is known and the interval is (0, 1).
        z: normal quantile; the default gives 95 %.

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: `successes` is outside [0, n].
    """
    if n == 0 and successes == 0:
        return 0.0, 1.0
    if not 0 <= successes <= n:
        raise ValueError(f"wilson_interval: successes={successes} must lie in [0, n={n}]")
    rate = successes / n
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)
