"""What Q-chunking exports: the same answers from a folder of its own, and how they are played."""

from __future__ import annotations

import numpy as np
import pytest
from chunked_fixtures import CAMERA, SMALL_CNN, A, D, H, make_update, pictures
from safetensors.torch import save_file

from pld_ray.policies import ChunkCache, load_base_policy
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy


def observation(rows=3):
    state = np.random.default_rng(1).standard_normal((rows, D)).astype(np.float32)
    return {"observation.state": state, CAMERA: pictures(9, rows)}


@pytest.mark.parametrize("frozen", [True, False])
def test_an_exported_policy_answers_as_the_run_s(tmp_path, frozen):
    weights = tmp_path / "cnn.safetensors"
    settings = {**SMALL_CNN, "freeze_vision_encoder": True, "num_candidates": 4}
    encoder = make_update(**settings).networks.frozen_features.backbone.layers
    save_file({k: v + 0.01 for k, v in encoder.state_dict().items()}, weights)
    settings |= {"freeze_vision_encoder": frozen, "vision_encoder_weights": str(weights)}
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
