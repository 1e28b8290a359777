"""Our metrics and parameters in the form, and within the limits, that MLflow accepts."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import posixpath
import re
from collections.abc import Mapping
from typing import Any

KEY_LENGTH = 250
PARAM_LENGTH = 6000
TAG_LENGTH = 5000
"""Characters; the limits of MLflow 3 (`mlflow.utils.validation`), tags as in its documentation."""

NON_FINITE = "tracking/non_finite"
"""Metric that counts the values of a report which were NaN or infinite and so were not logged."""


def entity_key(name: str) -> str:
    """`name` with what MLflow forbids in keys replaced by `_`, at most 250 characters."""
    key = re.sub(r"[^\w\-. :/]", "_", str(name)).strip("/").lstrip("./")
    return posixpath.normpath(key)[:KEY_LENGTH] if key else "_"


def finite_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by MLflow key; None is left out, non-finite values are counted under `NON_FINITE`.

    MLflow stores infinities as 1.8e308, which ruins a chart's axis, so they are not logged at all.

    Raises:
        TypeError: a value is not a number, naming the metric.
    """
    values: dict[str, float] = {}
    non_finite = 0
    for name, value in metrics.items():
        if value is None:
            continue
        number = _as_float(name, value)
        if math.isfinite(number):
            values[entity_key(name)] = number
        else:
            non_finite += 1
    if non_finite:
        values[NON_FINITE] = float(non_finite)
    return values


def _as_float(name: str, value: Any) -> float:
    if getattr(value, "ndim", 0) == 0 and hasattr(value, "item"):
        value = value.item()  # numpy and torch scalars
    if not isinstance(value, numbers.Real):
        raise TypeError(
            f"metric {name!r} is a {type(value).__name__}: log_metrics takes single numbers"
        )
    return float(value)


def flatten_params(params: Any, prefix: str = "") -> dict[str, str]:
    """A nested mapping or dataclass as `a.b.c` -> text, cut to MLflow's lengths.

    Lists are JSON, None is `None`, an empty mapping is `{}`.
    """
    if dataclasses.is_dataclass(params) and not isinstance(params, type):
        params = dataclasses.asdict(params)
    if not isinstance(params, Mapping):
        raise TypeError(f"parameters must be a mapping or a dataclass, not {type(params).__name__}")
    flat: dict[str, str] = {}
    for name, value in params.items():
        key = f"{prefix}{name}"
        nested = isinstance(value, Mapping) or dataclasses.is_dataclass(value)
        if nested and (not isinstance(value, Mapping) or value):
            flat |= flatten_params(value, f"{key}.")
        else:
            flat[entity_key(key)] = truncate(_as_text(value), PARAM_LENGTH)
    return flat


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple, Mapping)):
        return json.dumps(value, default=str)
    return str(value)


def truncate(text: str, length: int) -> str:
    """`text`, ending in `...` where it was longer than `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."
