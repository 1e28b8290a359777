"""The pooled prefix feature comes with the chunk, from the same forward pass."""

import numpy as np
import pytest
import torch
from tiny_policies import FRONT, STATE, VISION_LANGUAGE, make_observations, make_tasks

from pld_ray.policies.lerobot_sampling import masked_mean

WIDTH = {"smolvla": 32, "pi0": 48, "pi05": 48}


def request(rows, seed=0):
    return make_observations(rows, seed), make_tasks(rows), list(range(rows)), list(range(rows))


def language_layers(policy):
    model = policy._policy.model
    if policy._policy.config.type == "smolvla":
        return model.vlm_with_expert.get_vlm_model().text_model
    return model.paligemma_with_expert.paligemma.model.language_model


def watched(module, request_of):
    """The outputs of every call of `module` while `request_of()` runs."""
    calls = []
    hook = module.register_forward_hook(lambda m, given, output: calls.append(output))
    try:
        answer = request_of()
    finally:
        hook.remove()
    return calls, answer


def test_masked_mean_by_hand():
    hidden = torch.tensor(
        [[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[5.0, 5.0], [7.0, 1.0], [9, 9]]]
    )
    valid = torch.tensor([[True, True, False], [False, True, False]])
    assert masked_mean(hidden, valid).tolist() == [[2.0, 4.0], [7.0, 1.0]]
    assert masked_mean(hidden.bfloat16(), valid).dtype == torch.float32


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_chunks_are_the_same_with_and_without_features(load_tiny, tiny_policy, kind):
    policy, plain = tiny_policy(kind), load_tiny(kind)
    asked = request(5)
    chunks, features, _ = policy.infer(*asked)
    assert policy.feature_dim == WIDTH[kind]
    assert features.shape == (5, WIDTH[kind])
    assert features.dtype == np.float32
    np.testing.assert_array_equal(chunks, plain.infer(*asked).chunks)
    np.testing.assert_array_equal(chunks, policy.infer(*asked).chunks)
    assert policy.fingerprint == plain.fingerprint


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_there_is_one_pass_over_the_prefix(tiny_policy, kind):
    """The language model's last norm runs once for the keys and values, and never again."""
    policy = tiny_policy(kind)
    calls, (_, features, _) = watched(
        language_layers(policy).norm, lambda: policy.infer(*request(8))
    )
    assert len(calls) == 1
    hidden = calls[0][0] if isinstance(calls[0], tuple) else calls[0]
    assert hidden.shape[0] == 8
    # every image token is valid, and the prompt is padded behind them
    embed = policy._policy.model.embed_prefix
    valid = []
    policy._policy.model.embed_prefix = lambda *a, **k: valid.append(embed(*a, **k)) or valid[0]
    try:
        policy.infer(*request(8))
    finally:
        del policy._policy.model.embed_prefix
    mask = valid[0][1].numpy()
    assert 0 < mask.mean() < 1
    for i in range(8):
        expected = hidden[i].float().numpy()[mask[i]].mean(axis=0)
        np.testing.assert_allclose(features[i], expected, atol=1e-5)


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_features_depend_on_what_is_seen_and_said_but_not_on_the_noise(tiny_policy, kind):
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(4)
    first = policy.infer(observations, tasks, env_ids, seeds).features
    other_noise = policy.infer(observations, tasks, env_ids, [9, 9, 9, 9]).features
    np.testing.assert_array_equal(other_noise, first)
    seen = {**observations, FRONT: observations[FRONT][::-1].copy()}
    assert np.abs(policy.infer(seen, tasks, env_ids, seeds).features - first).min() > 0
    said = policy.infer(observations, tasks[::-1], env_ids, seeds).features
    assert (np.abs(said - first).max(axis=1) > 1e-3).all()
    moved = {**observations, STATE: observations[STATE] + 0.5}
    change = np.abs(policy.infer(moved, tasks, env_ids, seeds).features - first).max()
    assert (change > 0) == (kind != "pi0")  # π0 has its state beside the actions


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_a_feature_does_not_depend_on_its_company(tiny_policy, kind):
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(10)
    together = policy.infer(observations, tasks, env_ids, seeds).features
    for i in range(10):
        row = {key: value[[i]] for key, value in observations.items()}
        alone = policy.infer(row, [tasks[i]], [0], [seeds[i]]).features
        np.testing.assert_array_equal(alone[0], together[i])


def test_features_that_do_not_exist_are_refused(load_tiny):
    with pytest.raises(ValueError, match=r"type 'act' has no vision-language prefix"):
        load_tiny("act", features="pooled")
    with pytest.raises(ValueError, match=r"features 'all': choose 'none' or 'pooled'"):
        load_tiny("act", features="all")
    assert load_tiny("pi05").infer(*request(1)).features is None
