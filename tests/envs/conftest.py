"""Environments which the tests of this folder share; building one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs import LiberoEnv
from envs.assets import ASSETS_VARIABLE
from envs.bootstrap import available_backends


@pytest.fixture(scope="session")
def env() -> Iterator[LiberoEnv]:
    """The default task. Every test resets it, so that no order of tests matters."""
    env = LiberoEnv()
    yield env
    env.close()


@pytest.fixture(scope="session")
def libero_assets() -> Path:
    """The folder of LIBERO's assets; without one the test is skipped."""
    folder = os.environ.get(ASSETS_VARIABLE)
    if not folder:
        pytest.skip(f"{ASSETS_VARIABLE} names no folder of LIBERO's assets")
    return Path(folder)


@pytest.fixture(scope="session")
def graphics() -> None:
    """Skips the test where nothing can be rendered."""
    if not available_backends():
        pytest.skip("no off-screen OpenGL library (libosmesa6 or libegl1)")
