"""Camera images from the spaces to the gradient step, frozen and trained, without a renderer."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from update_fixtures import make_params

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.augmentation import random_shift
from pld_ray.networks.encoders import image_shapes
from pld_ray.replay import ReplayFileError
from pld_ray.rllib.intake import with_features

SIZE, ACT = 48, 3
CAMERAS = ("observation.images.image", "observation.images.image2")


def spaces(size=SIZE, cameras=CAMERAS):
    box = gym.spaces.Box
    observation = {"observation.state": box(-np.inf, np.inf, (5,), np.float32)}
    observation |= {c: box(0, 255, (size, size, 3), np.uint8) for c in cameras}
    action = box(-1.0, 1.0, (ACT,), np.float32)
    return gym.spaces.Dict({**observation, "base_action": action}), action


def image_params(**changes):
    defaults = {
        "vision_encoder_name": "cnn",
        "image_encoder_hidden_dim": 8,
        "latent_dim": 16,
        "spatial_features": 2,
        "state_encoder_hidden_dim": 12,
        "random_shift_pad": 2,
    }
    return make_params(**(defaults | changes))


def make_networks(params, inference_only=False):
    networks = ResidualNetworks.of_spaces(*spaces(), params, tasks=["lift the can"])
    if inference_only:
        networks.keep_what_acts()
    return networks


def make_rings(networks, params):
    schema = replay_schema(networks, *spaces())
    return make_replay(schema, params, torch.device("cpu"), seed=1)


def episode(seed, length=6):
    rng = np.random.default_rng(seed)
    rows = length + 1
    columns = {
        "observation.state": rng.standard_normal((rows, 5)).astype(np.float32),
        "base_action": rng.uniform(-1, 1, (rows, ACT)).astype(np.float32),
        "action": rng.uniform(-1, 1, (rows, ACT)).astype(np.float32),
        "reward": np.zeros(rows, np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "residual_scale": np.full(rows, 0.6, np.float32),
        "intervened": np.zeros(rows, bool),
    }
    columns["reward"][length - 1] = 1.0
    columns["terminated"][length - 1] = True
    columns |= {c: rng.integers(0, 256, (rows, SIZE, SIZE, 3), dtype=np.uint8) for c in CAMERAS}
    columns |= {
        name: np.zeros(rows, np.float32) for name in ("discrete_action", "discrete_penalty")
    }
    return columns


def make_update(params, seed=0):
    networks = make_networks(params)
    replay = make_rings(networks, params)
    for number in range(6):
        ring = replay.offline if number < 2 else replay.online
        columns = with_features(episode(number), ring.schema, networks.frozen_features)
        ring.add_episodes(columns, [6], params.gamma)
    networks.normalizer.fit(replay.observations())
    return ResidualSACUpdate(networks, make_optimizers(networks, params), replay, params, seed)


def changed(before, networks):
    after = networks.state_dict()
    return {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}


def test_a_frozen_encoder_sees_each_frame_once_and_its_features_are_stored(monkeypatch):
    params = image_params()
    update = make_update(params)
    networks, ring = update.networks, update.replay.online
    assert not any("images" in key for key in ring.schema.columns)
    stored = ring.column("observation.features.image2", ring.start_rows())
    frames = np.concatenate([episode(n)[CAMERAS[1]][:-1] for n in range(2, 6)])
    assert torch.equal(stored, networks.frozen_features.compute(frames))
    monkeypatch.setattr(networks.frozen_features, "compute", None)  # the learner never runs it
    before = {k: v.clone() for k, v in networks.state_dict().items()}
    update.run(3)
    assert {"encoder", "target_encoder", "critic", "actor"} <= changed(before, networks)
    assert not any("backbone" in key for key in networks.state_dict())


def test_a_trained_encoder_learns_from_shifted_uint8_images():
    params = image_params(freeze_vision_encoder=False)
    update = make_update(params)
    networks = update.networks
    stored = update.replay.online.column(CAMERAS[0], update.replay.online.start_rows())
    assert stored.dtype == torch.uint8
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    import copy

    plain = copy.deepcopy(update.replay).sample(params.batch_size, params.n_step, params.gamma)
    batch = update.sample_from(update.replay)
    expected = random_shift(plain[CAMERAS[0]], 2, generator)
    assert torch.equal(batch[CAMERAS[0]], expected)
    assert not torch.equal(batch[CAMERAS[0]], plain[CAMERAS[0]])
    weight = networks.encoder.backbone.layers[0].weight.clone()
    update.run(2)
    assert not torch.equal(weight, networks.encoder.backbone.layers[0].weight)


def test_a_shared_encoder_learns_from_the_critic_alone():
    update = make_update(image_params())
    networks = update.networks
    batch = update.sample_from(update.replay)
    x = update.networks.encode(networks.encoder, batch).detach()
    before = {k: v.clone() for k, v in networks.encoder.state_dict().items()}
    update.update_actor(batch, x)
    assert all(torch.equal(v, before[k]) for k, v in networks.encoder.state_dict().items())


def test_separate_encoders_learn_each_from_its_own_loss():
    update = make_update(image_params(shared_encoder=False, conservative_weight=0.1))
    networks = update.networks
    torch.nn.init.normal_(networks.actor.head.weight, std=0.1)  # a zero head passes no gradient
    before = {k: v.clone() for k, v in networks.state_dict().items()}
    batch = update.sample_from(update.replay)
    x = update.networks.encode(networks.critic_encoder, batch)
    update.update_critic(batch, x)
    assert "critic_encoder" in changed(before, networks)
    assert "encoder" not in changed(before, networks)
    update.update_actor(batch, x.detach())
    assert "encoder" in changed(before, networks)


def test_the_target_has_an_encoder_of_its_own():
    """Sharing the online encoder with the target critic is a known mistake of other stacks."""
    update = make_update(image_params(tau=0.25))
    networks = update.networks
    old = [p.clone() for p in networks.target_encoder.parameters()]
    update.run(1)
    online = list(networks.encoder.parameters())
    for target, before, now in zip(networks.target_encoder.parameters(), old, online, strict=True):
        torch.testing.assert_close(target, 0.75 * before + 0.25 * now)


def test_acting_sees_what_the_learner_sees():
    params = image_params()
    update = make_update(params)
    networks = update.networks
    torch.nn.init.normal_(networks.actor.head.weight, std=0.5)
    ring = update.replay.online
    batch = ring.gather(ring.start_rows()[:5], 1, 0.9).unpack(ring.schema)
    with torch.no_grad():
        x = update.networks.encode(networks.encoder, batch)
        raw = episode(2)
        observation = {
            key: torch.from_numpy(raw[key][:5])
            for key in ("observation.state", "base_action", *CAMERAS)
        }
        torch.testing.assert_close(
            networks.encode(networks.encoder, networks.as_batch(observation)), x
        )
        assert networks.act(observation)[0].shape == (5, ACT)


def test_what_travels_to_the_runners_holds_no_critic_and_no_frozen_encoder():
    networks = make_networks(image_params())
    sent = networks.acting_state()
    names = {key.split(".")[0] for key in sent}
    assert "encoder" in names
    assert not names & {"critic", "target_critic", "target_encoder", "log_alpha"}
    runner = make_networks(image_params(), inference_only=True)
    runner.load_state_dict(sent)
    assert runner.frozen_features.fingerprint == networks.frozen_features.fingerprint


def test_features_of_another_encoder_are_refused(tmp_path):
    make_update(image_params()).replay.online.save(tmp_path)
    params = image_params(vision_encoder_seed=1)
    other = make_rings(make_networks(params), params)
    with pytest.raises(ReplayFileError, match="encoder"):
        other.online.load(tmp_path)


def test_images_that_no_network_reads_are_not_stored():
    schema = replay_schema(make_networks(image_params(vision_encoder_name="none")), *spaces())
    assert not any("images" in key or "features" in key for key in schema.columns)


def test_cameras_that_do_not_fit_are_refused_when_the_spaces_are_seen():
    params = ResidualSACParams(vision_encoder_name="resnet10")
    with pytest.raises(ValueError, match="has no camera"):
        image_shapes(spaces(cameras=())[0], params)
    observation_space, _ = spaces()
    observation_space.spaces[CAMERAS[1]] = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    with pytest.raises(ValueError, match="different sizes"):
        image_shapes(observation_space, params)
    observation_space.spaces[CAMERAS[1]] = gym.spaces.Box(0, 1, (SIZE, SIZE, 3), np.float32)
    with pytest.raises(ValueError, match="float32"):
        image_shapes(observation_space, params)


def test_same_seed_same_numbers_with_images(tmp_path):
    one, other = (make_update(image_params(freeze_vision_encoder=False), seed=3) for _ in range(2))
    assert one.run(3) == other.run(3)


def test_the_target_is_the_target_critics_at_the_successor_s_images():
    update = make_update(image_params(num_critics=2, num_subsample_critics=2))
    networks, batch = update.networks, update.sample_from(update.replay)
    for p in networks.target_encoder.parameters():  # elsewhere than the encoder
        p.data.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    with torch.no_grad():
        y, _ = update.td_target(batch)
        following = {k.removeprefix("next."): v for k, v in batch.items() if k.startswith("next.")}
        following["observation"] = batch["next_observation"]
        base = batch["next_base_action"]
        noise = torch.randn(update.params.otf_candidates, len(base), ACT, generator=generator)
        x = networks.encode(networks.encoder, {**batch, **following})
        delta, _ = networks.residual(x, base, noise)
        x = networks.encode(networks.target_encoder, {**batch, **following})
        q = networks.target_critic.otf(x, base, networks.compose(base, delta))
        expected = batch["reward"] + batch["discount"] * q.amin(0).amax(0)
    torch.testing.assert_close(y, expected)


def test_an_actor_with_its_own_encoder_is_judged_by_what_it_would_do():
    update = make_update(image_params(shared_encoder=False, conservative_weight=0.1))
    batch = update.sample_from(update.replay)
    x = update.networks.encode(update.networks.critic_encoder, batch)
    action = update.policy_rows(batch, torch.full_like(x, torch.nan))[2]  # the critics' x
    assert action.isfinite().all()


def test_a_gripper_s_successor_is_seen_through_the_critics_encoder():
    params = image_params(shared_encoder=False, gripper="discrete", gripper_dims=[2])
    update = make_update(params)
    batch = update.sample_from(update.replay)
    x = update.networks.encode(update.critic_encoder, batch).detach()
    for p in update.networks.encoder.parameters():
        p.data.fill_(torch.nan)
    update.update_discrete_critic(batch, x)
    assert all(p.isfinite().all() for p in update.networks.discrete_critic.parameters())
