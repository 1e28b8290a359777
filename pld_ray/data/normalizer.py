"""States and actions by the statistics of `pld-ray norm-stats`."""

from __future__ import annotations

import math
import pathlib
from typing import Literal

import numpy as np

from pld_ray.columns import VECTOR_KEYS
from pld_ray.data.demonstrations import Wanted
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import EPSILON, NormStats, read_norm_stats

Mode = Literal["zscore", "quantile"]
STATE = VECTOR_KEYS[0]


class Normalizer:
    """`zscore`: (x - mean) / (std + 1e-6); `quantile`: 2 (x - q01) / (q99 - q01 + 1e-6) - 1.

    Both are (x - center) / scale. What a network keeps as buffers are these two.

    Args:
        stats: of a vector of D values.
        mode: which of the two.

    Attributes:
        center, scale: [D] float64, scale > 0.
    """

    def __init__(self, stats: NormStats, mode: Mode = "zscore") -> None:
        if mode == "quantile":
            self.scale = (stats.q99 - stats.q01 + EPSILON) / 2
            self.center = stats.q01 + self.scale
        else:
            self.center, self.scale = stats.mean, stats.std + EPSILON

    @classmethod
    def read(
        cls,
        path: str | pathlib.Path,
        vector: Literal["state", "actions"],
        width: int,
        mode: Mode = "zscore",
    ) -> Normalizer:
        """Of a `norm_stats.json`, or of a dataset's folder that holds one.

        Args:
            path: the file or the folder.
            vector: whose statistics.
            width: D, as the environment has it.
            mode: see the class.

        Raises:
            DataError: there is no such file, or its statistics are of another width or of no use.
        """
        found = read_norm_stats(path)
        if vector not in found:
            raise DataError(
                f"{path} has no statistics of {vector}, only of {', '.join(found) or 'nothing'}: "
                "make it with pld-ray norm-stats DATASET"
            )
        made = cls(found[vector], mode)
        if made.center.shape != (width,):
            raise DataError(
                f"{path}: {vector} has {made.center.size} dimensions, the environment's has "
                f"{width}: make it with pld-ray norm-stats from a dataset of this environment"
            )
        finite = np.isfinite([made.center, made.scale]).all()
        if not (finite and (made.scale > 0).all()):
            raise DataError(
                f"{path}: statistics of {vector} are not finite, or q99 is below q01: make it anew "
                "with pld-ray norm-stats DATASET"
            )
        return made

    @classmethod
    def of_state(cls, path: str, wanted: Wanted, mode: Mode = "zscore") -> Normalizer:
        """Of observation.state in an environment; arguments and errors as for `read`."""
        shape = wanted.observations.get(STATE)
        if shape is None:
            raise DataError(
                f"norm_stats={path} is of {STATE}, which {wanted.name} does not give; it gives "
                f"{', '.join(wanted.observations)}: leave norm_stats out"
            )
        return cls.read(path, "state", math.prod(shape), mode)
