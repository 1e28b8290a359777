"""Base + residual in one folder: what of the base policy and of the text model goes into it."""

from __future__ import annotations

import dataclasses
import json
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.config import ConfigError, PolicyConfig, ResidualSACParams
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.networks.encoders import build_backbone
from pld_ray.plugin.acting import load_residual
from pld_ray.plugin.modeling_pld import HUB_FILES
from pld_ray.plugin.policy_folder import load_base, write_base_policy, write_residual
from pld_ray.policies import NoBasePolicy, load_base_policy
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.policies.spaces import describe_spaces
from pld_ray.rollout.vector_env import with_base_policy

CAMERA = "observation.images.image"
STATE = gym.spaces.Dict({"observation.state": gym.spaces.Box(-1, 1, (6,), np.float32)})
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"hidden_dims": [16], "num_critics": 2}


def chunked(folder, freeze=True, **options):
    """The folder of an untrained policy that sees a camera."""
    params = ACRLPDParams(**SMALL, horizon=3, freeze_vision_encoder=freeze, **options)
    networks = ChunkedNetworks(6, 2, params, images={CAMERA: (64, 64, 3)})
    shapes = {"observation.state": (6,), CAMERA: (64, 64, 3)}
    write_policy(folder, ChunkPolicy(networks, shapes))
    return folder


def frozen_encoder(folder, kind):
    """Settings of a frozen encoder: from a file, or another policy's."""
    if kind == "policy":
        small = {"vision_encoder_name": "cnn", "image_encoder_hidden_dim": 4}
        source = chunked(folder / "source", freeze=False, **small)
        return {"vision_encoder_name": "policy", "vision_encoder_weights": str(source)}
    layers = build_backbone("cnn", None, 4, seed=1).layers
    save_file(layers.state_dict(), folder / "cnn.safetensors")
    weights = {"vision_encoder_weights": str(folder / "cnn.safetensors")}
    return {"vision_encoder_name": "cnn", "image_encoder_hidden_dim": 4, **weights}


@pytest.mark.parametrize("kind", ["file", "policy"])
def test_a_base_policy_takes_its_frozen_encoder_along(tmp_path, monkeypatch, kind):
    chunked(tmp_path / "base", **frozen_encoder(tmp_path, kind))
    rng = np.random.default_rng(0)
    rows = {"observation.state": rng.normal(size=(2, 6)).astype(np.float32)}
    rows[CAMERA] = rng.integers(0, 255, (2, 64, 64, 3), dtype=np.uint8)
    asked = rows, ["", ""], [0, 1], [3, 4]
    expected = load_base_policy(tmp_path / "base").infer(*asked).chunks
    monkeypatch.chdir(tmp_path)
    described = write_base_policy(PolicyConfig(path="base"), tmp_path / "out")
    shutil.rmtree("base")
    base = load_base(tmp_path / "out", {"base_policy": described}, ACTIONS, "cpu")
    np.testing.assert_array_equal(base.infer(*asked).chunks, expected)
    (weights,) = (tmp_path / "out/base_policy").rglob(
        "vision_encoder*/model.safetensors" if kind == "policy" else "vision_encoder.safetensors"
    )
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ConfigError, match="its files have changed since it was exported"):
        load_base(tmp_path / "out", {"base_policy": described}, ACTIONS, "cpu")


def test_a_chunked_base_policy_is_put_where_it_is_asked_to_be(tmp_path):
    chunked(tmp_path / "base", vision_encoder_name="cnn", freeze=False)
    described = write_base_policy(PolicyConfig(path=str(tmp_path / "base")), tmp_path / "out")
    base = load_base(tmp_path / "out", {"base_policy": described}, ACTIONS, "meta")
    assert base.networks.action_low.device.type == "meta"


@pytest.fixture
def told_residual(tmp_path, monkeypatch):
    """The folder of a residual that is told its instruction; the text model is gone."""
    where = "pld_ray.networks.encoders.observation_encoder.embed_texts"
    monkeypatch.setattr(where, lambda texts, folder: torch.ones(len(texts), 5))
    text = {"task_embedding": "text", "text_encoder_path": "/the/training/machine"}
    params = ResidualSACParams(**SMALL, residual_dims=[], init_final=0.5, **text)
    spaces = with_base_policy(NoBasePolicy(2), STATE, ACTIONS)
    networks = ResidualNetworks.of_spaces(spaces, ACTIONS, params, tasks=("lift",))
    environment = {
        **describe_spaces(STATE, ACTIONS),
        "task": "lift",
    }
    write_residual(
        tmp_path / "told",
        networks.acting_state(),
        {"params": dataclasses.asdict(params), "tasks": ["lift"]},
        environment,
        PolicyConfig(type="none"),
    )
    monkeypatch.setattr(where, None)
    return tmp_path / "told"


def test_a_residual_keeps_the_embeddings_of_its_instructions(told_residual):
    file = told_residual / "config.json"
    assert "/the/training/machine" not in file.read_text()
    observation = {"observation.state": np.float32([np.linspace(-1, 1, 6)])}
    expected = load_residual(told_residual).predict(observation)
    stored = json.loads(file.read_text())
    stored["networks"]["params"]["text_encoder_path"] = "/the/training/machine"
    file.write_text(json.dumps(stored))  # as earlier releases wrote it
    assert np.array_equal(load_residual(told_residual).predict(observation), expected)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_weights_that_cannot_be_read_are_named(told_residual, damage):
    weights = told_residual / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    else:
        weights.unlink()
    with pytest.raises(ConfigError, match=r"model.safetensors cannot be read .*: copy it again"):
        load_residual(told_residual)


def test_all_of_a_folder_comes_from_the_hub():
    encoders = ["vision_encoder.pth", "base_policy/vision_encoder.pth"]
    names = [*encoders, "config.json", "base_policy/model.safetensors", "tokenizer/vocab.txt"]
    assert [*filter_repo_objects(names, allow_patterns=HUB_FILES)] == names
