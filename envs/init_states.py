"""Read and write LIBERO's `*.pruned_init` files: one flattened simulator state a row."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import numpy as np

# LIBERO saves a numpy array with torch.save. These are all the names such a file may refer to;
# torch refuses any other one, so that reading never runs code from the file.
_ALLOWED: list[Any] = [
    np.ndarray,
    np.dtype,
    np.dtypes.Float64DType,
    codecs.encode,
    (np._core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),  # type: ignore
    (np._core.multiarray._reconstruct, "numpy._core.multiarray._reconstruct"),  # type: ignore
]


def load_init_states(path: Path) -> np.ndarray:
    """Stored states [N, 1 + nq + nv] float64: simulation time, joint positions, velocities.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else than a float64 matrix.
    """
    import torch

    if not path.is_file():
        raise FileNotFoundError(
            f"Init states {path} are missing; `python -m envs.make_init_states` writes those of "
            "pld_tabletop."
        )
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            states = torch.load(path, weights_only=True)
    except Exception as error:  # torch reports a bad file by many kinds of exception
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a readable init-state file: {reason}") from error
    if isinstance(states, torch.Tensor):
        states = states.numpy()
    if not (isinstance(states, np.ndarray) and states.ndim == 2 and states.dtype == np.float64):
        raise ValueError(f"{path} must hold a float64 matrix [states, 1 + nq + nv].")
    return states


def save_init_states(path: Path, states: np.ndarray) -> None:
    """Write `states` [N, 1 + nq + nv] float64 in the format which LIBERO's loader reads."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(np.ascontiguousarray(states, dtype=np.float64), path)
