"""The demonstrations and training windows of experiments/base_policy."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from envs import LiberoEnv
from envs.demonstrator import Demonstrator
from envs.experts import Perception

FOLDER = Path(__file__).parents[2] / "experiments" / "base_policy"


@pytest.fixture(scope="module")
def train_module():
    sys.path.insert(0, str(FOLDER))  # its scripts import each other by file name
    try:
        spec = importlib.util.spec_from_file_location("base_policy_train", FOLDER / "train.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))


def test_chunks_never_cross_an_episodes_end(train_module):
    episodes = np.array([0, 0, 0, 3, 3, 7])
    rows, is_pad = train_module.chunk_windows(episodes, 3)
    assert rows.tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [3, 4, 4], [4, 4, 4], [5, 5, 5]]
    pads = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1], [0, 1, 1]], dtype=bool)
    np.testing.assert_array_equal(is_pad.numpy(), pads)


def test_learning_rate_warms_up_and_ends_at_zero(train_module):
    training = train_module.Training(updates=1000, learning_rate=1.0, warmup=100)
    rates = [train_module.learning_rate(i, training) for i in range(1000)]
    assert rates[0] < 0.02
    assert max(rates) > 0.95
    assert rates[-1] < 1e-4


def test_only_what_starts_near_the_middle_is_demonstrated(train_module):
    shown = sys.modules["demonstrations"]  # which train.py imports
    env = LiberoEnv("pld_tabletop")
    demonstrator, rng = Demonstrator(env, Perception()), np.random.default_rng(0)
    away = {}
    for within in (float("inf"), 0.04):
        away[within] = []
        for seed in range(5):
            next(shown.demonstrate(env, demonstrator, shown.Disturbance(), rng, seed, within))
            x, y = env.expert_view()["target_pos"][:2]
            away[within].append(np.hypot(x + 0.04, y + 0.12))  # of the region in the .bddl
    env.close()
    assert max(away[0.04]) <= 0.04 + 1e-3  # it settles
    assert max(away[float("inf")]) > 0.05
