"""An update on cached features of a frozen ResNet-10, against encoding the images at every update.

Two cameras of 128 x 128, batch 64, one CPU thread. Both make the same step with the same networks;
they differ in what the replay holds.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from columns import transition_columns
from plain import PLAIN

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.encoders import feature_key
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

SIZE, STATE_DIM, ACTION_DIM, BATCH = 128, 32, 7, 64
CAMERAS = ("observation.images.image", "observation.images.image2")
EPISODE_LENGTH, EPISODES = 20, 4


def make_update(cached: bool) -> ResidualSACUpdate:
    """A learner with a frozen encoder on a ring of features, or of images."""
    options = {"vision_encoder_name": "resnet10", "batch_size": BATCH, "actor_delay_updates": 0}
    params = ResidualSACParams(**(PLAIN | options | {"n_step": 1}))
    torch.manual_seed(0)
    images = dict.fromkeys(CAMERAS, (SIZE, SIZE, 3))
    networks = ResidualNetworks(STATE_DIM, ACTION_DIM, params, images)
    frozen = networks.frozen_features
    assert frozen is not None
    columns = transition_columns(STATE_DIM, ACTION_DIM)
    shape = frozen.shape(SIZE, SIZE)
    for camera in CAMERAS:
        if cached:
            columns[feature_key(camera)] = ColumnSpec(shape, "float16")
        else:
            columns[camera] = ColumnSpec((SIZE, SIZE, 3), "uint8")
    fingerprint = frozen.fingerprint if cached else None
    ring = FrameRing(ReplaySchema(columns, ["observation.state"], fingerprint), 1000, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        rows = EPISODE_LENGTH + 1
        episode = {
            name: np.zeros((rows, *spec.shape), spec.dtype)
            for name, spec in columns.items()
            if "images" not in name and "features" not in name
        }
        for camera in CAMERAS:
            frames = rng.integers(0, 256, (rows, SIZE, SIZE, 3), dtype=np.uint8)
            episode[feature_key(camera) if cached else camera] = (
                frozen.compute(frames) if cached else frames
            )
        ring.add_episodes(episode, [EPISODE_LENGTH], 0.99)
    return ResidualSACUpdate(networks, make_optimizers(networks, params), ring, params)


def encode_again(update: ResidualSACUpdate) -> None:
    """One update whose batch holds images: encode them, then the same step."""
    batch = update.replay.sample(BATCH, 1, 0.99)
    frozen = update.networks.frozen_features
    for camera in CAMERAS:
        for prefix in ("", "next."):
            batch[prefix + feature_key(camera)] = frozen.compute(batch[prefix + camera])
    update.step(batch)


def image_figures(rounds: int = 3) -> dict[str, float]:
    """Updates per second of both, and their ratio, from interleaved rounds."""
    cached, raw = make_update(cached=True), make_update(cached=False)
    cached.run(1)
    seconds: dict[str, list[float]] = {"cached": [], "encoding": []}
    for _ in range(rounds):
        start = time.perf_counter()
        cached.run(5)
        seconds["cached"].append((time.perf_counter() - start) / 5)
        start = time.perf_counter()
        encode_again(raw)
        seconds["encoding"].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "frozen_cache_updates_per_s": 1 / median["cached"],
        "encoding_updates_per_s": 1 / median["encoding"],
        "frozen_cache_speedup": median["encoding"] / median["cached"],
    }
