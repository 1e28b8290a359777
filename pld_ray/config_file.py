"""Configurations from YAML and dotted flags, through draccus, and back."""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
import sys
from typing import Any

import draccus
import yaml

from pld_ray.config import ConfigError


def field_names(config_class: type, prefix: str = "") -> list[str]:
    """Every dotted key of a nested dataclass, groups included; `key.*` where any may follow."""
    names = []
    hints = {f.name: f for f in dataclasses.fields(config_class)}
    for name, f in hints.items():
        names.append(prefix + name)
        default = f.default_factory() if callable(f.default_factory) else None
        if dataclasses.is_dataclass(default):
            names += field_names(type(default), f"{prefix}{name}.")
        if isinstance(default, dict):
            names.append(f"{prefix}{name}.*")
    return names


def load_config(config_class: type, args: list[str]) -> Any:
    """Parse flags, `--config_path` included, into `config_class`.

    Raises:
        ConfigError: an unknown key (with the closest known one), a value of the wrong type, a file
            that is missing or is no YAML mapping, or a value out of range.
    """
    known = field_names(config_class)
    for arg in args:
        if arg.startswith("--"):
            check_key(arg[2:].split("=")[0], [*known, "config_path"], "flag --")
    path = config_path(args)
    if path is not None:
        for key in yaml_keys(path):
            check_key(key, known, f"{path}: key ")
    try:
        config: Any = draccus.parse(config_class=config_class, args=args)
    except SystemExit as error:
        raise ConfigError(f"cannot parse the command line: {' '.join(args)}") from error
    except Exception as error:
        raise ConfigError(f"a value of the configuration has the wrong type: {error}") from error
    config.validate()
    return config


def check_key(key: str, known: list[str], where: str) -> None:
    """Refuse a key that no field has, naming the closest one."""
    free = tuple(name[:-1] for name in known if name.endswith(".*"))
    if key in known or key.startswith(free):
        return
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not close:  # the right name in the wrong group
        close = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]][:1]
    hint = f"; did you mean {close[0]}?" if close else "; see --print_config for all keys"
    raise ConfigError(f"{where}{key} does not exist{hint}")


def config_path(args: list[str]) -> pathlib.Path | None:
    """The file given with `--config_path`, checked to exist."""
    for i, arg in enumerate(args):
        if arg.startswith("--config_path"):
            value = arg.partition("=")[2] or (args[i + 1] if i + 1 < len(args) else "")
            path = pathlib.Path(value)
            if not path.is_file():
                raise ConfigError(f"--config_path={value}: no such file")
            return path
    return None


def yaml_keys(path: pathlib.Path, node: Any = None, prefix: str = "") -> list[str]:
    """Dotted keys of a YAML mapping."""
    if node is None:
        try:
            node = yaml.safe_load(path.read_text()) or {}
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not valid YAML: {error}") from error
        if not isinstance(node, dict):
            raise ConfigError(f"{path} must hold a mapping, not a {type(node).__name__}")
    keys = []
    for key, value in node.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += yaml_keys(path, value, f"{prefix}{key}.")
    return keys


def dump_config(config: Any) -> str:
    """The complete configuration as YAML that `--config_path` reads back."""
    return yaml.safe_dump(draccus.encode(config), sort_keys=False)


def main_print(config: Any) -> None:
    """Print the complete configuration."""
    sys.stdout.write(dump_config(config))
