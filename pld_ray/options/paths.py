"""Paths of a configuration for processes that begin in another folder."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from pld_ray.options.check import values_of
from pld_ray.options.declare import Option

THERE = {"file": os.path.isfile, "folder": os.path.isdir, "repository": os.path.isdir}


def with_absolute_paths(
    config: Any, folder: pathlib.Path, copied: pathlib.Path | None = None
) -> Any:
    """A copy whose options that are paths hold in every folder.

    Names of the hub, and what is not there, stay as they are.

    Args:
        config: as it was typed.
        folder: in which it was typed.
        copied: a folder that is copied to every node; what lies below it is there by its
            relative path alone.
    """
    config = copy.deepcopy(config)
    for field, value in values_of(config):
        if field.option.path is None or value is None:
            continue
        *groups, name = field.key.split(".")
        owner = functools.reduce(getattr, groups, config)
        make = functools.partial(absolute, declared=field.option, folder=folder, copied=copied)
        setattr(owner, name, [*map(make, value)] if isinstance(value, list) else make(value))
    return config


def with_home(value: Any) -> Any:
    """A path, or each of a list of them, with the home folder in place of `~`.

    A shell leaves it in `--output_dir=~/run`.
    """
    if isinstance(value, list):
        return [with_home(item) for item in value]
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # what no path can hold is refused elsewhere
            return os.path.expanduser(value)
    return value


def absolute(
    value: str, declared: Option, folder: pathlib.Path, copied: pathlib.Path | None = None
) -> str:
    """One path; see `with_absolute_paths`."""
    path, kind = folder / value, declared.path
    if "://" in value or (kind == "folder" and value in declared.values):
        return value
    if kind != "new" and not THERE.get(str(kind), os.path.exists)(path):
        return value
    if kind != "new" and copied is not None and copied.resolve() in path.resolve().parents:
        return value
    return str(path.resolve() if ".." in path.parts else path)


def same_places(one: Any, other: Any) -> bool:
    """Whether plain data is the same but for how its paths are written: from here, or whole."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_places(one[k], other[k]) for k in one)
    if isinstance(one, str) and isinstance(other, str):
        return os.path.abspath(with_home(one)) == os.path.abspath(with_home(other))
    return bool(one == other)
