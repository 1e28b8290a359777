"""What saves memory: activations that are computed again, and bfloat16 over float32 weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tiny_trainers import peak_bytes, random_batch, save_tiny, tiny_trainer

from pld_ray.sharded.components import AVERAGE, OPTIMIZER, POLICY


@pytest.mark.parametrize("kind", ["act", "smolvla", "pi05"])  # layer by layer, and LeRobot's own
def test_activations_computed_again_take_less_memory_and_change_nothing(kind, tmp_path):
    folder = save_tiny(kind, tmp_path)
    peaks, ends = [], []
    for again in (False, True):
        with tiny_trainer(folder, activation_checkpointing=again) as ours:
            batch = random_batch(ours.trainee.needed, 16)
            ours.update([batch])  # moments are there
            peaks.append(peak_bytes(ours.update, [batch]))
            ends.append({**ours.policy.state_dict(), **ours.average_state()})
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert peaks[1] < 0.97 * peaks[0]


def test_bfloat16_learns_as_float32_does_and_keeps_float32_weights(tmp_path):
    folder = save_tiny("act", tmp_path)
    losses = {}
    for precision in ("float32", "bfloat16"):
        with tiny_trainer(folder, precision=precision) as ours:
            batch = random_batch(ours.trainee.needed, 4)
            losses[precision] = [ours.update([batch])["loss"] for _ in range(12)]
            ours.components().write(tmp_path / precision)
    exact, rounded = losses["float32"], losses["bfloat16"]
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.05)
    assert rounded[-1] < 0.7 * rounded[0]
    for file in (POLICY, AVERAGE, OPTIMIZER):
        one, other = (load_file(tmp_path / precision / file) for precision in losses)
        assert {k: (v.shape, v.dtype) for k, v in one.items()} == {
            k: (v.shape, v.dtype) for k, v in other.items()
        }
        assert {v.dtype for v in other.values()} == {torch.float32}
    with tiny_trainer(folder) as ours:
        ours.load(tmp_path / "bfloat16")
        assert ours.update([batch])["loss"] < rounded[0]
