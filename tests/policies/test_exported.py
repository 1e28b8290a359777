"""What Q-chunking exports: the same answers from a folder of its own, and how they are played."""

from __future__ import annotations

import dataclasses
import json
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from chunked_fixtures import CAMERA, SMALL_CNN, A, D, H, make_update, pictures
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.policy import PolicyConfig
from pld_ray.policies import ChunkCache, PolicyDescription, load_base_policy
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.policies.lerobot_names import missing_observations
from pld_ray.rollout.factory import open_base_policy


def observation(rows=3):
    state = np.random.default_rng(1).standard_normal((rows, D)).astype(np.float32)
    return {"observation.state": state, CAMERA: pictures(9, rows)}


def test_a_run_begins_with_a_policy_that_answers(tmp_path):
    """Who opens it for a run asks it once; one that a pool holds is asked there."""
    networks = make_update(fill=False).networks
    write_policy(tmp_path / "policy", ChunkPolicy(networks, {"observation.state": (D,)}))
    spaces = (
        gym.spaces.Dict({"observation.state": gym.spaces.Box(-1, 1, (D,))}),
        gym.spaces.Box(-1, 1, (A,)),
    )
    settings = PolicyConfig(path=str(tmp_path / "policy"))
    open_base_policy(settings, *spaces)
    weights = load_file(tmp_path / "policy" / "model.safetensors")
    spoilt = {name: torch.full_like(value, torch.nan) for name, value in weights.items()}
    save_file(spoilt, tmp_path / "policy" / "model.safetensors")
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/policy answers with actions that are not fi"
    ):
        open_base_policy(settings, *spaces)
    open_base_policy(dataclasses.replace(settings, placement="pool"), *spaces)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_exported_policy_answers_as_the_run_s(tmp_path, is_frozen):
    weights = tmp_path / "cnn.safetensors"
    settings = {**SMALL_CNN, "freeze_vision_encoder": True, "num_candidates": 4}
    encoder = make_update(**settings).networks.frozen_features.backbone.layers
    save_file({k: v + 0.01 for k, v in encoder.state_dict().items()}, weights)
    settings |= {"freeze_vision_encoder": is_frozen, "vision_encoder_weights": str(weights)}
    update = make_update(**settings)
    update.run(1)
    shapes = {key: value.shape[1:] for key, value in observation().items()}
    policy = ChunkPolicy(update.networks, shapes)
    write_policy(tmp_path / "policy", policy)
    weights.unlink()  # the folder is complete
    loaded = load_base_policy(tmp_path / "policy")
    assert loaded.input_features == policy.input_features
    asked = (observation(), [""] * 3, [0, 1, 2], [5, 6, 7])
    np.testing.assert_array_equal(loaded.infer(*asked).chunks, policy.infer(*asked).chunks)
    assert loaded.fingerprint == load_base_policy(tmp_path / "policy").fingerprint


def test_chunks_are_prefetched_and_not_continued(tmp_path):
    """The next chunk is asked for a step ahead; real-time chunking is refused with its reason."""
    networks = make_update(num_candidates=4).networks
    write_policy(tmp_path / "policy", ChunkPolicy(networks, {"observation.state": (D,)}))
    policy = load_base_policy(tmp_path / "policy", n_action_steps=2)
    infer, chunks = policy.infer, []

    def recorded(**request):
        chunks.append(infer(**request))
        return chunks[-1]

    policy.infer = recorded
    cache = ChunkCache(policy, num_envs=1, prefetch=True)
    cache.reset([0])
    states = np.random.default_rng(0).standard_normal((5, 1, D)).astype(np.float32)
    played = np.concatenate([cache.act({"observation.state": state}, [""]) for state in states])
    assert chunks[0].chunks.shape == (1, H, A)
    expected = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 1)]  # of a prefetched chunk from the second on
    np.testing.assert_array_equal(played, [chunks[c].chunks[0, step] for c, step in expected])
    with pytest.raises(ValueError, match="critics do not choose among continuations"):
        load_base_policy(tmp_path / "policy", rtc=True)


def exported(folder, **options):
    """A folder of an untrained policy that sees a camera."""
    networks = make_update(fill=False, num_candidates=4, **SMALL_CNN | options).networks
    shapes = {key: value.shape[1:] for key, value in observation().items()}
    write_policy(folder, ChunkPolicy(networks, shapes))
    return folder


def frozen(folder, suffix=".safetensors"):
    """The same with a frozen encoder, whose weights are a file or another policy's."""
    settings = {"freeze_vision_encoder": True}
    if not suffix:
        source = exported(folder.parent / "source")
        settings |= {"vision_encoder_name": "policy", "vision_encoder_weights": str(source)}
        return exported(folder, **settings)
    weights = folder.parent / f"cnn{suffix}"
    state = make_update(fill=False, **SMALL_CNN).networks.ema_actor.encoder.backbone.layers
    save = save_file if suffix == ".safetensors" else torch.save
    save(state.state_dict(), weights)
    return exported(folder, **settings, vision_encoder_weights=str(weights))


@pytest.mark.parametrize(
    ("suffix", "names"),
    [
        (".safetensors", ["vision_encoder.safetensors"]),
        (".pth", ["vision_encoder.pth"]),
        ("", ["vision_encoder/config.json", "vision_encoder/model.safetensors"]),
    ],
)
def test_a_frozen_encoder_is_among_the_files(tmp_path, suffix, names):
    folder = frozen(tmp_path / "policy", suffix)
    checkpoint = open_checkpoint(folder)
    files = {str(file.relative_to(folder)) for file in checkpoint.files}
    assert files == {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
    assert set(names) < files
    changed = shutil.copytree(folder, tmp_path / "changed")
    with (changed / names[-1]).open("ab") as file:
        file.write(b"more")
    assert open_checkpoint(changed).fingerprint() != checkpoint.fingerprint()
    (changed / names[-1]).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{names[-1]} is missing, named in .*config.json"):
        open_checkpoint(changed)


@pytest.mark.parametrize("name", ["..", "../policy", "/etc/passwd", 3])
def test_an_encoder_lies_in_the_folder(tmp_path, name):
    folder = frozen(tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    config["params"]["vision_encoder_weights"] = name
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json names the file .*must lie beside it"):
        load_base_policy(folder)


def test_the_networks_and_their_frozen_encoder_are_where_they_are_asked_to_be(tmp_path):
    folder = frozen(tmp_path / "policy")
    networks = load_base_policy(folder, device="meta").networks
    found = [*networks.state_dict().values(), networks.frozen_features.backbone.mean]
    assert {tensor.device.type for tensor in found} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_a_gpu_answers_as_the_cpu(tmp_path):
    folder = frozen(tmp_path / "policy")
    asked = (observation(), [""] * 3, [0, 1, 2], [5, 6, 7])
    one, other = (load_base_policy(folder, device=d).infer(*asked) for d in ("cpu", "cuda"))
    np.testing.assert_allclose(other.chunks, one.chunks, atol=1e-3)


def test_no_rename_map_is_suggested_where_none_is_taken(tmp_path):
    policy = load_base_policy(exported(tmp_path / "policy"))
    given = {"observation.state": 0, "observation.images.front": 0}
    assert "--policy.rename_map" in missing_observations({**policy.input_features}, given)
    for needed in (policy.input_features, PolicyDescription.of(policy).input_features):
        assert "--policy.rename_map" not in missing_observations(needed, given)


def test_instructions_are_embedded_once_and_for_all(tmp_path, monkeypatch):
    """An exported policy needs no text model, and does not say where there was one."""
    where = "pld_ray.networks.encoders.observation_encoder.embed_texts"
    monkeypatch.setattr(where, lambda texts, folder: torch.arange(5.0 * len(texts)).reshape(-1, 5))
    text = {"task_embedding": "text", "text_encoder_path": "/the/training/machine"}
    params = ACRLPDParams(horizon=H, hidden_dims=[16], num_critics=2, **text)
    networks = ChunkedNetworks(D, A, params, tasks=("lift", "put it down"))
    policy = ChunkPolicy(networks, {"observation.state": (D,)})
    write_policy(tmp_path / "policy", policy, ("lift", "put it down"))
    monkeypatch.setattr(where, None)
    file = tmp_path / "policy/config.json"
    stored = json.loads(file.read_text())
    assert "/the/training/machine" not in file.read_text()
    state = {"observation.state": observation()["observation.state"]}
    asked = (state, [""] * 3, [0, 1, 2], [5, 6, 7])
    loaded = load_base_policy(tmp_path / "policy")
    np.testing.assert_array_equal(loaded.infer(*asked).chunks, policy.infer(*asked).chunks)
    stored["params"] |= text  # as earlier releases wrote it
    file.write_text(json.dumps(stored))
    older = load_base_policy(tmp_path / "policy")
    np.testing.assert_array_equal(older.infer(*asked).chunks, policy.infer(*asked).chunks)
    tensors = load_file(tmp_path / "policy/model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.endswith("task.embeddings")}
    save_file(kept, tmp_path / "policy/model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors has no task.embeddings.*export the"):
        load_base_policy(tmp_path / "policy")


def test_it_comes_from_the_hub_with_its_encoder(tmp_path, monkeypatch):
    folder = frozen(tmp_path / "policy", ".pth")

    def download(name, allow_patterns):
        files = [str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()]
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        for file in filter_repo_objects(files, allow_patterns=allow_patterns):
            shutil.copy(folder / file, tmp_path / name / file)
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path / "policy")
    policy = load_base_policy("someone/flow")
    assert policy.fingerprint == load_base_policy(folder).fingerprint
