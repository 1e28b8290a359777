"""What training goes on from: weights, average and optimiser, in safetensors and JSON."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pld_ray.files.tensors import save_tensors

POLICY, AVERAGE, OPTIMIZER = (f"{name}.safetensors" for name in ("policy", "average", "optimizer"))
STATE = "trainer_state.json"


@dataclass(frozen=True)
class Components:
    """Of one moment, on the host: later updates do not change them, any thread may write them.

    Attributes:
        tensors: file -> name -> tensor, whole, so that any number of ranks goes on from it.
        state: of the trainer, as JSON holds it.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]

    def write(self, folder: pathlib.Path) -> None:
        """Into a folder, which is made.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for file, tensors in self.tensors.items():
            save_tensors(tensors, folder / file)
        (folder / STATE).write_text(json.dumps(dict(self.state)))


def own_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Contiguous copies that share no memory; takes `state` apart, so that one is there twice."""
    return {name: state.pop(name).detach().clone().contiguous() for name in list(state)}
