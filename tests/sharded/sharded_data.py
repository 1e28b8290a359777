"""Recorded datasets that fit the embedded policy."""

import numpy as np
from safetensors.numpy import load_file

from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.policies import EMBEDDED_ACT

STATISTICS = load_file(next(EMBEDDED_ACT.glob("*unnormalizer_processor.safetensors")))

SHAPES = {
    "observation.state": 8,
    "observation.environment_state": 24,
    "base_action": 7,
    "action": 7,
}
FLAGS = {"reward": np.float32, "residual_scale": np.float32} | dict.fromkeys(
    ("terminated", "truncated", "success", "intervened"), bool
)


def recorded_episode(rng, length, success=True):
    rows = length + 1
    columns = {
        name: rng.uniform(-1, 1, (rows, width)).astype(np.float32) for name, width in SHAPES.items()
    }
    for name in ("observation.state", "observation.environment_state"):
        mean, std = STATISTICS[f"{name}.mean"], STATISTICS[f"{name}.std"]
        columns[name] = (mean + std * columns[name]).astype(np.float32)
    columns |= {name: np.zeros(rows, dtype) for name, dtype in FLAGS.items()}
    columns["reward"][length - 1] = columns["success"][length - 1] = success
    columns["terminated" if success else "truncated"][length - 1] = True
    return columns


def write_dataset(root, lengths, seed=0, failures=()):
    """Episodes of these lengths; returns the recorded actions [L, 7] of each."""
    rng = np.random.default_rng(seed)
    writer = EpisodeWriter(root, Recording("lift the can", 20))
    actions = []
    for number, length in enumerate(lengths):
        columns = recorded_episode(rng, length, number not in failures)
        actions.append(columns["action"][:length])
        writer.add(columns)
    writer.finish()
    return actions
