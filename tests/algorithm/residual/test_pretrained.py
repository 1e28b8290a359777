"""A critic is taken over where it means what it meant: range, encoder and cameras are its own."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.pretrained import LEARNER_FILE, PretrainedCriticError, load_critic
from pld_ray.algorithm.stored_columns import replay_schema
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.files.state_tree import save_tree
from pld_ray.replay import FrameRing

ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
CNN = {"vision_encoder_name": "cnn", "latent_dim": 8, "value_range": [-5.0, 0.0]}


def spaces(cameras=("front", "wrist"), vector="observation.state"):
    image = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    return gym.spaces.Dict(
        {
            vector: gym.spaces.Box(-1, 1, (4,), np.float32),
            "base_action": ACTIONS,
            **{f"observation.images.{name}": image for name in cameras},
        }
    )


def make(observations, seed=0, **params):
    plain = {"residual_dims": [], "hidden_dims": [8]}
    return ResidualNetworks.of_spaces(
        observations, ACTIONS, ResidualSACParams(**(plain | params)), seed
    )


def save(folder, networks, observations, replay="replay"):
    """What a learner writes, with an empty replay."""
    state = {key: value.numpy() for key, value in networks.state_dict().items()}
    folder.mkdir()
    save_tree(folder / LEARNER_FILE, {"rl_module": {"default_policy": state}})
    ring = FrameRing(replay_schema(networks, observations, ACTIONS), 4, torch.device("cpu"))
    ring.save(folder / replay / "offline")
    write_manifest(folder)
    return folder


@pytest.fixture
def pretrained(tmp_path):
    return save(tmp_path / "pretrained", make(spaces(), **CNN), spaces())


def test_the_same_run_takes_it_over(pretrained, tmp_path):
    heir = make(spaces(), seed=1, **CNN)
    load_critic(heir, pretrained)
    donor = make(spaces(), **CNN).state_dict()
    for name in ("critic.layers.0.weight", "target_critic.layers.0.weight"):
        torch.testing.assert_close(heir.state_dict()[name], donor[name])
    for params in ({}, {"freeze_vision_encoder": False, **CNN}):  # without images; a trained one
        seen = spaces() if params else spaces(cameras=())
        whole = save(tmp_path / f"whole{len(params)}", make(seen, **params), seen)
        load_critic(make(seen, seed=1, **params), whole)


def test_another_value_range_is_refused(pretrained):
    said = (
        r"its values lie in \[-5, 0\], those of this run in \[-0.1, 1.1\]: set "
        r"algorithm.value_range=\[-5,0\]"
    )
    wider = make(spaces(), **{**CNN, "value_range": [-0.1, 1.1]})
    before = wider.critic.atoms.clone()
    with pytest.raises(PretrainedCriticError, match=said):
        load_critic(wider, pretrained)
    torch.testing.assert_close(wider.critic.atoms, before)  # nothing was taken


def test_another_frozen_encoder_is_refused(pretrained):
    own = make(spaces(), **CNN).frozen_features.fingerprint
    other = make(spaces(), vision_encoder_seed=7, **CNN)
    said = f"frozen vision encoder {own}, this run has frozen vision encoder "
    with pytest.raises(PretrainedCriticError, match=said + other.frozen_features.fingerprint):
        load_critic(other, pretrained)


def test_a_trained_encoder_is_not_taken_for_a_frozen_one(tmp_path):
    donor = make(spaces(), freeze_vision_encoder=False, **CNN)
    trained = save(tmp_path / "trained", donor, spaces())
    with pytest.raises(PretrainedCriticError, match=r"no frozen vision.*freeze_vision_encoder"):
        load_critic(make(spaces(), **CNN), trained)


def test_an_encoder_of_its_own_is_not_taken_for_a_shared_one(tmp_path):
    params = {"state_encoder_hidden_dim": 8}
    seen = spaces(cameras=())
    saved = save(tmp_path / "own", make(seen, shared_encoder=False, **params), seen)
    said = r"it has critic_encoder\..*no place: use the network settings \(shared_encoder"
    with pytest.raises(PretrainedCriticError, match=said):
        load_critic(make(seen, **params), saved)


@pytest.mark.parametrize("frozen", [True, False])
def test_renamed_cameras_are_refused(tmp_path, frozen):
    params = {**CNN, "freeze_vision_encoder": frozen}
    saved = save(tmp_path / "saved", make(spaces(), **params), spaces(), "replay_0_of_2")
    other = make(spaces(("front", "top")), **params)
    said = r"it saw .*\.front, .*\.wrist, this run sees .*\.front, .*\.top: .*env\.cameras"
    with pytest.raises(PretrainedCriticError, match=said):
        load_critic(other, saved)


def test_another_vector_of_the_same_width_is_refused(tmp_path):
    seen, other = (spaces((), v) for v in ("observation.state", "observation.environment_state"))
    saved = save(tmp_path / "saved", make(seen), seen)
    with pytest.raises(PretrainedCriticError, match=r"saw observation\.state, this run sees obs"):
        load_critic(make(other), saved)


def test_a_damaged_ring_is_refused(pretrained):
    ring = pretrained / "replay/offline/ring.json"
    ring.write_text("{}")
    with pytest.raises(CheckpointError, match=r"ring\.json is damaged"):
        load_critic(make(spaces(), **CNN), pretrained)
    (pretrained / "manifest.json").unlink()
    with pytest.raises(PretrainedCriticError, match=r"ring\.json is damaged"):
        load_critic(make(spaces(), **CNN), pretrained)
