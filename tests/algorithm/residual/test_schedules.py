"""beta_t over steps and successes."""

import json

import pytest

from pld_ray.algorithm.residual.schedules import WINDOW, ResidualScaleSchedule, Trial
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


def finish_trial(trial, successes, residual, episodes=WINDOW):
    for episode in range(episodes):
        trial.on_episode(episode < successes, residual)


def test_a_trial_is_passed_by_a_whole_window_as_good_as_the_base_policy_and_lost_again():
    trial = Trial(0.5)
    finish_trial(trial, 12, residual=True)
    assert not trial.passed  # nothing to compare with
    finish_trial(trial, 24, residual=False, episodes=40)  # 60 %, over all of its episodes
    assert trial.passed
    assert trial.residual_share == 1.0
    trial.on_episode(False, residual=True)  # the window's oldest was a success
    assert not trial.passed
    assert trial.residual_share == 0.5
    finish_trial(trial, WINDOW, residual=True)
    assert trial.passed


def test_less_than_a_window_passes_no_trial():
    trial = Trial(0.25)
    trial.on_episode(False, residual=False)
    finish_trial(trial, WINDOW, residual=True, episodes=WINDOW - 1)
    assert not trial.passed
    trial.on_episode(True, residual=True)
    assert trial.passed


def test_no_trial_is_passed_from_the_start():
    trial = Trial(1.0)
    finish_trial(trial, 0, residual=True)
    finish_trial(trial, WINDOW, residual=False)
    assert trial.passed
    assert trial.residual_share == 1.0


def test_a_trial_survives_json():
    first, second = Trial(0.5), Trial(0.5)
    finish_trial(first, 3, residual=False, episodes=7)
    finish_trial(first, 5, residual=True, episodes=11)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for trial in (first, second):
        finish_trial(trial, 4, residual=True, episodes=9)  # 9 of 20 against 3 of 7
    assert first.passed
    assert second.passed
    assert second.state_dict() == first.state_dict()
