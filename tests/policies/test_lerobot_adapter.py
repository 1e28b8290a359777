import json
import shutil

import numpy as np
import pytest
import torch
from lerobot.policies import make_pre_post_processors
from lerobot.policies.act.modeling_act import ACTPolicy
from tiny_policies import rows_of

from pld_ray.policies import BasePolicy, load_base_policy


def infer(policy, observations):
    rows = len(observations["observation.state"])
    return policy.infer(observations, ["task"] * rows, list(range(rows))).chunks


def test_answers_are_lerobots_own_chunks(act_directory, act_observations):
    policy = load_base_policy(act_directory)
    observations = act_observations(8, 0)
    act = ACTPolicy.from_pretrained(act_directory)
    pre, post = make_pre_post_processors(act.config, pretrained_path=str(act_directory))
    batch = {key: torch.from_numpy(value) for key, value in observations.items()}
    with torch.no_grad():
        expected = post(act.predict_action_chunk(pre(batch))).numpy()
    answer = infer(policy, observations)
    assert isinstance(policy, BasePolicy)
    assert answer.dtype == np.float32
    assert answer.shape == (8, 6, 7)
    np.testing.assert_array_equal(answer, expected)
    assert np.ptp(answer, axis=0).min() > 1e-3  # rows differ: equality above is no accident


@pytest.mark.parametrize("mates", [1, 2, 6, 7, 8, 13, 20])
def test_a_row_does_not_depend_on_its_company(act_directory, act_observations, mates):
    policy = load_base_policy(act_directory)
    observations = act_observations(mates + 1, mates)
    together = infer(policy, observations)
    alone = np.concatenate([infer(policy, rows_of(observations, [i])) for i in range(mates + 1)])
    np.testing.assert_array_equal(together, alone)
    order = np.random.default_rng(mates).permutation(mates + 1)
    np.testing.assert_array_equal(infer(policy, rows_of(observations, order)), alone[order])


def test_embedded_policy_is_independent_of_company_and_threads(act_observations):
    policy = load_base_policy()
    observations = act_observations(21, 5)
    one = np.concatenate([infer(policy, rows_of(observations, [i])) for i in range(21)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            np.testing.assert_array_equal(infer(policy, observations), one)
    finally:
        torch.set_num_threads(threads)


def test_there_is_no_state_between_calls(act_directory, act_observations):
    policy = load_base_policy(act_directory)
    observations = act_observations(3, 1)
    first = infer(policy, observations)
    infer(policy, act_observations(5, 2))
    np.testing.assert_array_equal(infer(policy, observations), first)


def test_policy_is_frozen(act_directory):
    network = load_base_policy(act_directory)._policy
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"],
)
def test_a_missing_file_is_named(act_directory, tmp_path, name):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        load_base_policy(copy)


def test_a_missing_processor_state_is_named(act_directory, tmp_path):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    state = next(copy.glob("policy_preprocessor*.safetensors"))
    state.unlink()
    with pytest.raises(FileNotFoundError, match=state.name):
        load_base_policy(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "has no 'type'"),
        ('{"type": "telepathy"}', "type 'telepathy'.*act, diffusion.*are supported"),
        ('{"type": "act", "chunk_size": "many"}', "config.json cannot be read"),
    ],
)
def test_a_bad_config_is_one_clear_error(act_directory, tmp_path, content, message):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    (copy / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_base_policy(copy)


def test_weights_of_another_shape_are_refused(act_directory, tmp_path):
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "dim_model": 32}))
    with pytest.raises(ValueError, match=r"model.safetensors does not fit config.json"):
        load_base_policy(copy)


def test_bad_observations_are_refused(act_directory, act_observations):
    policy = load_base_policy(act_directory)
    observations = act_observations(2, 0)
    with pytest.raises(ValueError, match=r"needs \['observation\.environment_state'"):
        policy.infer({"observation.state": np.zeros((2, 8))}, ["", ""], [0, 1])
    with pytest.raises(ValueError, match=r"has shape \(2, 8\).*for 3 tasks"):
        policy.infer(observations, [""] * 3, [0, 1, 2])


def test_fingerprint_covers_weights_config_and_processors(act_directory, tmp_path):
    original = load_base_policy(act_directory).fingerprint
    copy = shutil.copytree(act_directory, tmp_path / "copy")
    assert load_base_policy(copy).fingerprint == original
    for file in ("config.json", "model.safetensors", "policy_preprocessor.json"):
        changed = shutil.copytree(act_directory, tmp_path / file)
        content = bytearray((changed / file).read_bytes())
        if file.endswith(".json"):
            content += b"\n"
        else:
            content[-1] ^= 1
        (changed / file).write_bytes(bytes(content))
        assert load_base_policy(changed).fingerprint != original, file
