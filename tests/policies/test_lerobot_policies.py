"""Every type of policy answers as LeRobot itself does, row by row and seed by seed."""

import numpy as np
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import get_policy_class, make_pre_post_processors
from tiny_policies import (
    FRONT,
    STATE,
    STOCHASTIC,
    TYPES,
    VISION_LANGUAGE,
    WRIST,
    make_observations,
    make_tasks,
    rows_of,
    save_policy,
    select,
    small_networks,
)

from pld_ray.policies import BasePolicy, ChunkCache


def request(policy, rows, seed):
    observations = make_observations(rows, seed, policy.n_obs_steps)
    return observations, make_tasks(rows), list(range(rows)), [100 + i for i in range(rows)]


@pytest.fixture(scope="module")
def lerobots_own(tiny_directory):
    """Type -> the policy and its processors, loaded by LeRobot's own functions."""
    loaded = {}

    def load(kind):
        if kind in loaded:
            return loaded[kind]
        directory = tiny_directory(kind)
        tokenizer = str(directory.parent / "tokenizer")
        config = PreTrainedConfig.from_pretrained(directory)
        overrides = {}
        if kind in VISION_LANGUAGE:
            overrides["tokenizer_processor"] = {"tokenizer_name": tokenizer}
        if kind == "smolvla":
            config.vlm_model_name = tokenizer
        with small_networks():
            policy = get_policy_class(kind).from_pretrained(directory, config=config).eval()
        loaded[kind] = (
            policy,
            *make_pre_post_processors(config, str(directory), preprocessor_overrides=overrides),
        )
        return loaded[kind]

    return load


def answer_of_lerobot(policy, preprocess, postprocess, observations, tasks, seed):
    """One row by `predict_action_chunk`, its noise drawn by torch's global generator."""
    batch = {"task": tasks}
    for key, value in observations.items():
        tensor = torch.from_numpy(value)
        batch[key] = tensor.movedim(-1, -3).float() / 255 if "image" in key else tensor
    batch = preprocess(batch)
    torch.manual_seed(seed)
    config = policy.config
    if config.type == "act":
        actions = policy.predict_action_chunk(batch)
    elif config.type == "diffusion":
        noise = torch.randn(1, config.horizon, 7)
        actions = policy.predict_action_chunk(batch, noise=noise)  # draws more at every step
    else:
        noise = torch.randn(1, config.chunk_size, config.max_action_dim)
        actions = policy.predict_action_chunk(batch, noise=noise)
    return postprocess(actions).numpy()


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", TYPES)
def test_answers_are_lerobots_own(tiny_policy, lerobots_own, kind):
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(policy, 3, 0)
    answer = policy.infer(observations, tasks, env_ids, seeds).chunks
    assert isinstance(policy, BasePolicy)
    assert answer.dtype == np.float32
    assert answer.shape == (3, policy.chunk_size, 7)
    for i in range(3):
        expected = answer_of_lerobot(
            *lerobots_own(kind), rows_of(observations, [i]), [tasks[i]], seeds[i]
        )
        # one row against one among eight: sums in another order, and smolvla's own prompts are
        # not padded
        np.testing.assert_allclose(answer[i, : expected.shape[1]], expected[0], atol=2e-5)


@pytest.mark.parametrize("kind", ["act", *VISION_LANGUAGE])
def test_eight_rows_are_lerobots_bit_for_bit(tiny_policy, kind):
    """The same network called by its own method; diffusion's takes no generator for each row."""
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(policy, 8, 12)
    batch: dict = {key: policy._padded(value) for key, value in observations.items()}
    batch = policy._preprocess({**batch, "task": tasks})
    noise = {}
    if kind != "act":
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        noise["noise"] = torch.stack([torch.randn(6, 9, generator=g) for g in generators])
    expected = policy._postprocess(policy._policy.predict_action_chunk(batch, **noise)).numpy()
    np.testing.assert_array_equal(
        policy.infer(observations, tasks, env_ids, seeds).chunks, expected
    )


@pytest.mark.parametrize("kind", TYPES)
def test_every_input_decides(tiny_policy, kind):
    """Without this, equality of answers would prove nothing."""
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(policy, 4, 1)
    first = policy.infer(observations, tasks, env_ids, seeds).chunks
    for key in (FRONT, WRIST, STATE):
        other = {**observations, key: observations[key][::-1].copy()}
        change = np.abs(policy.infer(other, tasks, env_ids, seeds).chunks - first).max(axis=(1, 2))
        assert change.min() > 5e-3, key
    change = np.abs(policy.infer(observations, tasks[::-1], env_ids, seeds).chunks - first)
    assert (change.max(axis=(1, 2)) > 1e-2).all() == (kind in VISION_LANGUAGE)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_does_not_depend_on_its_company(tiny_policy, kind):
    policy = tiny_policy(kind)
    asked = request(policy, 11, 2)
    together = policy.infer(*asked).chunks
    alone = np.concatenate([policy.infer(*select(asked, [i])).chunks for i in range(11)])
    np.testing.assert_array_equal(together, alone)
    order = np.random.default_rng(3).permutation(11).tolist()
    np.testing.assert_array_equal(policy.infer(*select(asked, order)).chunks, alone[order])


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_a_rows_noise_comes_from_its_seed_alone(tiny_policy, kind):
    policy = tiny_policy(kind)
    observations, tasks, _, _ = request(policy, 1, 4)
    same = {key: np.repeat(value, 9, axis=0) for key, value in observations.items()}
    seeds = [7, 7, 8, 7, 2**32 - 1, 0, 0, 8, 7]
    torch.manual_seed(0)
    chunks = policy.infer(same, tasks * 9, list(range(9)), seeds).chunks
    torch.manual_seed(1)
    np.testing.assert_array_equal(policy.infer(same, tasks * 9, [0] * 9, seeds).chunks, chunks)
    for i in range(9):
        for j in range(i):
            assert np.array_equal(chunks[i], chunks[j]) == (seeds[i] == seeds[j])


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_noise_without_seeds_is_refused(tiny_policy, kind):
    policy = tiny_policy(kind)
    observations, tasks, env_ids, seeds = request(policy, 2, 5)
    with pytest.raises(ValueError, match=r"one seed for each of the 2 rows, not none"):
        policy.infer(observations, tasks, env_ids)
    with pytest.raises(ValueError, match=r"one seed for each of the 2 rows, not 1"):
        policy.infer(observations, tasks, env_ids, seeds[:1])


def test_act_needs_no_seeds(tiny_policy):
    policy = tiny_policy("act")
    observations, tasks, env_ids, seeds = request(policy, 2, 5)
    np.testing.assert_array_equal(
        policy.infer(observations, tasks, env_ids).chunks,
        policy.infer(observations, tasks, env_ids, seeds).chunks,
    )


@pytest.mark.parametrize("kind", TYPES)
def test_there_is_no_state_between_calls(tiny_policy, kind):
    policy = tiny_policy(kind)
    asked = request(policy, 3, 6)
    first = policy.infer(*asked).chunks
    policy.infer(*request(policy, 5, 7))
    np.testing.assert_array_equal(policy.infer(*asked).chunks, first)


@pytest.mark.parametrize("kind", TYPES)
def test_policy_is_frozen(tiny_policy, kind):
    network = tiny_policy(kind)._policy
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize(("kind", "chunk_size"), [("diffusion", 7), ("act", 6), ("pi05", 6)])
def test_played_and_returned_actions(load_tiny, tiny_policy, kind, chunk_size):
    """Diffusion's horizon of 8 begins one observation in the past."""
    assert tiny_policy(kind).n_action_steps == 4
    assert tiny_policy(kind).chunk_size == chunk_size
    if kind == "act":
        return
    assert load_tiny(kind, n_action_steps=2).n_action_steps == 2
    with pytest.raises(ValueError, match=rf"n_action_steps is 9.*choose 1 to {chunk_size}"):
        load_tiny(kind, n_action_steps=9)


def test_one_observation_of_diffusion_has_no_time_axis(load_tiny, tmp_path):
    policy = load_tiny(save_policy("diffusion", tmp_path, n_obs_steps=1, num_inference_steps=2))
    observations, tasks, env_ids, seeds = request(policy, 2, 8)
    assert policy.n_obs_steps == 1
    assert observations[STATE].shape == (2, 8)
    assert policy.infer(observations, tasks, env_ids, seeds).chunks.shape == (2, 8, 7)


@pytest.mark.parametrize("scheduler", ["DDIM", "DDPM"])
def test_diffusion_starts_at_the_newest_observation(load_tiny, tmp_path, scheduler):
    """The first action of its horizon belongs to the older of two observations: it is cut off."""
    policy = load_tiny(save_policy("diffusion", tmp_path, noise_scheduler_type=scheduler))
    observations, tasks, env_ids, seeds = request(policy, 8, 9)
    batch = policy._preprocess({k: policy._padded(v) for k, v in observations.items()})
    batch["observation.images"] = torch.stack([batch[FRONT], batch[WRIST]], dim=2)
    diffusion = policy._policy.diffusion
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    noise = torch.stack([torch.randn(8, 7, generator=generator) for generator in generators])
    with torch.no_grad():
        whole = diffusion.conditional_sample(
            8, diffusion._prepare_global_conditioning(batch), generator=generators, noise=noise
        )
    np.testing.assert_array_equal(
        policy.infer(observations, tasks, env_ids, seeds).chunks, policy._postprocess(whole[:, 1:])
    )


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_played_out_as_by_lerobots_select_action(tiny_policy, lerobots_own, monkeypatch, kind):
    """Ten steps of one episode: the same observations are remembered, the same actions played."""
    policy, drawn = tiny_policy(kind), []
    infer = policy.infer

    def recorded(observations, tasks, env_ids, seeds):
        drawn.append(seeds[0])
        return infer(observations, tasks, env_ids, seeds)

    monkeypatch.setattr(policy, "infer", recorded)
    cache = ChunkCache(policy, num_envs=1)
    cache.reset([0])
    network, preprocess, postprocess = lerobots_own(kind)
    network.reset()
    for step in range(10):
        observation = make_observations(1, step)
        action = cache.act(observation, ["task"])
        batch = {key: policy._padded(value)[:1] for key, value in observation.items()}
        options = {}
        if kind == "diffusion" and step % 4 == 0:
            torch.manual_seed(drawn[-1])
            options["noise"] = torch.randn(1, 8, 7)
        expected = network.select_action(preprocess({**batch, "task": [""]}), **options)
        np.testing.assert_allclose(action, postprocess(expected), atol=2e-5)
    network.reset()
    assert len(drawn) == 3


@pytest.mark.parametrize("kind", TYPES)
def test_bfloat16_is_close_and_independent_of_company(load_tiny, tiny_policy, kind):
    half, full = load_tiny(kind, dtype="bfloat16"), tiny_policy(kind)
    asked = request(full, 4, 10)
    answer, exact = half.infer(*asked).chunks, full.infer(*asked).chunks
    assert answer.dtype == np.float32
    difference = np.abs(answer - exact)
    assert 0 < difference.mean() < 0.15 * exact.std()
    alone = np.concatenate([half.infer(*select(asked, [i])).chunks for i in range(4)])
    np.testing.assert_array_equal(answer, alone)
    assert half.fingerprint != full.fingerprint


def test_unknown_dtype_is_refused(load_tiny):
    with pytest.raises(ValueError, match=r"dtype 'float8': choose one of float32, bfloat16"):
        load_tiny("act", dtype="float8")
