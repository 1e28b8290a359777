"""States and actions by stored statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import NormStats, write_norm_stats
from pld_ray.data.normalizer import Normalizer

STATS = NormStats(
    mean=np.array([1.0, -2.0]),
    std=np.array([2.0, 0.0]),
    q01=np.array([-1.0, 3.0]),
    q99=np.array([3.0, 3.0]),
)
VALUES = st.floats(-1e3, 1e3)


@st.composite
def stats_and_values(draw):
    width = draw(st.integers(1, 4))
    vector = hnp.arrays(np.float64, width, elements=VALUES)
    spread = hnp.arrays(np.float64, width, elements=st.floats(0, 1e3))
    q01 = draw(vector)
    stats = NormStats(draw(vector), draw(spread), q01, q01 + draw(spread))
    shape = (*draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)), width)
    return stats, draw(hnp.arrays(np.float64, shape, elements=VALUES))


@given(stats_and_values(), st.sampled_from(["zscore", "quantile"]))
def test_there_and_back(drawn, mode):
    stats, x = drawn
    made = Normalizer(stats, mode)
    normalized = made.normalize(x)
    assert np.allclose(made.unnormalize(normalized), x, rtol=1e-9, atol=1e-9)
    tensor = torch.from_numpy(x)
    assert np.array_equal(made.normalize(tensor).numpy(), normalized)
    assert np.allclose(made.unnormalize(made.normalize(tensor)).numpy(), x, rtol=1e-9, atol=1e-9)
    single = made.normalize(x.astype(np.float32))
    assert single.dtype == np.float32
    assert np.array_equal(made.normalize(tensor.float()).numpy(), single)


def test_by_hand():
    x = np.array([[5.0, -2.0], [-1.0, 3.0]])
    assert np.allclose(Normalizer(STATS).normalize(x)[0], [4 / 2.000001, 0.0])
    quantile = Normalizer(STATS, "quantile").normalize(x)
    assert np.allclose(quantile[:, 0], [12 / 4.000001 - 1, -1.0])
    assert quantile[1, 1] == pytest.approx(-1.0)  # q01 = q99
    with pytest.raises(ValueError, match=r"has shape \(2, 1\), need \[\.\.\., 2\]"):
        Normalizer(STATS).normalize(x[:, :1])


def test_what_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"is missing: make it with pld-ray norm-stats"):
        Normalizer.read(tmp_path, "state", 2)
    path = tmp_path / "norm_stats.json"
    write_norm_stats(path, {"state": STATS})
    assert np.array_equal(Normalizer.read(tmp_path, "state", 2).center, STATS.mean)
    with pytest.raises(DataError, match=r"has no statistics of actions, only of state: make it"):
        Normalizer.read(tmp_path, "actions", 2)
    with pytest.raises(DataError, match=r"state has 2 dimensions, the environment's has 9: make"):
        Normalizer.read(path, "state", 9)
    saved = json.loads(path.read_text())
    saved["norm_stats"]["state"]["std"][1] = float("nan")
    path.write_text(json.dumps(saved))
    with pytest.raises(DataError, match=r"statistics of state are not finite"):
        Normalizer.read(path, "state", 2)
