"""The shipped weights are the ones that PROVENANCE.json describes, and act as it says."""

import json

import numpy as np
import pytest

import envs
from pld_ray.config import TrainConfig
from pld_ray.config.policy import EMBEDDED_POLICIES
from pld_ray.options import check_paths
from pld_ray.policies import EMBEDDED_ACT, ChunkCache, load_base_policy, open_checkpoint

DEFAULT_TASK = "pick_up_the_can_and_place_it_in_the_bin"
FIVE_DEMONSTRATIONS = "pld_tabletop_act_five_demonstrations"


def provenance_of(name):
    return json.loads((EMBEDDED_ACT.parent / name / "PROVENANCE.json").read_text())


@pytest.fixture(scope="module")
def provenance():
    return provenance_of(EMBEDDED_ACT.name)


@pytest.fixture(scope="module")
def policy():
    return load_base_policy()


@pytest.mark.parametrize("name", EMBEDDED_POLICIES)
def test_weights_are_the_described_ones(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a name, from wherever the command is called
    config = TrainConfig()
    config.policy.path = name
    check_paths(config)
    checkpoint = open_checkpoint(config.policy.path)
    assert checkpoint.fingerprint() == provenance_of(name)["fingerprint"]
    assert sum(file.stat().st_size for file in checkpoint.weights) < 2_000_000
    assert (load_base_policy(name).fingerprint == load_base_policy().fingerprint) == (
        name == EMBEDDED_ACT.name
    )


def test_the_flow_of_the_pixel_demo_is_the_described_one_and_acts(pytestconfig):
    folder = pytestconfig.rootpath / "experiments/base_policy/pld_tabletop_flow"
    made = json.loads((folder / "PROVENANCE.json").read_text())
    assert 0.4 <= made["evaluation"][DEFAULT_TASK]["base"]["success"] <= 0.6
    checkpoint = open_checkpoint(folder)
    assert checkpoint.fingerprint() == made["fingerprint"]
    assert sum(file.stat().st_size for file in checkpoint.weights) < 5_000_000
    policy = load_base_policy(folder)
    assert policy.input_features == {
        "observation.state": (8,),
        "observation.images.image": (3, 64, 64),
        "observation.images.image2": (3, 64, 64),
    }
    rng = np.random.default_rng(0)
    state = rng.uniform(-1, 1, (2, 8)).astype(np.float32)
    images = {
        f"observation.images.{name}": rng.integers(0, 256, (2, 64, 64, 3), np.uint8)
        for name in ("image", "image2")
    }
    action = ChunkCache(policy, num_envs=2).act({"observation.state": state, **images}, [""] * 2)
    assert action.shape == (2, 7)
    assert np.isfinite(action).all()
    assert (action[0] != action[1]).any()


def test_the_second_one_fails_for_want_of_data():
    made = provenance_of(FIVE_DEMONSTRATIONS)
    assert list(made["demonstrations"]) == [DEFAULT_TASK]
    shown = made["demonstrations"][DEFAULT_TASK]
    assert shown["episodes"] == shown["successes"] == 5  # good ones
    evaluation = made["evaluation"][DEFAULT_TASK]
    assert 0.4 <= evaluation["base"]["success"] <= 0.6
    assert evaluation["base_and_oracle_residual"]["success"] >= 0.95


def test_recorded_success_leaves_room_that_a_residual_can_fill(provenance):
    evaluation = provenance["evaluation"]
    assert set(evaluation) == set(envs.suite_tasks("pld_tabletop"))
    assert 0.35 <= evaluation[DEFAULT_TASK]["base"]["success"] <= 0.65
    assert evaluation[DEFAULT_TASK]["base_and_oracle_residual"]["success"] >= 0.95


def test_it_acts_in_the_environment(policy):
    """12 of the 100 held states: neither hopeless nor perfect, and it always moves."""
    env = envs.LiberoEnv("pld_tabletop", DEFAULT_TASK)
    assert policy.input_features == {
        "observation.state": (8,),
        "observation.environment_state": (24,),
    }
    cache, successes = ChunkCache(policy, num_envs=1), []
    for state in range(12):
        observation, _ = env.reset(seed=0, options={"init_state_id": state})
        cache.reset([0])
        done = truncated = False
        hand = []
        while not (done or truncated):
            batch = {key: value[None] for key, value in observation.items()}
            action = cache.act(batch, [env.task_description])[0]
            observation, _, done, truncated, _ = env.step(np.clip(action, -1, 1))
            hand.append(observation["observation.state"][:3])
        successes.append(done)
        assert np.ptp(hand, axis=0)[2] > 0.1  # it went down to the table
    env.close()
    assert 2 <= sum(successes) <= 10
