"""Lend a seed to code which draws from numpy's global random state, and give the state back."""

# ruff: noqa: NPY002  the legacy generator is the very thing dealt with here
from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def global_numpy_seed(generator: np.random.Generator) -> Iterator[None]:
    """Seed `np.random` from `generator` inside the block and restore the old state after it.

    LIBERO's placement samplers and robosuite's initialisation noise know no other source. One
    32-bit seed is drawn from `generator` per block.
    """
    before = np.random.get_state()
    np.random.seed(int(generator.integers(2**32, dtype=np.uint64)))
    try:
        yield
    finally:
        np.random.set_state(before)


@contextlib.contextmanager
def literal_numpy_seed(seed: int) -> Iterator[None]:
    """Seed `np.random` with `seed` itself (modulo 2**32), then restore the old state."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
