"""Observation names: what an environment calls them, and what the policy calls them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

IMAGE = "observation.image"
WRIST_WORDS = ("wrist", "hand", "gripper", "image2")


class NamedFeatures(dict[str, tuple[int, ...]]):
    """Shapes of what a policy needs, by the environment's names, and what it calls them itself.

    Args:
        shapes: environment name -> shape of a row.
        own: environment name -> policy name; empty where no `rename_map` is taken.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, str]) -> None:
        super().__init__(shapes)
        self.own = dict(own)


def needed_features(config: Any) -> dict[str, tuple[int, ...]]:
    """The policy's own names and shapes, without the cameras that it fills in itself."""
    num_empty = int(getattr(config, "empty_cameras", 0))
    empty = {f"observation.images.empty_camera_{i}" for i in range(num_empty)}
    features = {key: tuple(feature.shape) for key, feature in config.input_features.items()}
    return {key: shape for key, shape in features.items() if key not in empty}


def environment_names(needed: Iterable[str], rename_map: Mapping[str, str]) -> dict[str, str]:
    """Environment name -> policy name of every observation that the policy needs.

    Args:
        needed: the policy's names.
        rename_map: environment name -> policy name; names that are not in it are the same in both.

    Raises:
        ValueError: the map names an observation that the policy does not have, or leads two of its
            observations to one, or an image to something else.
    """
    needed = list(needed)
    unknown = sorted(set(rename_map.values()) - set(needed))
    if unknown:
        raise ValueError(
            f"--policy.rename_map leads to {unknown}, which the base policy does not have; it has "
            f"{sorted(needed)}"
        )
    to_environment = {policy: env for env, policy in rename_map.items()}
    names = {to_environment.get(policy, policy): policy for policy in needed}
    if len(to_environment) < len(rename_map) or len(names) < len(needed):
        raise ValueError(
            f"--policy.rename_map {json.dumps(dict(rename_map))} gives two observations the same "
            "name: each name may be used once"
        )
    for env, policy in names.items():
        if env.startswith(IMAGE) != policy.startswith(IMAGE):
            raise ValueError(
                f"--policy.rename_map leads {env!r} to {policy!r}: images must stay images "
                f"({IMAGE}...)"
            )
    return names


def suggest_rename_map(needed: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """A plausible `rename_map` (environment name -> policy name) for images of other names.

    Wrist cameras are paired with wrist cameras first, then what is left in order. Empty if nothing
    can be paired.

    Args:
        needed: the policy's names.
        given: the environment's names.
    """
    needed, given = list(needed), list(given)
    missing = [name for name in needed if name not in given and name.startswith(IMAGE)]
    spare = [name for name in given if name not in needed and name.startswith(IMAGE)]
    pairs: dict[str, str] = {}
    tests: tuple[Callable[[str, str], bool], ...] = (
        lambda env, policy: _is_wrist(env) == _is_wrist(policy),
        lambda env, policy: True,
    )
    for fits in tests:
        for policy in missing:
            free = (env for env in spare if env not in pairs and fits(env, policy))
            if policy not in pairs.values() and (env := next(free, None)):
                pairs[env] = policy
    return pairs


def missing_observations(needed: Iterable[str], given: Iterable[str]) -> str:
    """The message for observations that the policy needs and the environment does not give.

    Args:
        needed: what the environment should call them; `NamedFeatures` if a `rename_map` says so.
        given: the environment's names.
    """
    own = needed.own if isinstance(needed, NamedFeatures) else None
    needed, given = list(needed), list(given)
    missing = sorted(set(needed) - set(given))
    message = f"the base policy needs {missing}, which are not among the given {sorted(given)}"
    names = {name: name for name in needed} if own is None else own
    if suggestion := extended_rename_map(names, given):
        return f"{message}; to rename them use --policy.rename_map='{json.dumps(suggestion)}'"
    return f"{message}; name a policy that does without them as policy.path"


def extended_rename_map(own: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """A `rename_map` that gives the policy more than the one in force; empty if none does.

    Args:
        own: environment name -> policy name, as they are in force.
        given: the environment's names.
    """
    found = {env: policy for env, policy in own.items() if env in given}
    wanted = [policy for policy in own.values() if policy not in found.values()]
    spare = [env for env in given if env not in found]
    added = {name: name for name in wanted if name in spare} | suggest_rename_map(wanted, spare)
    kept = {env: policy for env, policy in found.items() if env != policy}
    return {**kept, **added} if added else {}


def _is_wrist(name: str) -> bool:
    camera = name.rsplit(".", 1)[-1].lower()
    return any(word in camera for word in WRIST_WORDS)
