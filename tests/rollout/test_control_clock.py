"""A control rate: when steps begin, which are late, and what is left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import CountingEnv, CountingPolicy

from pld_ray.config import InterventionConfig
from pld_ray.rollout.control_clock import TOLERANCE, ControlClock
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv


class Time:
    """A clock that stands still unless somebody sleeps or works."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 9))
        self.now += seconds


def test_a_step_that_takes_too_long_is_counted_and_not_made_up_for():
    time = Time()
    clock = ControlClock(10.0, time, time.sleep)
    for work in (0.04, 0.0, 0.5, 0.02, 0.105, 0.0):
        time.now += work
        clock.tick()
    # the 0.5 s begin the grid anew; 0.105 s are within the tolerance and keep it
    assert time.slept == pytest.approx([0.06, 0.1, 0.08, 0.095])
    assert clock.take() == (6, 1)
    assert clock.take() == (0, 0)


@given(st.floats(1, 200), st.lists(st.floats(0, 0.2), min_size=1, max_size=50))
def test_steps_begin_on_a_grid_that_only_a_late_one_moves(hz, work):
    time = Time()
    clock, began = ControlClock(hz, time, time.sleep), [0.0]
    for seconds in work:
        time.now += seconds
        clock.tick()
        began.append(time.now)
    period = 1.0 / hz
    due, late = period, 0
    for before, after, seconds in zip(began, began[1:], work, strict=False):
        assert after == pytest.approx(max(before + seconds, due))
        if after - due > TOLERANCE * period:
            due, late = after, late + 1
        due += period
    assert clock.take() == (len(work), late)


def test_a_reset_takes_as_long_as_it_takes():
    time = Time()

    class SlowReset(CountingEnv):
        def reset(self, **options):
            time.now += 5.0
            return super().reset(**options)

    vector = BaseActionVectorEnv([SlowReset(3)], CountingPolicy())
    env = InfosPerEnv(vector, ControlClock(20.0, time, time.sleep))
    env.reset(seed=0)
    action = np.zeros((1, *vector.single_action_space.shape), np.float32)
    for _ in range(8):  # two episodes, each with a reset after it
        env.step(action)
    assert env.clock.take() == (6, 0)
    assert time.slept == pytest.approx([0.05] * 6)
    assert time.now == pytest.approx(3 * 5.0 + 6 * 0.05)


def test_who_says_the_rate():
    assert InterventionConfig(device="scripted").rate(None) is None
    assert InterventionConfig(device="keyboard", hz=15.0).rate(None) == 15.0
    assert InterventionConfig(device="keyboard", hz=15.0).rate(10.0) == 10.0
