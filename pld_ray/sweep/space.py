"""The search space of a sweep: domains by name, and the points they make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pld_ray.config import ConfigError
from pld_ray.options import shown

if TYPE_CHECKING:
    from ray.tune.search.sample import Domain

Point = dict[str, Any]
"""Axis -> value: a dotted key, several separated by commas, `variant`, and `seed`."""

BOUNDS = {
    "uniform": 2,
    "loguniform": 2,
    "randint": 2,
    "quniform": 3,
    "qloguniform": 3,
    "qrandint": 3,
}
LISTS = ("grid", "choice")
ROUNDING = 1e-9
"""Relative distance below which a bound is a multiple of the step."""
TRIES = 100
"""Draws made for each one that is wanted before it is said that there are no further ones."""


def split_keys(axis: str) -> list[str]:
    """The configuration keys of an axis."""
    return [key.strip() for key in axis.split(",")]


def check_axes(axes: Mapping[str, Any], where: str) -> None:
    """Check the domains of a space.

    Raises:
        ConfigError: a domain that is unknown, empty, a grid with a value twice, or has bounds in
            the wrong order.
    """
    for axis, domain in axes.items():
        place = f"{where}: {axis}"
        if not isinstance(domain, dict) or len(domain) != 1:
            raise ConfigError(
                f"{place}={domain!r}: must be one domain, such as {{grid: [1, 2]}} or "
                "{loguniform: [1.0e-4, 1.0e-2]}"
            )
        ((kind, values),) = domain.items()
        if kind not in (*LISTS, *BOUNDS):
            raise ConfigError(f"{place}: {kind!r} is no domain: {', '.join((*LISTS, *BOUNDS))}")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{place}: {kind} needs a list of values, not {values!r}")
        if kind == "grid" and num_values(domain) < len(values):
            raise ConfigError(
                f"{place}: grid {shown(values)}: must be different values; seeds repeat a point"
            )
        keys = split_keys(axis)
        if kind in BOUNDS:
            check_bounds(kind, values, place)
            if len(keys) > 1:
                raise ConfigError(f"{place}: keys that change together need grid or choice")
        elif len(keys) > 1:
            for value in values:
                if not isinstance(value, list) or len(value) != len(keys):
                    raise ConfigError(f"{place}: {value!r} must be a list of {len(keys)} values")


def check_repeats(variants: Mapping[str, Any], where: str) -> None:
    """Refuse two variants that make the same changes.

    Raises:
        ConfigError: naming both.
    """
    names: dict[str, str] = {}
    for name, changes in variants.items():
        told = repr(sorted((changes or {}).items()))
        if told in names:
            raise ConfigError(
                f"{where}: variants.{names[told]} and variants.{name} make the same changes: keep "
                "one of them; seeds repeat a point"
            )
        names[told] = name


def check_bounds(kind: str, values: list[Any], place: str) -> None:
    """Check a domain that has bounds.

    Args:
        kind: of the domain.
        values: low, high and, for some, the step.
        place: what an error begins with.

    Raises:
        ConfigError: they are no numbers, or not in order, or the step does not fit.
    """
    numbers = [as_number(value) for value in values]
    if any(n is not None and not abs(n) < 1e300 for n in numbers):
        raise ConfigError(f"{place}: {kind} {values!r}: must be finite numbers")
    if len(values) != BOUNDS[kind] or any(n is None for n in numbers):
        wanted = "[low, high]" if BOUNDS[kind] == 2 else "[low, high, step]"
        raise ConfigError(f"{place}: {kind} needs {wanted}, not {values!r}")
    low, high, *step = [float(n) for n in numbers if n is not None]
    if not low < high or not math.isfinite(high - low):
        raise ConfigError(f"{place}: {kind} {values!r}: low must be below high")
    if "log" in kind and low <= 0:
        raise ConfigError(f"{place}: {kind} {values!r}: low must be above 0")
    if step and not 0 < step[0] <= (high - low) * (1 + ROUNDING):
        raise ConfigError(f"{place}: {kind} {values!r}: the step must fit between low and high")
    if "randint" in kind and not all(number.is_integer() for number in (low, high, *step)):
        raise ConfigError(f"{place}: {kind} {values!r}: must be whole numbers")
    if step and "uniform" in kind:
        check_multiples(kind, low, high, step[0], place)


def check_multiples(kind: str, low: float, high: float, step: float, place: str) -> None:
    """Refuse bounds between two steps, which Ray Tune cannot draw from.

    Raises:
        ConfigError: with the nearest bounds inside, where these are two.
    """
    if all(math.isclose(bound / step, round(bound / step)) for bound in (low, high)):
        return
    first, last = steps_inside(low, high, step)
    inside = ", ".join(f"{number:.10g}" for number in (first * step, last * step, step))
    hint = f", such as [{inside}]" if first < last else "; take a smaller step"
    raise ConfigError(
        f"{place}: {kind} [{low:.10g}, {high:.10g}, {step:.10g}]: low and high must be multiples "
        f"of the step{hint}"
    )


def steps_inside(low: float, high: float, step: float) -> tuple[int, int]:
    """The first and the last multiple of the step between two bounds, in steps."""
    return math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING)


def values_drawn(kind: str, values: list[Any]) -> list[Any]:
    """What a checked domain draws: every listed value, or the least and the greatest.

    Where it draws fractions, one of them, which an option of whole numbers refuses.
    """
    if kind in LISTS:
        return values
    low, high, *step = [float(n) for value in values if (n := as_number(value)) is not None]
    if kind == "randint":
        return [low, high - 1]
    if step:
        low, high = (number * step[0] for number in steps_inside(low, high, step[0]))
        return [low, min(low + step[0], high), high]
    return [low, low + (high - low) / math.e, high] if "uniform" in kind else [low, high]


def as_number(value: Any) -> int | float | None:
    """A number, also where YAML reads `1e-4` as text; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def tune_domain(domain: Mapping[str, Any]) -> Domain:
    """Ray Tune's form of a checked domain; a grid is a choice here."""
    from ray import tune

    ((kind, values),) = domain.items()
    if kind in LISTS:
        return tune.choice(values)
    numbers = [as_number(value) for value in values]
    if kind in ("randint", "qrandint"):
        numbers = [int(n) for n in numbers if n is not None]
    return getattr(tune, kind)(*numbers)


def values(domain: Mapping[str, Any]) -> list[Any] | None:
    """The values of a checked domain that lists them; None for bounds."""
    return domain.get("grid") or domain.get("choice")


def num_values(domain: Mapping[str, Any]) -> float:
    """How many different values a checked domain can draw; infinity for a continuous one."""
    ((kind, given),) = domain.items()
    if kind in LISTS:
        return len({repr(value) for value in given})
    low, high, *step = [float(n) for value in given if (n := as_number(value)) is not None]
    if kind == "randint":
        return high - low
    if not step:
        return math.inf
    inside = math.floor(high / step[0] + 1e-9) - math.ceil(low / step[0] - 1e-9) + 1
    return inside - (kind == "qrandint" and step[0] == 1)  # there Tune leaves the highest out


def varied_axes(
    space: Mapping[str, Mapping[str, Any]], variants: Mapping[str, Any] | None = None
) -> set[str]:
    """Axes of a checked space that have more than one value, `variant` included."""
    varied = {axis for axis, domain in space.items() if len(values(domain) or [None, None]) > 1}
    return varied | ({"variant"} if len(variants or {}) > 1 else set())


def bounds(domain: Mapping[str, Any]) -> tuple[float, float] | None:
    """Low and high of a checked domain; None for a list of values."""
    ((kind, numbers),) = domain.items()
    if kind in LISTS:
        return None
    low, high, *_ = numbers
    return float(low), float(high)


def points(
    space: Mapping[str, Any],
    variants: Mapping[str, Any],
    seeds: list[int],
    num_samples: int,
    search_seed: int,
    distinct: bool = True,
) -> list[Point]:
    """All points of a sweep that does not depend on its results.

    Each of `num_samples` draws of what is no grid is tried with the whole grid, every variant and
    every seed; the seeds of a point follow each other. The same `search_seed` gives the same
    points.

    Args:
        space: axis -> domain.
        variants: by name.
        seeds: of each point.
        num_samples: how often what is no grid is drawn.
        search_seed: of the draws.
        distinct: draw nothing twice; two trials that are alike teach nothing.

    Raises:
        ConfigError: the space has fewer different draws than `num_samples`.
    """
    grid = {axis: domain["grid"] for axis, domain in space.items() if "grid" in domain}
    drawn = {axis: domain for axis, domain in space.items() if "grid" not in domain}
    if variants:
        grid = {"variant": list(variants), **grid}
    found = []
    for draw in draws(drawn, num_samples, search_seed, distinct) if drawn else [{}]:
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True)) | draw
            ordered = {a: point[a] for a in ("variant", *space) if a in point}
            found += [{**ordered, "seed": seed} for seed in seeds]
    return found


def draws(
    space: Mapping[str, Any], num_samples: int, search_seed: int, distinct: bool
) -> list[Point]:
    """Values for every axis of a space without grids; arguments and error as `points`."""
    there_are = math.prod(num_values(domain) for domain in space.values())
    if distinct and there_are < num_samples:
        raise too_few(num_samples, int(there_are))
    domains = {axis: tune_domain(domain) for axis, domain in space.items()}
    random = np.random.RandomState(search_seed)  # the kind that Tune's domains take
    found: dict[Any, Point] = {}
    for number in range(num_samples * TRIES if distinct else num_samples):
        draw = {axis: plain(domain.sample(random_state=random)) for axis, domain in domains.items()}
        found.setdefault(repr(draw) if distinct else number, draw)
        if len(found) == num_samples:
            return list(found.values())
    raise too_few(num_samples, len(found))  # some values are too rare


def too_few(wanted: int, found: int) -> ConfigError:
    """The one sentence."""
    return ConfigError(
        f"num_samples={wanted}: the space has {found} different draws, and none is tried twice: "
        f"give num_samples={found}, or more seeds for each point"
    )


def plain(value: Any) -> Any:
    """NumPy scalars as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def with_points_type(changes: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of the configuration's own kind.

    A quantised draw is a float where an int is due, and YAML reads `1e-4` as text.
    """
    typed = {}
    for key, value in changes.items():
        present: Any = base
        for part in key.split("."):
            present = present.get(part) if isinstance(present, Mapping) else None
        if isinstance(present, int | float) and not isinstance(present, bool):
            number = as_number(value)
            value = value if number is None else number
            if isinstance(present, int) and isinstance(value, float) and value.is_integer():
                value = int(value)
        typed[key] = value
    return typed
