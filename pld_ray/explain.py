"""What a key of the configuration means: its words, type, default and the presets that set it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
import textwrap
from dataclasses import dataclass
from typing import Any

import yaml

from pld_ray.config import TrainConfig
from pld_ray.config_file import check_key, field_names

PRESETS = pathlib.Path(__file__).parent.parent / "experiments" / "presets"
WIDTH = 88
CHOICE = re.compile(r"`([a-z0-9_:A-Z]+)`")


@dataclass(frozen=True)
class Field:
    """One key or group of the configuration."""

    key: str
    annotation: str
    """As in the source; empty for a group."""
    default: Any
    words: str
    """The text under the field in the source."""
    group: type | None = None
    """The dataclass of a group."""


def explain(key: str) -> str:
    """A key in words, or a group's keys with the beginning of each text.

    Args:
        key: dotted, with or without `--`.

    Raises:
        ConfigError: there is no such key; the closest one is named.
    """
    key = key.removeprefix("--")
    check_key(key, field_names(TrainConfig), "key ")
    fields = config_fields()
    if key not in fields:  # below a mapping, such as env.kwargs.size
        key = max((name for name in fields if key.startswith(f"{name}.")), key=len)
    found = fields[key]
    return _group_text(found, fields) if found.group is not None else _field_text(found)


@functools.cache
def config_fields() -> dict[str, Field]:
    """Every key and group of `TrainConfig`, in the order of the source."""
    return {found.key: found for found in _fields_of(TrainConfig, "")}


def choices(found: Field) -> list[str]:
    """The values that a text field takes, where its words list them; empty otherwise.

    They are the words in backquotes, the default among them.
    """
    if found.annotation == "bool":
        return ["true", "false"]
    if found.annotation != "str" or not isinstance(found.default, str):
        return []
    named = list(dict.fromkeys(CHOICE.findall(found.words)))
    keys = {name.rsplit(".", 1)[-1] for name in field_names(TrainConfig)}
    named = [name for name in named if name not in keys]
    return named if found.default in named and len(named) > 1 else []


def presets_with(key: str) -> dict[str, Any]:
    """Preset (file stem) -> the value it gives to the key."""
    values = {}
    for name, preset in _presets().items():
        node: Any = preset
        for part in key.split("."):
            node = node.get(part, _ABSENT) if isinstance(node, dict) else _ABSENT
        if node is not _ABSENT:
            values[name] = node
    return values


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    """Every preset of the checkout by its file's stem; none where only the package is installed."""
    known = set(field_names(TrainConfig))
    found = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(PRESETS.glob("*.yaml"))}
    return {  # what has other keys is about presets, not one of them
        name: node for name, node in found.items() if isinstance(node, dict) and set(node) <= known
    }


_ABSENT = object()


def _fields_of(config_class: type, prefix: str) -> list[Field]:
    words, types = _source_of(config_class)
    found = []
    for field in dataclasses.fields(config_class):
        factory = field.default_factory
        default = factory() if callable(factory) else field.default
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(default):
            group = type(default)
            summary = inspect.getdoc(group) or ""
            found.append(Field(key, "", None, summary.split("\n\n")[0], group))
            found += _fields_of(group, f"{key}.")
        else:
            found.append(Field(key, types[field.name], default, words.get(field.name, "")))
    return found


def _source_of(config_class: type) -> tuple[dict[str, str], dict[str, str]]:
    """Text under each field of a dataclass, and its annotation, both from the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class)))
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef))
    words, types = {}, {}
    last = None
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            last = statement.target.id
            types[last] = ast.unparse(statement.annotation)
        elif (
            last is not None
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            words[last] = " ".join(inspect.cleandoc(statement.value.value).split())
            last = None
    return words, types


def _field_text(found: Field) -> str:
    rows = {"type": found.annotation, "default": _show(found.default)}
    if choices(found):
        rows["values"] = ", ".join(choices(found))
    name = found.key.rsplit(".", 1)[-1].replace("_", " ")
    lines = [found.key, *_wrapped(found.words or f"The {name}.", "  "), ""]
    lines += [f"  {title:8} {text}" for title, text in rows.items()]
    presets = presets_with(found.key)
    if presets:
        width = max(map(len, presets))
        lines.append("  presets")
        lines += [f"    {name:{width}}  {_show(value)}" for name, value in presets.items()]
    return "\n".join(lines)


def _group_text(found: Field, fields: dict[str, Field]) -> str:
    inside = [f for key, f in fields.items() if key.rpartition(".")[0] == found.key]
    width = max(len(f.key) for f in inside)
    lines = [found.key, *_wrapped(found.words, "  "), ""]
    room = max(24, WIDTH - width - 4)
    for member in inside:
        words = textwrap.shorten(member.words, room, placeholder="...")
        lines.append(f"  {member.key:{width}}  {words}".rstrip())
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _show(value: Any) -> str:
    """As it stands in a YAML file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
