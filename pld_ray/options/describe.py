"""Types, ranges and values as they are shown."""

from __future__ import annotations

import dataclasses
import reprlib
import typing
from typing import Any, Literal

from pld_ray.options.declare import Option, without_none


def shown(value: Any) -> str:
    """A value in a message, however long it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    short.maxlong = 40
    short.maxlist = short.maxdict = 12
    return short.repr(value)


def accepted(hint: Any, declared: Option) -> str:
    """What an option accepts, to stand after "must be"."""
    inner, optional = without_none(hint)
    return _accepted(inner, declared) + (", or null" if optional else "")


def _accepted(hint: Any, declared: Option, plural: bool = False) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if choices := choices_of(hint, declared):
        return listed([*choices, *(f"{prefix}NAME" for prefix in declared.prefixes)])
    if origin is list:
        count = item_count(declared.items)
        different = "different " if declared.distinct else ""
        return f"a list of {count}{different}{_accepted(parts[0], declared, True)}"
    if origin is dict:
        return f"a mapping of names to {_accepted(parts[1], declared, True)}"
    if hint in (int, float):
        noun = "whole number" if hint is int else "number"
        unit = f" {declared.unit}" if declared.unit else ""
        bounds = "" if declared.within == "(-inf, inf)" else f" in {declared.within}"
        return f"{noun}s{bounds}{unit}" if plural else f"a {noun}{bounds}{unit}"
    if hint is Any:
        return "finite numbers, texts, lists and mappings of them" if plural else "plain data"
    if dataclasses.is_dataclass(hint):
        return "a mapping of its keys"
    if declared.name:
        return "a name of letters, digits and _.+- (200 at most)"
    return "texts" if plural else "a path" if declared.path else "a text"


def choices_of(hint: Any, declared: Option) -> list[str]:
    """The texts that an option takes, where they are few."""
    inner, _ = without_none(hint)
    if typing.get_origin(inner) is Literal:
        return list(typing.get_args(inner))
    if inner is bool:
        return ["true", "false"]
    return list(declared.values) if inner is str and declared.path is None else []


def listed(texts: list[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def item_count(items: tuple[int, int]) -> str:
    low, high = items
    if low == high:
        return f"{low} "
    if high >= 1000:
        return "" if low == 0 else f"{low} or more "
    return f"up to {high} " if low == 0 else f"{low} to {high} "


def type_name(hint: Any) -> str:
    """The annotation as it is written, `str` for a choice."""
    inner, optional = without_none(hint)
    origin, parts = typing.get_origin(inner), typing.get_args(inner)
    if origin is Literal:
        text = "str"
    elif origin is not None:
        text = f"{origin.__name__}[{', '.join(map(type_name, parts))}]"
    else:
        text = getattr(inner, "__name__", str(inner))
    return f"{text} | None" if optional else text
