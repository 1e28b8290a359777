"""The dotted keys of a configuration: which there are, which one is meant, and setting one."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Any, get_origin

from pld_ray.config.residual_sac import RETIRED as RETIRED_PARAMS
from pld_ray.config.seed_names import our_key
from pld_ray.config.train import ConfigError
from pld_ray.options import fields_of, without_none

RETIRED: dict[str, Any] = {
    "evaluation.at_final_scale": False,
    "stop.plateau_evaluations": None,
    "stop.plateau_std": 0.01,
    **{f"algorithm.{name}": value for name, value in RETIRED_PARAMS.items()},
}
"""Options that are gone, and with which value they did nothing: a stored run or sweep may name them
so."""


def field_names(config_class: type) -> list[str]:
    """Every dotted key of a nested dataclass, groups included; `key.*` where any may follow."""
    open_ended = mappings_of(config_class)
    names = []
    for field in fields_of(config_class):
        names.append(field.key)
        if field.key in open_ended:
            names.append(f"{field.key}.*")
    return names


@functools.cache
def mappings_of(config_class: type) -> tuple[str, ...]:
    """The options that are mappings with keys of their own."""
    fields = fields_of(config_class)
    return tuple(f.key for f in fields if get_origin(without_none(f.hint)[0]) is dict)


def mapping_above(config_class: type, key: str) -> str | None:
    """The option of `mappings_of` whose mapping the key is in."""
    names = mappings_of(config_class)
    return next((name for name in names if key.startswith(f"{name}.")), None)


def check_key(key: str, known: list[str], where: str) -> None:
    """Refuse a key that no field has, naming the closest one."""
    if key in known:
        return
    free = tuple(name[:-1] for name in known if name.endswith(".*"))
    if key.startswith(free) and key not in free:
        return
    if key in RETIRED:
        raise ConfigError(f"{where}{key} does not exist any more: use the release that had it")
    elsewhere = our_key(key[:200], known)
    close = [elsewhere] if elsewhere else []
    close = close or difflib.get_close_matches(key[:200], known, n=1, cutoff=0.5)
    if not close:  # the right name in the wrong group
        close = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]][:1]
    hint = f"; did you mean {close[0]}?" if close else "; see --print_config for all keys"
    raise ConfigError(f"{where}{key[:200]} does not exist{hint}")


def set_key(config_class: type, mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of `config_class` in nested mappings.

    What follows an option that is a mapping is a single key, dots and all. The option itself is
    replaced as any other, `{}` empties it; a group keeps the keys that are not given.
    """
    owner = mapping_above(config_class, key)
    if owner is None:
        *groups, name = key.split(".")
    else:
        groups, name = owner.split("."), key.removeprefix(f"{owner}.")
    for group in groups:
        mapping = mapping.setdefault(group, {})
    is_group = owner is None and key not in mappings_of(config_class)
    if is_group and isinstance(value, Mapping) and isinstance(mapping.get(name), dict):
        mapping[name] |= value
    else:
        mapping[name] = value


def unfolded(mapping: Mapping[str, Any], where: str, prefix: str) -> dict[str, Any]:
    """A file's mapping with `group: {name: value}` in place of `group.name: value`.

    What follows the first dot stays one key: of the group, or of an option that is a mapping.

    Args:
        mapping: of the configuration, or of one of its groups.
        where: begins each message.
        prefix: name of the group and a dot.

    Raises:
        ConfigError: a key is given in both forms.
    """
    found = {key: value for key, value in mapping.items() if "." not in str(key)}
    for key, value in mapping.items():
        if key in found:
            continue
        group, _, name = key.partition(".")
        inner = found.get(group, {})
        if not isinstance(inner, Mapping) or name in inner:
            raise ConfigError(
                f"{where}key {prefix}{key} is given twice, with a dot and within {prefix}{group}: "
                "keep one of them"
            )
        found[group] = {**inner, name: value}
    return found
