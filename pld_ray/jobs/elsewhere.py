"""A run goes on in another folder, on another machine, on another cluster than it began."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from pld_ray.config.groups import LOCAL_RAY
from pld_ray.options import with_absolute_paths
from pld_ray.tracking.mlflow_record import absolute

UNPACKED = "working_dir_files"
"""Where Ray unpacks the folder of a job: on each node at a place of its own."""


def start_folder() -> pathlib.Path | None:
    """The folder in which relative paths were typed; None where they are to stay relative."""
    folder = pathlib.Path.cwd()
    return None if UNPACKED in folder.parts else folder


def located(config: Any, folder: pathlib.Path | None) -> Any:
    """The configuration of a new run as it is kept, with paths that hold wherever it goes on.

    What lies in `placement.working_dir` keeps its relative path, under which each node has it.

    Args:
        config: as it was typed.
        folder: see `start_folder`.
    """
    if folder is None:
        return config
    working_dir = config.placement.working_dir
    config = with_absolute_paths(config, folder, working_dir and folder / working_dir)
    return with_absolute_store(config)


def with_absolute_store(config: Any) -> Any:
    """With the whole path of MLflow's sqlite file."""
    uri = config.tracking.uri
    if uri is None:
        return config
    tracking = dataclasses.replace(config.tracking, uri=absolute(uri))
    return dataclasses.replace(config, tracking=tracking)


def other_cluster(config: Any, ray_address: str | None = None) -> str | None:
    """Where the cluster is that a command joins; None where it starts a Ray of its own.

    Args:
        config: of a run.
        ray_address: goes before what the configuration and RAY_ADDRESS name.
    """
    address = ray_address or config.ray_address or os.environ.get("RAY_ADDRESS")
    return None if address == LOCAL_RAY else address


def joined_now(config: Any, ray_address: str | None = None) -> Any:
    """A stored configuration for who runs it now: RAY_ADDRESS goes before the stored address.

    Whoever runs now has set it, or `ray job submit` has.

    Args:
        config: of a run.
        ray_address: goes before both.
    """
    address = ray_address
    if config.ray_address not in (None, LOCAL_RAY):  # else RAY_ADDRESS is asked anyway, or never
        address = address or os.environ.get("RAY_ADDRESS")
    return dataclasses.replace(config, ray_address=address) if address else config
