"""Configurations from YAML and dotted flags, checked, and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import yaml

from pld_ray.config import ConfigError, TrainConfig, residual_sac
from pld_ray.config.acrlpd_train import check_command, config_class_of
from pld_ray.config.groups import LIBERO_ONLY, EnvConfig
from pld_ray.config.keys import RETIRED, check_key, field_names, mapping_above, set_key, unfolded
from pld_ray.config.presets import find_preset
from pld_ray.files.yaml_file import YamlError, parse_yaml, read_yaml
from pld_ray.options import (
    as_type,
    fields_of,
    fits,
    from_text,
    is_plain_number,
    shown,
    unfit,
    with_home,
    without_none,
)
from pld_ray.options.declare import Field


def load_config(config_class: type, args: list[str]) -> Any:
    """Parse flags, `--config_path` included, into `config_class`; flags win over the file.

    Raises:
        ConfigError: an unknown key (with the closest known one), a key given twice, a value of the
            wrong type or out of range, a file that is missing or is no YAML mapping.
    """
    flags = parse_flags(args, field_names(config_class))
    path = flags.pop("config_path", None)
    mapping = {} if path is None else read_mapping(existing(path))
    check_command(mapping, config_class, str(path))
    return with_flags(decode(config_class, mapping, "" if path is None else f"{path}: "), flags)


def with_flags(config: Any, flags: Mapping[str, str]) -> Any:
    """The configuration with these values in place of its own, checked.

    Args:
        config: stays as it is.
        flags: of `parse_flags`.

    Raises:
        ConfigError: as `load_config`.
    """
    if flags:
        config_class, mapping = type(config), encode(config)
        for key, text in flags.items():
            set_key(config_class, mapping, key, flag_value(config_class, key, text))
        config = decode(config_class, mapping)
    config.validate()
    return config


def read_config(config_class: type, path: str | os.PathLike[str]) -> Any:
    """The configuration in a file, checked.

    Raises:
        ConfigError: naming the file and what is wrong with it.
    """
    return checked(decode(config_class, read_mapping(path), f"{path}: "), path)


def read_stored(path: str | os.PathLike[str]) -> Any:
    """The configuration of a run in its folder: what an older release did not name is as it was.

    Raises:
        ConfigError: as `read_config`.
    """
    mapping = read_mapping(path)
    config_class = config_class_of(mapping)
    algorithm = mapping.get("algorithm")
    if config_class is TrainConfig and isinstance(algorithm, Mapping):
        mapping = {**mapping, "algorithm": {**residual_sac.BEFORE, **algorithm}}
    return checked(without_effect(decode(config_class, mapping, f"{path}: ")), path)


def without_effect(config: Any) -> Any:
    """A stored configuration without what releases let stand that it did nothing to."""
    if config.env.entry_point is not None:
        usual = {name: getattr(EnvConfig(), name) for name in LIBERO_ONLY}
        config.env = dataclasses.replace(config.env, **usual)
    if isinstance(config, TrainConfig) and config.evaluation.interval_steps == 0:  # none came
        config.evaluation = dataclasses.replace(config.evaluation, stop_success=None)
    params = config.algorithm
    if hasattr(params, "log_std_init"):  # the policy was clamped, and this one is learnt already
        params.log_std_init = min(max(params.log_std_init, params.log_std_min), params.log_std_max)
    return config


def checked(config: Any, path: str | os.PathLike[str]) -> Any:
    """The configuration of a file; ConfigError names the file where it cannot be so."""
    try:
        config.validate()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def decode(config_class: type, mapping: Any, where: str = "") -> Any:
    """A configuration from plain data; what is absent has its default.

    Args:
        where: begins each message, such as "FILE: ".

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of its own range.
    """
    return decoded(config_class, mapping, field_names(config_class), where, "")


def decoded(config_class: Any, mapping: Any, known: list[str], where: str, prefix: str) -> Any:
    """`decode` of the configuration itself or, with its name as prefix, of one of its groups."""
    if not isinstance(mapping, Mapping):
        name = prefix.removesuffix(".") or "a configuration"
        raise ConfigError(f"{where}{name}={shown(mapping)}: must be a mapping of its keys")
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if name not in RETIRED or value != RETIRED[name]:
            check_key(name, known, f"{where}key ")
    mapping = unfolded(mapping, where, prefix)
    values: dict[str, Any] = {}
    for field in fields_of(config_class):
        if "." in field.key or field.key not in mapping:
            continue
        value = mapping[field.key]
        if field.is_group:
            value = decoded(field.hint, value, known, where, f"{prefix}{field.key}.")
        else:
            value = as_type(copy.deepcopy(value), field.hint)
            if field.option.path is not None:
                value = with_home(value)
            if not fits(value, field.hint, field.option):
                raise ConfigError(where + unfit(prefix + field.key, value, field))
        values[field.key] = value
    return config_class(**values)


def encode(config: Any) -> dict[str, Any]:
    """A configuration as plain data, which `decode` reads back."""
    return dataclasses.asdict(config)


def dump_config(config: Any) -> str:
    """The complete configuration as YAML that `--config_path` reads back."""
    return yaml.safe_dump(encode(config), sort_keys=False)


# --- flags ----------------------------------------------------------------------------------------


REPEATABLE = ("demo_path", "dataset")
"""Lists of texts whose items may each be given with a flag of its own."""


def parse_flags(args: list[str], known: list[str]) -> dict[str, str]:
    """Key -> text of each `--key=value` or `--key value`.

    Raises:
        ConfigError: something that is no flag, an unknown key, one without a value or given twice,
            a list that is no YAML.
    """
    flags: dict[str, str] = {}
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        if not arg.startswith("--"):
            raise ConfigError(
                f"{arg[:200]!r} is no flag: settings are given as --key=value, such as "
                "--algorithm.utd=2"
            )
        key, equals, text = arg[2:].partition("=")
        check_key(key, [*known, "config_path"], "flag --")
        if not equals:
            if not waiting or waiting[0].startswith("--"):
                raise ConfigError(f"--{key} needs a value: --{key}=VALUE")
            text = waiting.pop(0)
        if key in REPEATABLE:
            items = yaml_of(key, text) if text.startswith("[") else [text]
            text = json.dumps([*json.loads(flags.get(key, "[]")), *items], default=str)
        elif key in flags:
            raise ConfigError(f"--{key} is given twice: keep one of them")
        flags[key] = text
    return flags


def flag_value(config_class: type, key: str, text: str) -> Any:
    """The value of a flag as its option wants it.

    Raises:
        ConfigError: the text is empty, no YAML, or no mapping where a group is due.
    """
    if not text:  # as of a variable of the shell that is not set
        raise ConfigError(f"--{key}= is empty: give a value, or null where none is meant")
    field = field_at(config_class, key)
    if key in REPEATABLE:
        return json.loads(text)  # of `parse_flags`
    if field is not None and (is_text(field) or is_odd_number(field, text)):
        in_mapping = mapping_above(config_class, key) is not None
        quoted = in_mapping and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
        return yaml_of(key, text) if quoted else from_text(text, field.hint)
    value = yaml_of(key, text)
    if field is None:
        return value
    if field.is_group and not isinstance(value, Mapping):
        raise ConfigError(f"--{key}={text[:80]}: {key} is a group; set one of its keys")
    return value


def yaml_of(key: str, text: str) -> Any:
    """The value of a flag's text as YAML; ConfigError where it is none."""
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise ConfigError(f"--{key}={text[:80]} is not valid YAML: {error}") from error


def field_at(config_class: type, key: str) -> Field | None:
    """What a key's value must be; None below a mapping of anything."""
    fields = {field.key: field for field in fields_of(config_class)}
    owner = mapping_above(config_class, key)
    if owner is None:
        return fields.get(key)
    hint = get_args(without_none(fields[owner].hint)[0])[1]
    return None if hint is Any else dataclasses.replace(fields[owner], key=key, hint=hint)


def is_text(field: Field) -> bool:
    """Whether the option is a text, which is taken as it stands."""
    inner, _ = without_none(field.hint)
    return inner is str or get_origin(inner) is Literal


def is_odd_number(field: Field, text: str) -> bool:
    """Whether a number is due and YAML reads none as everybody does: 0x10, 010, None."""
    if without_none(field.hint)[0] not in (int, float) or is_plain_number(text):
        return False
    try:
        return isinstance(parse_yaml(text), int | float) or text == "None"
    except YamlError:
        return True


def config_path(args: list[str]) -> pathlib.Path | None:
    """The file given with `--config_path`, checked to exist."""
    for i, arg in enumerate(args):
        flag, equals, path = arg.partition("=")
        if flag == "--config_path":
            return existing(path if equals else "".join(args[i + 1 : i + 2]))
    return None


def existing(path: str) -> pathlib.Path:
    """The file, or the shipped preset, that `--config_path` names.

    Raises:
        ConfigError: there is none.
    """
    try:
        return find_preset(with_home(path))
    except ConfigError as error:
        raise ConfigError(f"--config_path={error}") from error


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: naming the file and what is wrong with it.
    """
    try:
        return read_yaml(path)
    except YamlError as error:
        raise ConfigError(str(error)) from error
