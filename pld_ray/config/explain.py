"""What a key of the configuration means: its meaning, type, default and the presets that set it."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import config_class_of
from pld_ray.config.file import read_mapping
from pld_ray.config.keys import check_key, field_names
from pld_ray.config.presets import PRESETS, preset_names
from pld_ray.config.seed_names import called_elsewhere, our_key
from pld_ray.options import Field, choices_of, fields_of, type_name

WIDTH = 88


def explain(key: str, config_class: Any = TrainConfig) -> str:
    """The text about a key, or a group's keys with the beginning of each text.

    Args:
        key: dotted, with or without `--`; or what another source calls it.
        config_class: of the command's configuration.

    Raises:
        ConfigError: there is no such key; the closest one is named.
    """
    fields, given = config_fields(config_class), key.removeprefix("--")
    key = given if given in fields else our_key(given, fields) or given
    if key != given:
        return f"{given} is {key} here.\n\n{explain(key, config_class)}"
    check_key(key, field_names(config_class), "key ")
    if key not in fields:  # below a mapping, such as env.kwargs.size
        key = max((name for name in fields if key.startswith(f"{name}.")), key=len)
    found = fields[key]
    return _group_text(found, fields) if found.is_group else _field_text(found, config_class)


def list_groups(config_class: Any = TrainConfig, command: str = "train") -> str:
    """Every group of the configuration with its meaning, and the keys outside of groups."""
    top = [field for key, field in config_fields(config_class).items() if "." not in key]
    width = max(len(field.key) for field in top)
    room = WIDTH - width - 4
    lines = [
        f"Keys, by group (pld-ray {command} --explain GROUP lists them, --explain KEY explains "
        "one):"
    ]
    for field in sorted(top, key=lambda field: not field.is_group):
        name = f"{field.key}.*" if field.is_group else field.key
        text = textwrap.shorten(field.meaning, room, placeholder="...")
        lines.append(f"  {name:{width + 2}}{text}")
    return "\n".join(lines)


@functools.cache
def config_fields(config_class: Any = TrainConfig) -> dict[str, Field]:
    """Every key and group of a configuration, in the order of the source."""
    return {found.key: found for found in fields_of(config_class)}


def presets_with(key: str, config_class: Any = TrainConfig) -> dict[str, Any]:
    """Preset (file stem) -> the value it gives to the key, of the presets of that command."""
    values = {}
    for name, preset in _presets().items():
        if config_class_of(preset) is not config_class:
            continue
        node: Any = preset
        for part in key.split("."):
            node = node.get(part, _ABSENT) if isinstance(node, dict) else _ABSENT
        if node is not _ABSENT:
            values[name] = node
    return values


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    """Every shipped preset by its name."""
    return {name: read_mapping(PRESETS / f"{name}.yaml") for name in preset_names()}


_ABSENT = object()


def _field_text(found: Field, config_class: Any) -> str:
    declared = found.option
    rows = {"type": type_name(found.hint), "default": _show(found.default)}
    if values := [
        *choices_of(found.hint, declared),
        *(f"{prefix}NAME" for prefix in declared.prefixes),
    ]:
        rows["values"] = ", ".join(values)
    if declared.within != "(-inf, inf)":
        rows["range"] = f"{declared.within} {declared.unit}".rstrip()
    lines = [found.key, *_wrapped(declared.meaning), ""]
    lines += [f"  {title:8} {text}" for title, text in rows.items()]
    for source, names in called_elsewhere(found.key).items():
        lines.append(f"  {'called':8} {', '.join(names)} by {source}")
    presets = presets_with(found.key, config_class)
    if presets:
        width = max(map(len, presets))
        lines.append("  presets")
        lines += [f"    {name:{width}}  {_show(value)}" for name, value in presets.items()]
    return "\n".join(lines)


def _group_text(found: Field, fields: dict[str, Field]) -> str:
    inside = [f for key, f in fields.items() if key.rpartition(".")[0] == found.key]
    width = max(len(f.key) for f in inside)
    lines = [found.key, *_wrapped(found.option.meaning), ""]
    room = max(24, WIDTH - width - 4)
    for member in inside:
        text = textwrap.shorten(member.meaning, room, placeholder="...")
        lines.append(f"  {member.key:{width}}  {text}".rstrip())
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _show(value: Any) -> str:
    """As it stands in a YAML file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
