"""Real-time chunking: vision-language policies continue the chunk that is being played."""

import numpy as np
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import get_policy_class
from lerobot.policies.rtc import RTCConfig
from tiny_policies import (
    VISION_LANGUAGE,
    make_config,
    make_observations,
    make_tasks,
    save_policy,
    select,
    small_networks,
)

from pld_ray.policies import BasePolicy, ChunkCache
from pld_ray.policies.lerobot_rtc import enable_rtc, grouped
from pld_ray.policies.lerobot_sampling import FlowSampler

LENGTHS = [0, 3, 2, 2, 0, 1, 3, 6, 2, 2, 3]  # 0: no leftover; nine of different lengths do not fit


@pytest.fixture(scope="module")
def rtc_policy(load_tiny):
    """Type -> policy with real-time chunking and features, loaded once."""
    loaded = {}

    def policy(kind):
        if kind not in loaded:
            loaded[kind] = load_tiny(kind, features="pooled", rtc=True)
        return loaded[kind]

    return policy


def request(rows, seed):
    seeds = [100 * seed + i for i in range(rows)]
    return make_observations(rows, seed), make_tasks(rows), list(range(rows)), seeds


def tails(prediction, lengths):
    """The last actions of each row's chunk, so many of them, and NaN behind them."""
    leftovers = np.full_like(prediction.normalized, np.nan)
    for leftover, chunk, length in zip(leftovers, prediction.normalized, lengths, strict=True):
        leftover[:length] = chunk[len(chunk) - length :]
    return leftovers


def assert_equal(one, other):
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_a_row_depends_on_its_own_leftover_alone(rtc_policy, tiny_policy, kind):
    policy, asked = rtc_policy(kind), request(11, 1)
    assert isinstance(policy, BasePolicy)
    plain = tiny_policy(kind).infer(*asked)
    unguided = policy.infer(*asked)
    assert_equal(unguided[:2], plain[:2])
    np.testing.assert_array_equal(policy.infer(*asked).chunks, plain[0])
    assert unguided.normalized.dtype == np.float32
    assert unguided.normalized.shape == unguided.chunks.shape == (11, 6, 7)

    leftovers = tails(policy.infer(*request(11, 2)), LENGTHS)
    together = policy.infer(*asked, leftovers)
    for i in range(11):
        alone = policy.infer(*select(asked, [i]), leftovers[[i]])
        assert_equal(alone, together.rows(slice(i, i + 1)))
        change = np.abs(together.chunks[i] - unguided.chunks[i]).max()
        assert (change == 0.0) if LENGTHS[i] == 0 else (change > 0.1)
    np.testing.assert_array_equal(together.features, unguided.features)
    order = np.random.default_rng(3).permutation(11).tolist()
    shuffled = policy.infer(*select(asked, order), leftovers[order])
    assert_equal(shuffled, [part[order] for part in together])


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
def test_a_chunk_begins_as_the_last_one_went_on(rtc_policy, kind):
    """The action that is certain to be played is met; without guidance, noise decides."""
    policy, asked = rtc_policy(kind), request(8, 1)
    last = policy.infer(*request(8, 2))
    for length in (1, 3):
        leftovers = tails(last, [length] * 8)
        frozen = leftovers[:, 0]
        guided, unguided = (
            np.abs(policy.infer(*asked, given).normalized[:, 0] - frozen).mean(1)
            for given in (leftovers, None)
        )
        assert (guided < 0.25 * unguided).all()


@pytest.mark.parametrize("kind", VISION_LANGUAGE)
@pytest.mark.parametrize("length", [1, 3, 6])
def test_guided_chunks_are_lerobots_bit_for_bit(
    rtc_policy, tiny_directory, lerobots_rtc, kind, length
):
    policy, asked = rtc_policy(kind), request(8, 3)
    leftovers = tails(policy.infer(*request(8, 4)), [length] * 8)
    expected = lerobots_rtc(tiny_directory(kind), policy, asked, leftovers[:, :length])
    np.testing.assert_array_equal(policy.infer(*asked, leftovers).normalized, expected)


@pytest.fixture(scope="module")
def lerobots_rtc():
    """Guided chunks [8, T, A] of LeRobot's own class, set up as LeRobot's rollout does it."""
    networks = {}

    def answer(directory, policy, asked, leftovers):
        observations, tasks, _, seeds = asked
        if directory not in networks:
            config = PreTrainedConfig.from_pretrained(directory)
            if config.type == "smolvla":
                config.vlm_model_name = str(directory.parent / "tokenizer")
            with small_networks():
                network = get_policy_class(config.type).from_pretrained(directory, config=config)
            network.config.rtc_config = network.config.rtc_config or RTCConfig()
            network.init_rtc_processor()
            networks[directory] = network.eval()
        batch = {key: policy._padded(value) for key, value in observations.items()}
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return networks[directory].predict_action_chunk(
            policy._preprocess({**batch, "task": tasks}),
            noise=torch.stack([torch.randn(6, 9, generator=g) for g in generators]),
            inference_delay=1,
            prev_chunk_left_over=torch.from_numpy(leftovers),
        )

    return answer


def test_a_checkpoints_own_settings_count(load_tiny, lerobots_rtc, tmp_path, monkeypatch):
    """Beyond its horizon nothing has weight: leftovers that differ there share a network call."""
    own = RTCConfig(execution_horizon=2, max_guidance_weight=3.0)
    directory = save_policy("pi0", tmp_path, rtc_config=own)
    policy = load_tiny(directory, rtc=True, tokenizer_path=tmp_path / "tokenizer")
    asked = request(8, 5)
    last = policy.infer(*request(8, 6)).normalized
    sample, shapes = FlowSampler.__call__, []

    def watched(sampler, batch, generators, leftover):
        shapes.append(tuple(leftover.shape))
        return sample(sampler, batch, generators, leftover)

    monkeypatch.setattr(FlowSampler, "__call__", watched)
    leftovers = last.copy()
    for i in range(8):
        leftovers[i, 2 + i % 5 :] = np.nan
    answer = policy.infer(*asked, leftovers)
    assert shapes == [(8, 2, 7)]
    expected = lerobots_rtc(directory, policy, asked, last)
    np.testing.assert_array_equal(answer.normalized, expected)


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_policies_that_cannot_are_refused(load_tiny, kind):
    with pytest.raises(
        ValueError,
        match=rf"policy.rtc=true: a policy of type '{kind}' cannot.*smolvla, pi0 and pi05 can. "
        "Set policy.rtc=false",
    ):
        load_tiny(kind, rtc=True)


@pytest.mark.parametrize(
    ("kind", "setting"), [("pi05", "use_relative_actions"), ("smolvla", "adapt_to_pi_aloha")]
)
def test_actions_that_change_their_meaning_are_refused(kind, setting):
    config = make_config(kind, "", **{setting: True})
    with pytest.raises(
        ValueError, match=rf"this {kind} checkpoint has {setting}.*policy.rtc=false"
    ):
        enable_rtc(config)
    config = make_config(kind, "", rtc_config=RTCConfig(execution_horizon=0))
    with pytest.raises(ValueError, match=r"execution_horizon 0: set it to 1 or more"):
        enable_rtc(config)


def test_leftovers_that_do_not_fit_are_refused(rtc_policy, tiny_policy):
    policy, asked = rtc_policy("pi0"), request(2, 7)
    for bad in ((1, 6, 7), (2, 6, 9), (2, 0, 7), (2, 7, 7), (2, 7)):
        with pytest.raises(ValueError, match=r"leftovers of shape .*; expected 2 rows of 6 "):
            policy.infer(*asked, np.zeros(bad))
    with pytest.raises(ValueError, match=r"takes no leftovers: load it with rtc=True"):
        tiny_policy("pi0").infer(*asked, np.zeros((2, 6, 7)))
    with pytest.raises(ValueError, match=r"set policy.prefetch=true, or policy.rtc=false"):
        ChunkCache(policy, 2)


def test_an_answer_of_such_a_policy_is_another_one(rtc_policy, tiny_policy):
    assert rtc_policy("pi05").fingerprint != tiny_policy("pi05").fingerprint
    assert rtc_policy("pi05").rtc
    assert not tiny_policy("pi05").rtc


def test_rows_of_one_length_up_to_the_horizon_share_a_call():
    leftovers = np.full((6, 7, 2), np.nan, dtype=np.float32)
    for row, length in enumerate((4, 0, 7, 2, 3, 0)):
        leftovers[row, :length] = row
    groups = list(grouped(leftovers, 6, batch_rows=2, execution_horizon=3))
    assert [rows.tolist() for rows, _ in groups] == [[1, 5], [3], [0, 2], [4]]
    assert [None if one is None else one[:, :, 0].tolist() for _, one in groups] == [
        None,
        [[3, 3]],
        [[0, 0, 0], [2, 2, 2]],
        [[4, 4, 4]],
    ]
    plain = list(grouped(None, 5, batch_rows=2, execution_horizon=3))
    assert [(rows.tolist(), one) for rows, one in plain] == [
        ([0, 1], None),
        ([2, 3], None),
        ([4], None),
    ]
