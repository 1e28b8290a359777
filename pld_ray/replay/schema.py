"""The columns of one transition, and where each lies in a packed row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IMAGE_PREFIX = "observation.images."
PACKED_DTYPES = ("float32", "float64", "bool")
REQUIRED = (
    "base_action",
    "action",
    "reward",
    "terminated",
    "truncated",
    "residual_scale",
    "intervened",
)
MC_RETURN = "mc_return"  # computed when an episode is added, never read from outside
END_OF_TASK = "end_of_task"  # 1 on the final frame of a terminated episode: do not bootstrap


@dataclass(frozen=True)
class ColumnSpec:
    """Shape of one row of a column, without the time axis, and its dtype by name."""

    shape: tuple[int, ...]
    dtype: str = "float32"


class ReplaySchema:
    """Which columns are stored.

    Vectors and scalars are packed side by side into one float32 row, so that a sample of them is
    one gather; images (`observation.images.*`, uint8) are kept apart, one tensor each.

    Args:
        columns: name -> ColumnSpec of the table in `docs/architecture.md`.
        observation_keys: vector columns that make up the observation, in order.

    Raises:
        ValueError: a required column is missing, or a dtype cannot be stored.
    """

    def __init__(self, columns: Mapping[str, ColumnSpec], observation_keys: Sequence[str]) -> None:
        self.columns = dict(columns)
        self.observation_keys = list(observation_keys)
        if not self.observation_keys:
            raise ValueError("replay schema: observation_keys is empty; name at least one column")
        for name in (*self.observation_keys, *REQUIRED):
            if name not in self.columns:
                raise ValueError(f"replay schema: column {name!r} is missing")
        self.image_keys = [name for name in self.columns if name.startswith(IMAGE_PREFIX)]
        for name, spec in self.columns.items():
            accepted = ("uint8",) if name in self.image_keys else PACKED_DTYPES
            if spec.dtype not in accepted:
                raise ValueError(
                    f"replay schema: column {name!r} has dtype {spec.dtype}, need one of {accepted}"
                )
        first = [*self.observation_keys, *REQUIRED]
        others = [n for n in self.columns if n not in (*first, *self.image_keys, MC_RETURN)]
        self.packed = {name: self.columns[name].shape for name in (*first, *others)} | {
            MC_RETURN: (),
            END_OF_TASK: (),
        }
        self.widths = [math.prod(shape) for shape in self.packed.values()]
        starts = np.cumsum([0, *self.widths])
        self.start = {name: int(s) for name, s in zip(self.packed, starts, strict=False)}
        self.row_width = int(starts[-1])
        """Float32 values in a packed row."""
        self.observation_dim = sum(math.prod(self.packed[k]) for k in self.observation_keys)
        """D, width of the concatenated observation vector."""

    @property
    def input_columns(self) -> list[str]:
        """Columns that an added batch must have."""
        return [name for name in self.columns if name != MC_RETURN]

    def view(self, rows: Tensor, name: str) -> Tensor:
        """One column of packed rows [..., row_width], as a view [..., *shape]."""
        shape = self.packed[name]
        if not shape:
            return rows.select(-1, self.start[name])
        flat = rows.narrow(-1, self.start[name], math.prod(shape))
        return flat if len(shape) == 1 else flat.unflatten(-1, shape)

    def observation(self, rows: Tensor) -> Tensor:
        """The observation vector of packed rows, a view [..., observation_dim]."""
        return rows.narrow(-1, 0, self.observation_dim)

    def check(self, columns: Mapping[str, np.ndarray | Tensor], num_rows: int) -> None:
        """Raise ValueError unless every column is present with `num_rows` rows of its shape."""
        for name in self.input_columns:
            if name not in columns:
                raise ValueError(
                    f"replay: column {name!r} is missing; the batch has {sorted(columns)}"
                )
            want = (num_rows, *self.columns[name].shape)
            have = tuple(columns[name].shape)
            if have != want:
                raise ValueError(
                    f"replay: column {name!r} has shape {have}, need {want}: each episode of L "
                    "transitions is L rows and one final frame"
                )
            if name in self.image_keys and str(columns[name].dtype) not in ("uint8", "torch.uint8"):
                raise ValueError(f"replay: column {name!r} is {columns[name].dtype}, need uint8")

    def pack(self, columns: Mapping[str, np.ndarray | Tensor], num_rows: int) -> Tensor:
        """Packed rows [num_rows, row_width] on the CPU; mc_return and end_of_task are zero."""
        rows = torch.zeros(num_rows, self.row_width)
        for name in self.packed:
            if name in columns and name not in (MC_RETURN, END_OF_TASK):
                column = torch.as_tensor(columns[name]).reshape(num_rows, -1)
                start = self.start[name]
                rows[:, start : start + column.shape[1]] = column
        return rows

    def describe(self) -> dict[str, object]:
        """The schema as JSON, to recognise a saved ring."""
        columns = {n: [list(spec.shape), spec.dtype] for n, spec in self.columns.items()}
        return {"columns": columns, "observation_keys": self.observation_keys}
