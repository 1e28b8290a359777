"""Environments which the tests of this folder share; building one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs import LiberoEnv


@pytest.fixture(scope="session")
def env() -> Iterator[LiberoEnv]:
    """The default task. Every test resets it, so that no order of tests matters."""
    env = LiberoEnv()
    yield env
    env.close()
