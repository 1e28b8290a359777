import itertools

import numpy as np
import pytest
import scipy.stats

from pld_ray.report.importance import encode, estimate, explained, to_levels


def rows(result, seeds=3):
    """A grid of 4 x 3 points; `result(scale, utd, noise)` gives each run's."""
    rng = np.random.default_rng(0)
    return [
        ({"scale": str(scale), "utd": str(utd)}, f"{scale} {utd}", result(scale, utd, rng.normal()))
        for scale, utd in itertools.product((0.1, 0.25, 0.5, 1.0), (1, 2, 4))
        for _ in range(seeds)
    ]


def test_the_share_is_kruskal_and_wallis_h():
    rng = np.random.default_rng(0)
    levels, results = rng.integers(3, size=40), rng.integers(10, size=40)
    h = scipy.stats.kruskal(*(results[levels == level] for level in range(3))).statistic
    share = explained(levels[None], scipy.stats.rankdata(results))[0]
    assert share == pytest.approx(h / (len(results) - 1))


def test_a_parameter_that_matters_stands_out_and_one_that_does_not_stays_below_chance():
    effects = estimate(rows(lambda scale, utd, noise: scale + 0.01 * noise)).effects
    assert next(iter(effects)) == "scale"
    assert effects["scale"].stands_out
    assert effects["scale"].share > 0.9
    assert effects["scale"].correlation > 0.9
    assert not effects["utd"].stands_out


def test_noise_stands_out_as_often_as_chance_allows():
    rng = np.random.default_rng(3)
    values = [{"x": str(i % 4)} for i in range(24)]
    hits = sum(
        estimate([(v, str(i), rng.random()) for i, v in enumerate(values)], seed=seed)
        .effects["x"]
        .stands_out
        for seed in range(100)
    )
    assert hits <= 12  # 5 expected; 13 or more in one of 1,500 studies


def test_seeds_of_a_point_are_no_independent_evidence():
    one_seed = estimate(rows(lambda scale, utd, noise: noise, seeds=1))
    copied = [row for row in rows(lambda scale, utd, noise: noise, seeds=1) for _ in range(5)]
    copies = estimate(copied)
    for name, effect in one_seed.effects.items():
        assert copies.effects[name].share == pytest.approx(effect.share, abs=1e-9)
        assert copies.effects[name].stands_out == effect.stands_out


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ([], "no run has a result yet"),
        ([({}, "", 0.5)] * 9, "no parameter was varied"),
        ([({"a": str(i)}, str(i), i / 10) for i in range(5)], "not enough trials, 5 settings"),
        ([({"a": str(i)}, str(i), 0.5) for i in range(9)], "every run had the same result"),
    ],
)
def test_what_cannot_be_said_is_said(given, note):
    importance = estimate(given)
    assert importance.effects == {}
    assert note in importance.note


def test_values_are_numbers_flags_or_names():
    assert encode(["0.5", "1e-3"])[0].tolist() == [0.5, 0.001]
    assert encode(["True", "false"]) == (pytest.approx([1.0, 0.0]), True)
    codes, ordered = encode(["success", "linear", "success"])
    assert (codes.tolist(), ordered) == ([1.0, 0.0, 1.0], False)


def test_many_values_are_cut_into_quarters_of_the_runs():
    levels = to_levels(np.linspace(0, 1, 40), ordered=True)
    assert np.bincount(levels).tolist() == [10, 10, 10, 10]


def test_six_settings_are_enough_and_what_chance_reaches_does_not_stand_out():
    """Two values over six settings part the results wholly in one of ten shuffles."""
    importance = estimate([({"flag": str(i > 2)}, str(i), i / 10) for i in range(6)])
    effect = importance.effects["flag"]
    assert effect.share == effect.chance
    assert not effect.stands_out


@pytest.mark.parametrize("values", [("linear", "constant"), ("1", "1.0")])
def test_values_without_an_order_have_no_correlation(values):
    importance = estimate([({"a": values[i % 2]}, str(i), i / 10) for i in range(6)])
    assert importance.effects["a"].correlation is None


def test_few_numbers_and_any_names_are_levels_of_their_own():
    assert to_levels(np.arange(5.0), ordered=True).tolist() == [0, 1, 2, 3, 4]
    assert to_levels(np.arange(9.0), ordered=False).tolist() == list(range(9))
