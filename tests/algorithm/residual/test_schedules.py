"""beta_t over steps and successes."""

import json

import pytest

from pld_ray.algorithm.residual.schedules import WINDOW, ResidualScaleSchedule
from pld_ray.config.residual_sac import ResidualSACParams


def schedule(**kwargs):
    return ResidualScaleSchedule(ResidualSACParams(**kwargs))


def finish_window(beta, successes):
    for episode in range(WINDOW):
        beta.on_episode(episode < successes)


def test_constant():
    beta = schedule(residual_scale=0.7)
    assert [beta.value(step) for step in (-5, 0, 10**9)] == [0.7, 0.7, 0.7]


def test_linear_reaches_its_ends_and_halfway():
    beta = schedule(
        residual_scale=0.8,
        residual_scale_init=0.2,
        residual_scale_steps=1000,
        residual_scale_schedule="linear",
    )
    values = [beta.value(step) for step in (-100, 0, 500, 1000, 5000)]
    assert values == pytest.approx([0.2, 0.2, 0.5, 0.8, 0.8])


def test_success_grows_only_above_the_threshold_and_up_to_the_end():
    beta = schedule(
        residual_scale=0.25,
        residual_scale_init=0.0,
        residual_scale_schedule="success",
        residual_scale_increment=0.1,
        residual_scale_success=0.5,
    )
    finish_window(beta, successes=WINDOW // 2)  # exactly at the threshold: not above it
    assert beta.value(10**6) == 0.0
    for expected in (0.1, 0.2, 0.25, 0.25):
        finish_window(beta, successes=WINDOW // 2 + 1)
        assert beta.value(0) == pytest.approx(expected)
    finish_window(beta, successes=0)
    assert beta.value(0) == pytest.approx(0.25)


def test_state_survives_json_in_the_middle_of_a_window():
    kwargs = {"residual_scale_schedule": "success", "residual_scale_increment": 0.1}
    first, second = schedule(**kwargs), schedule(**kwargs)
    finish_window(first, successes=WINDOW)
    for _ in range(WINDOW - 1):
        first.on_episode(True)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.value(0) == first.value(0) == pytest.approx(0.1)
    for beta in (first, second):
        beta.on_episode(True)
        assert beta.value(0) == pytest.approx(0.2)


def test_a_start_above_the_end_is_the_end():
    beta = schedule(residual_scale=0.25, residual_scale_init=0.5, residual_scale_schedule="success")
    assert beta.value(0) == 0.25
