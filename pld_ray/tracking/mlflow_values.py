"""Our metrics and parameters in the form, and within the limits, that MLflow accepts."""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

KEY_LENGTH = 250
PARAM_LENGTH = 6000
TAG_LENGTH = 5000
"""Characters; the limits of MLflow 3 (`mlflow.utils.validation`), tags as in its documentation."""


def entity_key(name: str) -> str:
    """`name` with what MLflow forbids in keys replaced by `_`, at most 250 characters."""
    key = re.sub(r"[^\w\-. :/]", "_", str(name)).strip("/").lstrip("./")
    return posixpath.normpath(key)[:KEY_LENGTH] if key else "_"


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
            plural = isinstance(value, (list, tuple, Mapping))
            text = json.dumps(value, default=str) if plural else str(value)
            flat[entity_key(key)] = truncate(text, PARAM_LENGTH)
    return flat


def truncate(text: str, length: int) -> str:
    """`text`, ending in `...` where it was longer than `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."


def shorten(error: BaseException, length: int = 300) -> str:
    """An error as one line; the innermost reason where a request library nests several."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.rpartition("(Caused by ")
    return reason.removesuffix(")")[:length] if reason != text else text[:length]
