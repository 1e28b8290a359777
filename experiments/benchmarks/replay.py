"""Time of one sample of state rows, and bytes of an image ring over its raw frames.

python experiments/benchmarks/replay.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from learner import random_ring

from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

CAMERAS, SIZE, TRANSITIONS, EPISODE_LENGTH = 2, 128, 10_000, 200


def sample_ms(n_step: int, rounds: int = 50, calls: int = 100) -> float:
    """Milliseconds per sample of 256 rows, observation 64, action 7, median over rounds."""
    ring = random_ring()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            ring.sample(256, n_step, 0.99)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times)


def image_bytes_over_raw() -> float:
    """Allocated bytes for 10k two-camera transitions over the bytes of their 10k x 2 images."""
    scalar, flag = ColumnSpec(()), ColumnSpec((), "bool")
    image = ColumnSpec((SIZE, SIZE, 3), "uint8")
    columns = {
        "observation.state": ColumnSpec((8,)),
        "observation.environment_state": ColumnSpec((24,)),
        "observation.images.image": image,
        "observation.images.image2": image,
        "base_action": ColumnSpec((7,)),
        "action": ColumnSpec((7,)),
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
    }
    rows = TRANSITIONS + TRANSITIONS // EPISODE_LENGTH  # a final frame for each episode
    ring = FrameRing(ReplaySchema(columns, ["observation.state"]), rows)
    return ring.nbytes / (TRANSITIONS * CAMERAS * SIZE * SIZE * 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "sample_state_ms": sample_ms(n_step=1),
        "sample_state_3_step_ms": sample_ms(n_step=3),
        "image_bytes_over_raw": image_bytes_over_raw(),
    }
    for name, value in figures.items():
        print(f"{name:32s} {value:8.4f}")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
