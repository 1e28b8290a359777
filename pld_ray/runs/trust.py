"""Which code a stored run may name: what this user has started with already, or vouches for.

A run's folder can come from anybody. Some settings in its `config.yaml` decide what code is run:
the environment's class, the variables and the folder that Ray gives to its processes, the cluster
that is joined. Whoever starts a new run has written these; they are kept, as a digest, in a file of
the user's own, and a stored run with others asks for `--trust`.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pld_ray.config import ConfigError
from pld_ray.files.manifest import checksum

if TYPE_CHECKING:
    from pld_ray.config import TrainConfig
    from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.groups import LOCAL_RAY

OWN_PACKAGES = ("envs.", "pld_ray.")
KNOWN_FILE = "pld-ray/known_code"
"""In `XDG_STATE_HOME`, else in `~/.local/state`."""


def code_settings(config: TrainConfig | FinetuneConfig) -> dict[str, Any]:
    """The settings that decide what code a run executes; none of them for one of our own."""
    env = config.env
    settings: dict[str, Any] = {}
    if env.entry_point is not None and not env.entry_point.startswith(OWN_PACKAGES):
        settings |= {"env.entry_point": env.entry_point, "env.kwargs": env.kwargs}
    if env.robot:
        settings["env.robot"] = env.robot
    placement = config.placement
    if placement.env_vars:
        settings["placement.env_vars"] = placement.env_vars
    if placement.working_dir is not None:
        settings["placement.working_dir"] = placement.working_dir
    if config.ray_address not in (None, "auto", LOCAL_RAY):
        settings["ray_address"] = config.ray_address
    return settings


def remember(configs: Iterable[TrainConfig | FinetuneConfig]) -> None:
    """This user starts these: their code needs no `--trust` from now on."""
    new = {checksum(named) for config in configs if (named := code_settings(config))} - known()
    if not new:
        return
    path = known_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write("".join(f"{one}\n" for one in sorted(new)))
    except OSError:
        pass  # no home to keep it in: --trust will be asked for


def check_trusted(config: TrainConfig | FinetuneConfig, source: pathlib.Path, trust: bool) -> None:
    """Refuse the code that a stored run names, unless this user has started with it before.

    Args:
        config: as stored.
        source: where it is stored.
        trust: the user vouches for it.

    Raises:
        ConfigError: it names foreign code.
    """
    settings = code_settings(config)
    if trust or not settings or checksum(settings) in known():
        return
    named = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    raise ConfigError(
        f"{source} names code that would be run here and that you have not started a run with: "
        f"{named}; if you trust it, say so with --trust"
    )


def known() -> set[str]:
    """Digests of what this user has started with."""
    try:
        return set(known_file().read_text().split())
    except (OSError, ValueError):
        return set()


def known_file() -> pathlib.Path:
    """Where they are kept."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return pathlib.Path(state).expanduser() / KNOWN_FILE
