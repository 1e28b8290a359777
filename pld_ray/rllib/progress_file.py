"""The counters of a checkpoint, read once all of its files have been checked."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

from pld_ray.files.manifest import MANIFEST_FILE, MARK, CheckpointError, check_manifest, damaged
from pld_ray.runs.run_state import PROGRESS_FILE

PROGRESS_KEYS = {
    *("phase", "iteration", "env_steps", "updates", "update_debt", "collection_env_steps"),
    "schedule",
}
"""In every release's; later ones have more."""


def read_progress(folder: pathlib.Path) -> dict[str, Any]:
    """The counters of a checkpoint, all of whose files have been checked.

    A checkpoint of a release without manifests is taken as it is, with a warning.

    Raises:
        CheckpointError: the folder is no checkpoint of ours, or a file of it is damaged.
    """
    path = folder / PROGRESS_FILE
    is_checked = check_manifest(folder)
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a pld-ray checkpoint: {PROGRESS_FILE} is missing; give a folder that "
            "`pld-ray train` wrote under checkpoints/"
        )
    try:
        progress = json.loads(path.read_bytes())
        lacking = PROGRESS_KEYS - progress.keys()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(path, f"it is no JSON object ({error})") from None
    if lacking:
        raise damaged(path, f"it lacks {', '.join(sorted(lacking))}")
    if not is_checked and progress.get(MARK):
        raise damaged(folder / MANIFEST_FILE, "it is missing")
    if not is_checked:
        logging.getLogger("pld_ray").warning(
            "%s was written by a release without checksums: damage to it would not be seen", folder
        )
    return progress
