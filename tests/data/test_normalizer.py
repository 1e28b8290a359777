"""States and actions by stored statistics."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from pld_ray.data.demonstrations import Wanted
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import NormStats, write_norm_stats
from pld_ray.data.normalizer import Normalizer

STATS = NormStats(
    mean=np.array([1.0, -2.0]),
    std=np.array([2.0, 0.0]),
    q01=np.array([-1.0, 3.0]),
    q99=np.array([3.0, 3.0]),
)


def test_by_hand():
    x = np.array([[5.0, -2.0], [-1.0, 3.0]])
    zscore, made = Normalizer(STATS), Normalizer(STATS, "quantile")
    assert np.allclose((x[0] - zscore.center) / zscore.scale, [4 / 2.000001, 0.0])
    quantile = (x - made.center) / made.scale
    assert np.allclose(quantile[:, 0], [12 / 4.000001 - 1, -1.0])
    assert quantile[1, 1] == pytest.approx(-1.0)  # q01 = q99


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


def test_what_is_read_has_the_form_that_is_asked_for(tmp_path):
    write_norm_stats(tmp_path / "norm_stats.json", {"state": STATS})
    expected = Normalizer(STATS, "quantile")
    wanted = Wanted({"observation.state": (2,)}, np.zeros(1), np.ones(1), 10, "point")
    for made in (
        Normalizer.read(tmp_path, "state", 2, "quantile"),
        Normalizer.of_state(str(tmp_path), wanted, "quantile"),
    ):
        assert np.array_equal(made.center, expected.center)
        assert np.array_equal(made.scale, expected.scale)


def test_a_state_of_several_axes_has_as_many_values_as_they_hold(tmp_path):
    write_norm_stats(tmp_path / "norm_stats.json", {"state": STATS})
    wanted = Wanted({"observation.state": (1, 2)}, np.zeros(1), np.ones(1), 10, "point")
    assert np.array_equal(Normalizer.of_state(str(tmp_path), wanted).center, STATS.mean)


def test_quantiles_in_the_wrong_order_are_refused(tmp_path):
    swapped = NormStats(STATS.mean, STATS.std, q01=STATS.q99, q99=STATS.q01)
    write_norm_stats(tmp_path / "norm_stats.json", {"state": swapped})
    with pytest.raises(DataError, match="q99 is below q01"):
        Normalizer.read(tmp_path, "state", 2, "quantile")


@pytest.mark.parametrize(
    "written",
    [
        *("{", "[]", "3", "{}", '{"norm_stats": []}', '{"norm_stats": {"state": 1}}'),
        '{"norm_stats": {"state": {"mean": ["a"], "std": [1], "q01": [0], "q99": [1]}}}',
    ],
)
def test_a_file_of_another_kind_is_one_sentence(tmp_path, written):
    (tmp_path / "norm_stats.json").write_text(written)
    with pytest.raises(DataError, match=r"is no norm_stats\.json .*: make it anew"):
        Normalizer.read(tmp_path, "state", 1)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_what_is_not_finite_is_refused(tmp_path, name):
    for value in (np.nan, np.inf):
        broken = dataclasses.replace(STATS, **{name: np.array([value, 1.0])})
        write_norm_stats(tmp_path / "norm_stats.json", {"state": broken})
        with pytest.raises(DataError, match="statistics of state are not finite"):
            Normalizer.read(tmp_path, "state", 2)
