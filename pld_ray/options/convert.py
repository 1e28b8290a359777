"""From what YAML or a flag says to the declared type, where that is plain."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from pld_ray.options.declare import without_none
from pld_ray.options.describe import shown

NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""As everybody reads it: 010 is ten or eight."""


def is_plain_number(text: str) -> bool:
    """Whether a text is a decimal number, `_` between its digits or not, or YAML's .inf or .nan."""
    text = text.strip().replace("_", "")
    return NUMBER.fullmatch(text) is not None or text.lstrip("+-").lower() in (".inf", ".nan")


def from_text(text: str, hint: Any) -> Any:
    """A flag's text as the annotation wants it, where that is plain; else unchanged."""
    inner, optional = without_none(hint)
    if optional and text in ("null", "None", "~"):
        return None
    if inner is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return as_type(text, inner)


def as_type(value: Any, hint: Any) -> Any:
    """A value of YAML as the annotation's type where nothing is lost; else unchanged.

    YAML reads `1e-4` as text, 3 where 3.0 is due, and a number where a name looks like one.
    """
    inner, _ = without_none(hint)
    origin, parts = typing.get_origin(inner), typing.get_args(inner)
    if origin is list and isinstance(value, list | tuple):
        return [as_type(item, parts[0]) for item in value]
    if origin is dict and isinstance(value, Mapping):
        return {as_type(key, str): as_type(item, parts[1]) for key, item in value.items()}
    if isinstance(value, bool):
        return value
    if inner is str and isinstance(value, int):
        return shown(value)
    if inner not in (int, float):
        return value
    if isinstance(value, str):
        if NUMBER.fullmatch(value) is None or len(value) > 100:
            return value
        value = int(value) if re.fullmatch(r"[+-]?\d+", value, re.ASCII) else float(value)
    if inner is int and isinstance(value, Integral):  # NumPy's as well
        return int(value)
    if inner is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if inner is float and isinstance(value, Integral) and abs(int(value)) < 2**53:
        return float(int(value))
    if inner is float and isinstance(value, float):
        return float(value)
    return value
