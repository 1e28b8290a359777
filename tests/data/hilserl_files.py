"""Pickles as HIL-SERL writes them."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np


def transitions(lengths=(3, 2), seed=0, succeed=(True, False)) -> list[dict[str, Any]]:
    """Episodes of these lengths, one after the other; a person acts in each one's first step."""
    rng, rows = np.random.default_rng(seed), []
    for length, success in zip(lengths, succeed, strict=True):
        seen = [
            {
                "state": rng.normal(size=(1, 4)).astype(np.float32),
                "wrist_1": rng.integers(0, 256, (1, 8, 8, 3), dtype=np.uint8),
            }
            for _ in range(length + 1)
        ]
        for step in range(length):
            last = step == length - 1
            action = rng.uniform(-1, 1, 3).astype(np.float32)
            rows.append(
                {
                    "observations": seen[step],
                    "next_observations": seen[step + 1],
                    "actions": action,
                    "rewards": float(last and success),
                    "masks": 1.0 - (last and success),
                    "dones": last,
                    "infos": {} if step else {"intervene_action": action},
                }
            )
    return rows


def write_transitions(path: pathlib.Path, **changes: Any) -> pathlib.Path:
    """A file of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(transitions(**changes)))
    return path
