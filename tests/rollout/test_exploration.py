import numpy as np
import pytest

from pld_ray.rollout.exploration import ExplorationNoise


def series(kind, steps=20_000, **kwargs):
    noise = ExplorationNoise(kind, 2, 3, np.random.default_rng(0), **kwargs)
    return np.stack([noise.sample() for _ in range(steps)])


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_ar1_has_unit_variance_and_the_autocorrelation_of_its_coefficient(rho):
    x = series("ar1", rho=rho)
    assert np.std(x) == pytest.approx(1, abs=0.05)
    for lag in (1, 3):
        corr = np.mean(x[lag:] * x[:-lag])
        assert corr == pytest.approx(rho**lag, abs=0.05)


def test_white_noise_is_uncorrelated():
    x = series("white")
    assert np.std(x) == pytest.approx(1, abs=0.02)
    assert np.mean(x[1:] * x[:-1]) == pytest.approx(0, abs=0.02)


def test_held_noise_changes_every_hold_steps_only():
    x = series("held", steps=24, hold=8)
    blocks = x.reshape(3, 8, 2, 3)
    assert (blocks == blocks[:, :1]).all()
    assert (blocks[0, 0] != blocks[1, 0]).all()


def test_reset_starts_one_stream_anew_and_leaves_the_others():
    noise = ExplorationNoise("held", 2, 3, np.random.default_rng(0), hold=100)
    before = noise.sample()
    noise.reset(1)
    after = noise.sample()
    assert (before[0] == after[0]).all()
    assert (before[1] != after[1]).all()


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="must be white, ar1 or held"):
        ExplorationNoise("pink", 1, 1, np.random.default_rng(0))


def test_a_draw_is_held_as_long_after_a_reset_as_before():
    noise = ExplorationNoise("held", 1, 3, np.random.default_rng(0), hold=4)
    for _ in range(3):
        noise.sample()
    noise.reset(0)
    drawn = np.stack([noise.sample() for _ in range(5)])
    assert (drawn[:4] == drawn[0]).all()
    assert (drawn[4] != drawn[0]).all()
