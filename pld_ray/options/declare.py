"""`option`: one dataclass field that says everything about an option, and what reads it back."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


@dataclass(frozen=True)
class Option:
    """What `option` declares, beside the annotation and the default."""

    meaning: str
    within: str = "(-inf, inf)"
    items: tuple[int, int] = (0, 1000)
    distinct: bool = False
    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    path: Literal["file", "folder", "repository", "new", "any"] | None = None
    name: bool = False
    unit: str = ""

    def holds(self, number: Any) -> bool:
        """Whether a number lies within; NaN lies nowhere."""
        opening, low, high, closing = interval(self.within)
        above = number >= low if opening == "[" else number > low
        return bool(above and (number <= high if closing == "]" else number < high))


def option(
    default: Any,
    meaning: str,
    *,
    within: str = "(-inf, inf)",
    items: tuple[int, int] = (0, 1000),
    distinct: bool = False,
    values: tuple[str, ...] = (),
    prefixes: tuple[str, ...] = (),
    path: Literal["file", "folder", "repository", "new", "any"] | None = None,
    name: bool = False,
    unit: str = "",
) -> Any:
    """A dataclass field that is an option.

    Args:
        default: a list or mapping is copied for each instance.
        meaning: its meaning, for `--explain`, `--help` and completion; values in backquotes.
        within: interval of a number, or of each number of a list or mapping: `"(0, 1]"`.
        items: least and greatest length of a list or mapping.
        distinct: the items of a list must differ.
        values, prefixes: the texts that are accepted: one of these, or one that begins so; a
            `Literal` is better where nothing may follow.
        path: `file` and `folder` must exist when a run starts, a `repository` is a folder or on
            the hub, `new` is made then, `any` is looked at by whoever opens it.
        name: the text becomes part of a file's name: no slash, no leading dot.
        unit: of the number.
    """
    declared = Option(meaning, within, items, distinct, values, prefixes, path, name, unit)
    metadata = {"option": declared}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def with_default(owner: type, name: str, default: Any) -> Any:
    """The option `name` of a dataclass with another default, for a subclass of it."""
    declared = owner.__dataclass_fields__[name].metadata["option"]  # type: ignore[attr-defined]
    return option(default, **vars(declared))


@dataclass(frozen=True)
class Field:
    """One option of a configuration, or one of its groups."""

    key: str
    """Dotted."""
    hint: Any
    """The resolved annotation; the dataclass of a group."""
    default: Any
    option: Option

    @property
    def meaning(self) -> str:
        """Its meaning."""
        return self.option.meaning

    @property
    def is_group(self) -> bool:
        """Whether it is a dataclass of further options."""
        return dataclasses.is_dataclass(self.hint)


@functools.cache
def fields_of(config_class: type, prefix: str = "") -> tuple[Field, ...]:
    """Every group and option of a dataclass, nested ones included, in the order of the source."""
    hints = typing.get_type_hints(config_class)
    found: list[Field] = []
    for field in dataclasses.fields(config_class):
        key, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            meaning = (hint.__doc__ or "").split("\n\n")[0]
            found.append(Field(key, hint, None, Option(" ".join(meaning.split()))))
            found += fields_of(typing.cast(type, hint), f"{key}.")
        else:
            factory = field.default_factory
            default = factory() if callable(factory) else field.default
            found.append(Field(key, hint, default, field.metadata["option"]))
    return tuple(found)


def without_none(hint: Any) -> tuple[Any, bool]:
    """An annotation without `| None`, and whether it had that."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return inner, True
    return hint, False


@functools.cache
def interval(text: str) -> tuple[str, float, float, str]:
    """`"(0, 1]"` as its brackets and bounds."""
    match = INTERVAL.fullmatch(text)
    if match is None:
        raise TypeError(f"{text!r} is no interval such as '(0, 1]'")
    opening, low, high, closing = match.groups()
    return opening, exact(low), exact(high), closing


def exact(text: str) -> float:
    """A bound, whole ones as int."""
    value = float(text)
    return int(value) if value.is_integer() else value
