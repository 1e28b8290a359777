"""Another gymnasium environment, named as `module:class`, and what it must have."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from pld_ray.rollout.env_group import close_quietly

PATTERN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def environment_class(entry_point: str) -> type[gym.Env]:
    """The class that `module:class` names; nothing but a gymnasium environment is ever called.

    Raises:
        ValueError: it cannot be imported, or is something else.
    """
    if not isinstance(entry_point, str) or not PATTERN.fullmatch(entry_point):
        raise ValueError(f"env.entry_point={entry_point!r}: give it as 'module:class'")
    module, _, name = entry_point.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise ValueError(
            f"env.entry_point={entry_point!r} cannot be loaded ({type(error).__name__}: {error}): "
            "give it as 'module:class', importable on every node"
        ) from error
    if not (isinstance(found, type) and issubclass(found, gym.Env)):
        raise ValueError(
            f"env.entry_point={entry_point!r} names {found!r}, which is no class derived from "
            "gymnasium.Env"
        )
    return found


def can_be_filmed(entry_point: str) -> bool:
    """Whether the class draws pictures [H, W, 3], made with `render_mode="rgb_array"`."""
    cls = environment_class(entry_point)
    taken = inspect.signature(cls).parameters.values()
    takes = any(p.name == "render_mode" or p.kind is p.VAR_KEYWORD for p in taken)
    return takes and cls.render is not gym.Env.render


def make_checked(entry_point: str, kwargs: Mapping[str, Any]) -> gym.Env:
    """One environment of the class, after a reset and a step, with all that a run asks of it.

    Raises:
        ValueError: what it lacks, or what it raised.
    """
    cls = environment_class(entry_point)
    where = f"env.entry_point={entry_point}"
    try:
        env: Any = cls(**kwargs)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{where} cannot be made with env.kwargs={dict(kwargs)!r} "
            f"({type(error).__name__}: {error})"
        ) from error
    try:
        try_out(env, where)
    except BaseException:
        close_quietly(env)
        raise
    return env


def try_out(env: Any, where: str) -> None:
    """Raise ValueError unless an environment has all that a run asks of it, for a step too."""
    check_spaces(env, where)
    count = getattr(env, "num_init_states", None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(
            f"{where}: num_init_states is {count!r}; it must be the number of stored init states, "
            "from which reset(options={'init_state_id': k}) starts"
        )
    for doing in ("reset", "step"):
        try:
            if doing == "reset":
                observation = env.reset(seed=0, options={"init_state_id": 0})[0]
            else:
                observation = env.step(env.action_space.sample())[0]
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{where}: {doing}() raised {type(error).__name__}: {error}"
            ) from error
        check_observation(observation, env.observation_space, f"{where}: {doing}()")


def check_spaces(env: Any, where: str) -> None:
    """Raise ValueError unless observations are a Dict of Box spaces, and actions a Box."""
    observations = getattr(env, "observation_space", None)
    if not isinstance(observations, gym.spaces.Dict):
        raise ValueError(f"{where}: observation_space is {observations}; it must be a Dict")
    for name, space in observations.spaces.items():
        if not isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"{where}: observation {name!r} is {space}; it must be a Box, and text belongs "
                "into the info 'task'"
            )
    actions = getattr(env, "action_space", None)
    if not isinstance(actions, gym.spaces.Box) or len(actions.shape) != 1:
        raise ValueError(f"{where}: action_space is {actions}; it must be a Box of one dimension")


def check_observation(observation: Any, spaces: gym.spaces.Dict, what: str) -> None:
    """Raise ValueError unless an observation has every column as its space says, finite."""
    if not isinstance(observation, Mapping):
        raise ValueError(f"{what} gave a {type(observation).__name__} and no dict of observations")
    for name, space in spaces.spaces.items():
        given = observation.get(name)
        found = getattr(given, "shape", None)
        if given is None or found != space.shape:
            raise ValueError(f"{what} gave {name!r} of shape {found}, not {space.shape}")
        value = np.asarray(given)
        dtype: Any = space.dtype
        whole = value.dtype.kind in "iu" and dtype.kind in "iu"
        kept = whole and bool((value.astype(dtype) == value).all())
        if not (kept or np.can_cast(value.dtype, dtype, "same_kind")):
            raise ValueError(f"{what} gave {name!r} as {value.dtype}, and its space says {dtype}")
        if not np.isfinite(value).all():
            raise ValueError(f"{what} gave {name!r} with a NaN or an infinity")
