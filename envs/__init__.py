"""Manipulation environments: LIBERO's suites for gymnasium, and one that needs no download."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envs.libero import LiberoEnv
from envs.suites import suite_names, suite_tasks

__all__ = ["LiberoEnv", "make", "suite_names", "suite_tasks"]


def make(suite: str, task: str | int | None = None, **kwargs: Any) -> LiberoEnv:
    """Build `LiberoEnv(suite, task, **kwargs)`; the task None is the suite's default."""
    return LiberoEnv(suite=suite, task=task, **kwargs)


def _register() -> None:
    for suite in suite_names():
        try:
            tasks = suite_tasks(suite)
        except ImportError:  # without hf-libero there is nothing of its suites to register
            continue
        for task in tasks:
            camel = "".join(word.capitalize() for word in task.split("_"))
            env_id = f"{suite}/{camel}-v0"
            if env_id not in gym.registry:
                gym.register(
                    id=env_id,
                    entry_point="envs.libero:LiberoEnv",
                    kwargs={"suite": suite, "task": task},
                )


_register()
