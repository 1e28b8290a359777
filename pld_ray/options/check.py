"""Whether the values of a configuration have the declared types and ranges."""

from __future__ import annotations

import os
import pathlib
import re
import typing
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal

from pld_ray.options.declare import Field, Option, fields_of, without_none
from pld_ray.options.describe import accepted, shown

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
NAME_LIMIT, PART_LIMIT, PATH_LIMIT, TEXT_LIMIT = 200, 255, 4096, 1000
"""Characters of a name (to which we append), bytes of a path's part and of a path, characters of
any other text."""
LOCAL = "a path on this machine: mount the bucket, and give the path where it appears"
"""Of what `s3://...` is none: it would become folders below `s3:`."""


def check_options(config: Any, prefix: str = "") -> None:
    """Check the type and the range of every option of a dataclass, nested ones included.

    Raises:
        ValueError: naming the first one that does not fit, its value and what is accepted.
    """
    for field, value in values_of(config):
        if not fits(value, field.hint, field.option):
            raise ValueError(unfit(f"{prefix}{field.key}", value, field))


def check_paths(config: Any) -> None:
    """Check that the files and folders which a configuration names are there.

    Raises:
        ValueError: naming the option and the path.
    """
    check_local(config)
    for field, value in values_of(config):
        kind = field.option.path
        if kind in (None, "any") or value is None:
            continue
        path = pathlib.Path(value)
        if kind == "new":
            # what cannot be looked at is another user's, where a run goes on or is played elsewhere
            blocked = [p for p in (path, *path.parents) if os.path.exists(p) and not p.is_dir()]
            if blocked:
                raise ValueError(f"{field.key}={value}: {blocked[0]} is a file, not a folder")
        elif kind == "repository":
            known = value in field.option.values or names_repository(value)
            if not (known or path.expanduser().is_dir()):
                raise ValueError(f"{field.key}={value}: no such folder")
        elif not (path.is_dir() if kind == "folder" else path.is_file()):
            raise ValueError(f"{field.key}={value}: no such {kind}")


def check_local(config: Any) -> None:
    """Check that the files and folders which a configuration names are no addresses.

    Raises:
        ValueError: naming the option.
    """
    for field, value in values_of(config):
        if field.option.path in (None, "any", "repository") or value is None:
            continue
        if "://" in value:
            raise ValueError(f"{field.key}={value}: must be {LOCAL}")


def names_repository(value: str) -> bool:
    """Whether this may be `owner/name` of the hub, and no path below a folder that is here."""
    return bool(HUB_ID.fullmatch(value)) and not pathlib.Path(value.split("/")[0]).is_dir()


def values_of(config: Any) -> Iterator[tuple[Field, Any]]:
    """Each option of a dataclass with its value; a group of the wrong type is one value."""
    groups = {"": config}
    for field in fields_of(config.__class__):
        parent, _, name = field.key.rpartition(".")
        if parent not in groups:
            continue
        value = getattr(groups[parent], name)
        if field.is_group and isinstance(value, field.hint):
            groups[field.key] = value
        else:
            yield field, value


def unfit(key: str, value: Any, field: Field) -> str:
    """The sentence about a value that does not fit."""
    return f"{key}={shown(value)}: must be {accepted(field.hint, field.option)}"


def fits(value: Any, hint: Any, declared: Option) -> bool:
    """Whether a value has the type of the annotation and lies in the declared range."""
    inner, optional = without_none(hint)
    if value is None:
        return optional
    origin, parts = typing.get_origin(inner), typing.get_args(inner)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is list:
        return (
            isinstance(value, list | tuple)
            and declared.items[0] <= len(value) <= declared.items[1]
            and all(fits(item, parts[0], declared) for item in value)
            and (not declared.distinct or len({*value}) == len(value))
        )
    if origin is dict:
        return (
            isinstance(value, Mapping)
            and declared.items[0] <= len(value) <= declared.items[1]
            and all(isinstance(key, str) and 0 < len(key) <= TEXT_LIMIT for key in value)
            and all(fits(item, parts[1], declared) for item in value.values())
        )
    if inner is bool:
        return isinstance(value, bool)
    if inner in (int, float):
        kind = Integral if inner is int else Real
        return isinstance(value, kind) and not isinstance(value, bool) and declared.holds(value)
    if inner is str:
        return isinstance(value, str) and text_fits(value, declared)
    return inner is Any and is_plain(value)


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is JSON's: finite numbers, texts, lists and mappings of texts, null."""
    if depth > 20:
        return False
    if isinstance(value, list | tuple):
        return all(is_plain(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and is_plain(v, depth + 1) for k, v in value.items())
    if isinstance(value, bool | str | None):
        return True
    return isinstance(value, int | float) and abs(value) < 1e300


def text_fits(value: str, declared: Option) -> bool:
    """Whether a text is one of those declared, and can be printed and stored."""
    if not value or not value.isprintable():
        return False
    if declared.name:
        return len(value) <= NAME_LIMIT and NAME.fullmatch(value) is not None
    if declared.path is not None:
        encoded = value.encode(errors="surrogateescape")
        parts = encoded.split(b"/")
        return len(encoded) <= PATH_LIMIT and max(map(len, parts)) <= PART_LIMIT
    if declared.values or declared.prefixes:
        return value in declared.values or any(
            value.startswith(prefix) and len(value) > len(prefix) for prefix in declared.prefixes
        )
    return len(value) <= TEXT_LIMIT
