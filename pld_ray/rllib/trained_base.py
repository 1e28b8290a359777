"""Which base policy a checkpoint was trained on: it goes on, acts and is exported with that one."""

from __future__ import annotations

import pathlib

from pld_ray.config import ConfigError
from pld_ray.files.manifest import check_manifest
from pld_ray.policies import NoBasePolicy
from pld_ray.runs.layout import CONFIG_FILE, PROGRESS_FILE, read_json

BASE_POLICY = "base_policy"
"""Of a checkpoint's counters: the base policy's fingerprint. Older releases wrote none."""


def check_trained_on(checkpoint: pathlib.Path, found: str, path: str | None) -> None:
    """Refuse a checkpoint of another base policy; one that does not tell its own is taken.

    Args:
        checkpoint: its folder.
        found: fingerprint of the base policy that is to act.
        path: `policy.path`, where that one lies.

    Raises:
        CheckpointError: the file that tells it is damaged.
        ConfigError: it was trained on another one.
    """
    check_manifest(checkpoint, only=[PROGRESS_FILE])
    known = read_json(checkpoint / PROGRESS_FILE).get(BASE_POLICY)
    if known in (None, found):
        return
    config = checkpoint.resolve().parent.parent / CONFIG_FILE
    where = str(config) if config.is_file() else "the configuration"
    if known == NoBasePolicy.fingerprint:
        raise ConfigError(
            f"{checkpoint} was trained without a base policy: write policy.type=none into {where}"
        )
    here = f"policy.path={path}" if path else "the one that is shipped"
    raise ConfigError(
        f"{checkpoint} was trained on the base policy {str(known)[:12]}, and {here} is "
        f"{found[:12]} now: put the former back, or write its place as policy.path into {where}"
    )
