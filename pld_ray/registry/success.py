"""The success of what is registered: tags of a version, and a look at the one before."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pld_ray.runs.layout import (
    BEST,
    EVAL_INFO_FILE,
    TRAINER_FILE,
    checkpoint_checksum,
    read_json,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

STATES = {"held_success": "held", "validation_success": "validation"}
"""Tags of a version, rates in [0, 1], and the states that they are of."""


def known_success(checkpoint: pathlib.Path) -> dict[str, str]:
    """What the files of its run say of the success of this very checkpoint, as tags.

    The held states were played by the checkpoint whose checksum the result bears, the validation
    states by `best` before it got that name; of any other one nothing is known.
    """
    found: dict[str, Any] = {}
    result = read_json(checkpoint.parents[1] / EVAL_INFO_FILE)
    checksum = checkpoint_checksum(checkpoint)
    if checksum is not None and result.get("checksum") == checksum:
        overall = result["overall"]
        found = {"held_success": overall["pc_success"] / 100, "held_states": overall["n_episodes"]}
    if checkpoint.name == BEST:
        state = read_json(checkpoint / TRAINER_FILE)
        # -1: before the first, or of a release that saved it before it was evaluated
        if state.get("best_success", -1) >= 0 and state.get("evaluated_at", -1) >= 0:
            found["validation_success"] = state["best_success"]
    return {name: f"{value:g}" for name, value in found.items()}


def lower_than_before(client: MlflowClient, name: str, alias: str, about: Mapping[str, str]) -> str:
    """A sentence where the alias is at a version of higher success on states of the same kind."""
    from mlflow.exceptions import MlflowException

    try:
        before = client.get_model_version_by_alias(name, alias)
    except MlflowException:  # it is at none
        return ""
    kind = next((k for k in STATES if k in about and k in before.tags), None)
    if kind is None or before.tags.get("task") != about.get("task"):
        return ""
    was, now = float(before.tags[kind]), float(about[kind])
    if now >= was:
        return ""
    return (
        f"the alias {alias} was at version {before.version}, whose success on the {STATES[kind]} "
        f"states is higher, {was:.0%} and not {now:.0%}: set it back on the model's page in MLflow "
        "if it is to stay there, and give the new version another --alias"
    )


def in_words(tags: Mapping[str, str]) -> str:
    """`95% on the held states, 98% on the validation states`; empty where nothing is known."""
    known = [f"{float(tags[k]):.0%} on the {of} states" for k, of in STATES.items() if k in tags]
    return ", ".join(known)
