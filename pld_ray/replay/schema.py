"""The columns of a transition, where each lies in a packed row, and sampled rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pld_ray.columns import BASE_ACTION, DISCRETE_PENALTY, FEATURE_PREFIX, IMAGE_PREFIX

PACKED_DTYPES = ("float32", "float64", "bool")
REQUIRED = (
    BASE_ACTION,
    "action",
    "reward",
    "terminated",
    "truncated",
    "residual_scale",
    "intervened",
)
MC_RETURN = "mc_return"  # computed when an episode is added, never read from outside
END_OF_TASK = "end_of_task"  # 1 on the final frame of a terminated episode: do not bootstrap
SAMPLED = ("observation", "next_observation", "next_base_action", "discount", END_OF_TASK)


@dataclass(frozen=True)
class ColumnSpec:
    """Shape of one row of a column, without the time axis, and its dtype by name."""

    shape: tuple[int, ...]
    dtype: str = "float32"


class ReplaySchema:
    """Which columns are stored.

    Vectors and scalars are packed side by side into one float32 row, so that a sample of them is
    one gather; images (`observation.images.*`, uint8) and features of a frozen image encoder
    (`observation.features.*`, float16) are kept apart, one tensor each.

    Args:
        columns: name -> ColumnSpec. A packed column that no loss asks for is stored too and sampled
            under its own name.
        observation_keys: vector columns that make up the observation, in order.
        features_fingerprint: of the encoder that computes the feature columns; needed with them.

    Raises:
        ValueError: a required column or the fingerprint is missing, a dtype cannot be stored, or a
            name is taken.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnSpec],
        observation_keys: Sequence[str],
        features_fingerprint: str | None = None,
    ) -> None:
        self.columns = dict(columns)
        self.observation_keys = list(observation_keys)
        self.features_fingerprint = features_fingerprint
        self.image_keys = [name for name in self.columns if name.startswith(IMAGE_PREFIX)]
        self.feature_keys = [name for name in self.columns if name.startswith(FEATURE_PREFIX)]
        self.tensor_keys = [*self.image_keys, *self.feature_keys]
        """Columns that are kept apart."""
        self._check_columns()
        first = [*self.observation_keys, *REQUIRED]
        others = [n for n in self.columns if n not in (*first, *self.tensor_keys, MC_RETURN)]
        self.packed = {name: self.columns[name].shape for name in (*first, *others)} | {
            MC_RETURN: (),
            END_OF_TASK: (),
        }
        self.has_penalty = DISCRETE_PENALTY in self.packed
        self.extra_keys = [name for name in others if name != DISCRETE_PENALTY]
        """Packed columns that a sample returns under their own name."""
        self.widths = [math.prod(shape) for shape in self.packed.values()]
        starts = np.cumsum([0, *self.widths])
        self.start = {name: int(s) for name, s in zip(self.packed, starts, strict=False)}
        self.row_width = int(starts[-1])
        """Float32 values in a packed row."""
        self.observation_dim = sum(math.prod(self.packed[k]) for k in self.observation_keys)
        """D, width of the concatenated observation vector."""

    def _check_columns(self) -> None:
        if not self.observation_keys:
            raise ValueError("replay schema: observation_keys is empty; name at least one column")
        for name in (*self.observation_keys, *REQUIRED):
            if name not in self.columns:
                raise ValueError(f"replay schema: column {name!r} is missing")
        for name, spec in self.columns.items():
            if name in SAMPLED:
                raise ValueError(
                    f"replay schema: column {name!r} has the name of something that a sample "
                    "holds anyway; rename it"
                )
            accepted = self.accepted_dtypes(name)
            if spec.dtype not in accepted:
                raise ValueError(
                    f"replay schema: column {name!r} has dtype {spec.dtype}, need one of {accepted}"
                )
        penalty = self.columns.get(DISCRETE_PENALTY, ColumnSpec(()))
        if penalty.shape:
            raise ValueError(
                f"replay schema: column {DISCRETE_PENALTY!r} has shape {penalty.shape}, need a "
                "scalar, ()"
            )
        if self.feature_keys and not self.features_fingerprint:
            raise ValueError(
                f"replay schema: column {self.feature_keys[0]!r} needs features_fingerprint, which "
                f"is {self.features_fingerprint!r}; give the fingerprint of the encoder that "
                "computes the features"
            )

    def accepted_dtypes(self, name: str) -> tuple[str, ...]:
        """Names of the dtypes that a column of this name may have."""
        if name.startswith(IMAGE_PREFIX):
            return ("uint8",)
        return ("float16",) if name.startswith(FEATURE_PREFIX) else PACKED_DTYPES

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

    def extra(self, rows: Tensor, name: str) -> Tensor:
        """One of `extra_keys` [..., *shape]: float32, or bool where that is the column's dtype."""
        values = self.view(rows, name)
        return values > 0 if self.columns[name].dtype == "bool" else values

    def observation(self, rows: Tensor) -> Tensor:
        """The observation vector of packed rows, a view [..., observation_dim]."""
        return rows.narrow(-1, 0, self.observation_dim)

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
        return {
            "columns": {n: [list(spec.shape), spec.dtype] for n, spec in self.columns.items()},
            "observation_keys": self.observation_keys,
            "row": list(self.packed),
            "features_fingerprint": self.features_fingerprint,
        }


@dataclass
class PackedBatch:
    """B starts and their n-step successors.

    Attributes:
        rows, next_rows: packed, [B, row_width].
        reward: n-step return of rewards, [B].
        discount: gamma^m * (1 - terminated), [B].
        tensors: `observation.images.*` [B, H, W, 3] uint8, `observation.features.*` [B, C, h, w]
            float16, and those of the successors under `next.*`.
        penalty: n-step sum of `discrete_penalty`, [B], if the schema has that column.
    """

    rows: Tensor
    next_rows: Tensor
    reward: Tensor
    discount: Tensor
    tensors: dict[str, Tensor]
    penalty: Tensor | None = None

    @staticmethod
    def join(parts: Sequence[PackedBatch]) -> PackedBatch:
        """The parts one after the other."""
        penalties = [p.penalty for p in parts if p.penalty is not None]
        return PackedBatch(
            torch.cat([p.rows for p in parts]),
            torch.cat([p.next_rows for p in parts]),
            torch.cat([p.reward for p in parts]),
            torch.cat([p.discount for p in parts]),
            {key: torch.cat([p.tensors[key] for p in parts]) for key in parts[0].tensors},
            torch.cat(penalties) if penalties else None,
        )

    def unpack(self, schema: ReplaySchema) -> dict[str, Tensor]:
        """Named tensors; vectors are views of the packed rows."""
        batch = {
            "observation": schema.observation(self.rows),
            "base_action": schema.view(self.rows, "base_action"),
            "action": schema.view(self.rows, "action"),
            "reward": self.reward,
            "discount": self.discount,
            "next_observation": schema.observation(self.next_rows),
            "next_base_action": schema.view(self.next_rows, "base_action"),
            "residual_scale": schema.view(self.rows, "residual_scale"),
            "mc_return": schema.view(self.rows, MC_RETURN),
            "intervened": schema.view(self.rows, "intervened") > 0,
            **self.tensors,
        }
        batch |= {name: schema.extra(self.rows, name) for name in schema.extra_keys}
        if self.penalty is not None:
            batch[DISCRETE_PENALTY] = self.penalty
        return batch
