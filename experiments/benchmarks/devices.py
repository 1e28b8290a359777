"""Gradient updates per second of residual SAC on a CPU core and on a GPU, in float32 and bfloat16.

The shapes: `small`, two critics and an actor of 256-256, batch 256; `k8` and `n10`, the same with
eight candidates and with ten critics; `preset`, what `--config_path=tabletop` trains; `wide`, five
critics of 1024-1024-1024 with batch 2048. Sampling included, the replay on the learner's device.
All contestants run in one process, in short turns, and each figure is a median over turns.

    python experiments/benchmarks/devices.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from learner import random_ring
from learner_baselines import ACTION_DIM, EPISODE_LENGTH, OBSERVATION_DIM

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.columns import SUCCEEDED
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.replay import ColumnSpec, SymmetricReplay

EPISODES = 50
SMALL: dict[str, Any] = {
    "num_critics": 2,
    "hidden_dims": [256, 256],
    "batch_size": 256,
    "n_step": 1,
    "critic_actor_update_ratio": 1,
    "success_imitation": 0.0,
    "conservative_weight": 0.0,
    "ema_decay": 0.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "k8": SMALL | {"otf_candidates": 8},
    "n10": SMALL | {"num_critics": 10},
    "preset": {},
    "wide": {"hidden_dims": [1024, 1024, 1024], "batch_size": 2048},
}
PRECISIONS = ("float32", "bfloat16")


def random_replay(device: str) -> SymmetricReplay:
    """Two rings of random episodes of 200 transitions."""
    more = {SUCCEEDED: ColumnSpec((), "bool")}
    rings = [random_ring(EPISODES * (EPISODE_LENGTH + 1), device, seed, more) for seed in (0, 1)]
    return SymmetricReplay(*rings)


def make_update(shape: str, device: str, precision: str) -> ResidualSACUpdate:
    """A learner whose actor learns from its first update."""
    options = {"actor_delay_updates": 0, "precision": precision, **SHAPES[shape]}
    params = ResidualSACParams(**options)
    torch.manual_seed(0)
    networks = ResidualNetworks(OBSERVATION_DIM, ACTION_DIM, params).to(device)
    return ResidualSACUpdate(
        networks, make_optimizers(networks, params), random_replay(device), params
    )


def measure(
    rounds: int, num_updates: int, devices: list[str], shapes: list[str]
) -> dict[str, float]:
    """Updates per second of every contestant, and ratios to float32 on the CPU and on itself."""
    torch.set_num_threads(1)
    names = [
        (shape, device, precision)
        for shape in shapes
        for device in devices
        for precision in PRECISIONS
        if not (shape == "wide" and device == "cpu")  # seconds an update
    ]
    updates = {name: make_update(*name) for name in names}
    for update in updates.values():
        update.run(10)
    seconds: dict[tuple[str, str, str], list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, update in updates.items():
            start = time.perf_counter()
            update.run(num_updates)  # its figures are read at the end: the device is waited for
            seconds[name].append((time.perf_counter() - start) / num_updates)
    rate = {name: 1 / statistics.median(values) for name, values in seconds.items()}
    figures = {f"{'_'.join(name)}_updates_per_s": value for name, value in rate.items()}
    for shape, device, _ in names[::2]:
        own, cpu = (shape, device, "float32"), (shape, "cpu", "float32")
        figures[f"{shape}_{device}_bfloat16_vs_float32"] = (
            rate[shape, device, "bfloat16"] / rate[own]
        )
        if device != "cpu" and cpu in rate:
            figures[f"{shape}_{device}_vs_cpu"] = rate[own] / rate[cpu]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--updates", type=int, default=20, help="updates per contestant and round")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    figures = measure(args.rounds, args.updates, devices, args.shapes)
    for name, value in figures.items():
        print(f"{name:44s} {value:9.2f}")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
