"""Paths among the parameters of runs: older releases logged them as typed, newer ones whole."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Sequence

from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.options import fields_of
from pld_ray.report.runs import Run

POLICY, FINGERPRINT = "policy.path", "base_policy"
"""The parameter, and the tag by which two places hold the same policy."""
Written = tuple[str, str]
"""A path, or a JSON list of them, as it was logged; the policy's fingerprint where it is known."""


def params_of(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The parameters of each run; a path that they write differently is the relative one."""
    found = [dict(run.params) for run in runs]
    for key in path_keys():
        tags = [run.tags.get(FINGERPRINT, "") if key == POLICY else "" for run in runs]
        having = [(p, (p[key], tag)) for p, tag in zip(found, tags, strict=True) if key in p]
        names = shown_as([written for _, written in having])
        for params, written in having:
            params[key] = names[written]
    return found


@functools.cache
def path_keys() -> frozenset[str]:
    """Every option that is declared as a path."""
    kinds = (TrainConfig, ACRLPDTrainConfig, FinetuneConfig)
    return frozenset(f.key for kind in kinds for f in fields_of(kind) if f.option.path)


def shown_as(found: Sequence[Written]) -> dict[Written, str]:
    """How each is shown, the same text for the same place.

    Two whole paths are one place where both tell the same policy. A relative path is the whole one
    that ends with it, if there is one alone.
    """
    whole = [one for one in dict.fromkeys(found) if is_whole(one[0])]
    first = {a: next(b for b in whole if b == a or a[1] == b[1] != "") for a in whole}
    names: dict[Written, str] = {}
    relative: dict[Written, str] = {}
    for one in dict.fromkeys(found):
        if one in first:
            continue
        places = {first[w] for w in whole if ends_with(w[0], one[0]) and may_be_one(w, one)}
        names[one] = relative.setdefault(places.pop(), one[0]) if len(places) == 1 else one[0]
    return names | {one: relative.get(first[one], first[one][0]) for one in whole}


def may_be_one(one: Written, other: Written) -> bool:
    """False where both tell their policy, and it is not the same."""
    return not (one[1] and other[1]) or one[1] == other[1]


def is_whole(text: str) -> bool:
    """Whether any of the paths is absolute."""
    return any(path.is_absolute() for path in paths_in(text))


def ends_with(text: str, end: str) -> bool:
    """Whether each path of a text is that of the other, or ends with all of its parts."""
    ones, others = paths_in(text), paths_in(end)
    return len(ones) == len(others) and all(
        one == other or (bool(other.parts) and one.parts[-len(other.parts) :] == other.parts)
        for one, other in zip(ones, others, strict=True)
    )


def paths_in(text: str) -> list[pathlib.PurePath]:
    """The path, or those of a JSON list."""
    try:
        found = json.loads(text) if text.startswith("[") else [text]
    except ValueError:  # MLflow has cut it
        found = [text]
    return [pathlib.PurePath(str(path)) for path in found]
