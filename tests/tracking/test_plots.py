"""The learning curve: the picture holds what the rows say."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from pld_ray.tracking.plots import STYLE, plot_learning_curve, series


def rows():
    for step in range(1000, 21000, 500):
        row = {
            "env_steps": step,
            "train/success_rate": 0.5,
            "learner/q_mean": 0.6,
            "learner/q_out_of_bound": 0.01,
            "residual_scale": min(1.0, step / 10_000),
            "learner/alpha": 0.01,
        }
        if step % 4000 == 0:
            row |= {"eval/base_success": 0.5, "eval/residual_success": 0.9, "eval/n_episodes": 40}
        yield row


def picture(tmp_path, data, value_range=(0.0, 1.0), **options) -> np.ndarray:
    options["value_range"] = value_range
    path = plot_learning_curve(data, tmp_path / "learning_curve.png", **options)
    return np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"), dtype=int)


def test_success_is_drawn_at_its_height(tmp_path):
    """The evaluated curve's colour lies at 90 %, i.e. above where it lies for 10 %."""

    def height_of_curve(rate: float) -> float:
        data = [{"env_steps": s, "eval/residual_success": rate} for s in (0, 5000, 10000)]
        image = picture(tmp_path, data)[:400, :700]  # upper panel, left of the legend
        blue = np.abs(image - np.array([0x1D, 0x6F, 0xB8])).sum(axis=-1) < 12
        assert blue.sum() > 500
        return float(np.nonzero(blue)[0].mean())

    assert height_of_curve(0.9) < height_of_curve(0.5) < height_of_curve(0.1)


def test_size_and_no_global_state(tmp_path):
    pyplot_before = "matplotlib.pyplot" in sys.modules
    import matplotlib

    settings = {key: matplotlib.rcParams[key] for key in STYLE}
    assert picture(tmp_path, list(rows()), title="can, seed 0").shape == (800, 1200, 3)
    assert {key: matplotlib.rcParams[key] for key in STYLE} == settings
    assert ("matplotlib.pyplot" in sys.modules) == pyplot_before


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"env_steps": 0}],
        [{"env_steps": 5, "eval/residual_success": 1.0, "eval/n_episodes": 1}],
        [{"env_steps": 5, "learner/alpha": 0.0, "learner/q_mean": None, "residual_scale": 2.5}],
        [{"env_steps": 5, "learner/alpha": 0.1, "learner/q_mean": float("nan")}],
        [{"env_steps": 5, "eval/base_success": 0.0, "eval/n_episodes": None}],
    ],
)
def test_sparse_rows_are_drawn(tmp_path, data, recwarn):
    assert picture(tmp_path, data).std() > 0
    assert [str(w.message) for w in recwarn.list] == []


def test_q_is_drawn_with_the_bound_that_the_run_gave_it(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(Axes, "set_title", lambda axes, text, **options: titles.append(text))
    picture(tmp_path, list(rows()), value_range=[-500.0, 5.0])
    assert "Q and its bound [-500, 5]" in titles


def test_series_takes_what_is_there():
    data = [{"env_steps": 1, "a": 2}, {"env_steps": 2}, {"env_steps": 3, "a": float("inf")}]
    assert series(data, "a") == ([1], [2.0])


def test_the_base_policy_is_drawn_on_the_states_of_the_curve_where_they_are_known(tmp_path):
    """A dashed line at .2, not at the .9 of the held states."""

    def height_of_base(**known: float) -> float:
        data = [{"env_steps": s, "eval/residual_success": 0.5} for s in (0, 5000, 10000)]
        image = picture(tmp_path, [{"env_steps": 0, **known}, *data])[:400, :700]
        grey = np.array([0x6B, 0x72, 0x80])
        found = np.abs(image[:, 100:] - grey).sum(axis=-1) < 12
        assert found.sum() > 200
        return float(np.nonzero(found)[0].mean())

    held, same = {"eval/base_success": 0.9}, {"eval/validation_base_success": 0.2}
    assert height_of_base(**held) < height_of_base(**same)
    assert height_of_base(**held, **same) == height_of_base(**same)


def test_the_steps_of_a_person_are_an_area(tmp_path):
    """Half of the steps fill the lower half of the panel with their colour."""

    def filled(share: float) -> int:
        data = [{"env_steps": s, "train/intervention_share": share} for s in (0, 5000, 10000)]
        image = picture(tmp_path, data)[:400, :700]
        red, green, blue = (image[..., channel] for channel in range(3))
        return int(((red > green + 10) & (green > blue + 5)).sum())

    assert filled(0.8) > 1.5 * filled(0.4) > 0
