"""Times of sampling, saving and restoring the replay, and its bytes; images beside LeRobot.

Of the image comparison both contestants hold equal transitions of two cameras of 128 x 128, take
turns in one process, on one thread, and each figure is a median over turns. Ours draws 256
transitions with their next images and shifts all four (DrQ). LeRobot's `ReplayBuffer` does the same
with `use_drq`, images in float32 as it stores them, with its own compiled shift; `_eager` is the
same buffer with the shift not compiled.

    python experiments/benchmarks/replay.py --json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from learner import random_ring
from lerobot.rl import ReplayBuffer
from lerobot.rl.buffer import random_shift as lerobot_shift

from pld_ray.networks.augmentation import random_shift
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

CAMERAS = ("observation.images.image", "observation.images.image2")
SIZE, TRANSITIONS, EPISODE_LENGTH = 128, 10_000, 200
BATCH, PAD = 256, 4
IMAGE_EPISODES = 5  # of 200 transitions: 0.4 GB of float32 images in each LeRobot buffer
SAVED_ROWS, NEW_ROWS = 250_000, 1000
BARS = {
    "image_drq_vs_lerobot": (">=", 4.0),
    "save_250k_s": ("<=", 5.0),
    "restore_250k_s": ("<=", 5.0),
}


def seconds(run: Callable[..., object], *args: object) -> float:
    """Of one call."""
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def sample_ms(n_step: int, rounds: int = 50, calls: int = 100) -> float:
    """Milliseconds per sample of 256 rows, observation 64, action 7, median over rounds."""
    ring = random_ring()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            ring.sample(BATCH, n_step, 0.99)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times)


# --- images --------------------------------------------------------------------------------------


def image_schema() -> ReplaySchema:
    """Two cameras, a state of 8 and 24 further values, 7 actions."""
    scalar, flag = ColumnSpec(()), ColumnSpec((), "bool")
    columns = {
        "observation.state": ColumnSpec((8,)),
        "observation.environment_state": ColumnSpec((24,)),
        **{camera: ColumnSpec((SIZE, SIZE, 3), "uint8") for camera in CAMERAS},
        "base_action": ColumnSpec((7,)),
        "action": ColumnSpec((7,)),
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
    }
    return ReplaySchema(columns, ["observation.state"])


def image_bytes_over_raw() -> float:
    """Allocated bytes for 10k two-camera transitions over the bytes of their 10k x 2 images."""
    rows = TRANSITIONS + TRANSITIONS // EPISODE_LENGTH  # a final frame for each episode
    ring = FrameRing(image_schema(), rows)
    return ring.nbytes / (TRANSITIONS * len(CAMERAS) * SIZE * SIZE * 3)


def random_episode(schema: ReplaySchema, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Columns of an episode of 200 transitions that is cut at its end."""
    episode = {}
    for name, spec in schema.columns.items():
        shape = (EPISODE_LENGTH + 1, *spec.shape)
        if spec.dtype == "uint8":
            episode[name] = rng.integers(0, 256, shape, dtype=np.uint8)
        else:
            episode[name] = rng.uniform(-1, 1, shape).astype(np.float32)
    for name in ("terminated", "truncated", "intervened"):
        episode[name] = np.zeros(EPISODE_LENGTH + 1, bool)
    episode["truncated"][-2] = True
    return episode


def add_to_lerobot(buffer: ReplayBuffer, episode: Mapping[str, np.ndarray]) -> None:
    """The episode's transitions; images as float32 in [0, 1], channels first."""
    frames = {
        camera: torch.from_numpy(episode[camera]).permute(0, 3, 1, 2) for camera in CAMERAS
    } | {"observation.state": torch.from_numpy(episode["observation.state"])}

    def frame(t: int) -> dict[str, torch.Tensor]:
        return {
            name: values[t : t + 1].float() / (255.0 if name in CAMERAS else 1.0)
            for name, values in frames.items()
        }

    following = frame(0)
    for t in range(EPISODE_LENGTH):
        present, following = following, frame(t + 1)
        action = torch.from_numpy(episode["action"][t : t + 1])
        truncated = bool(episode["truncated"][t])
        buffer.add(present, action, float(episode["reward"][t]), following, False, truncated)


def image_samplers() -> dict[str, Callable[[], object]]:
    """One call is one augmented batch with its successors; all over the same episodes."""
    schema = image_schema()
    ring = FrameRing(schema, IMAGE_EPISODES * (EPISODE_LENGTH + 1))
    keys = ["observation.state", *CAMERAS]
    eager = functools.partial(lerobot_shift, pad=PAD)
    buffers = {
        name: ReplayBuffer(
            IMAGE_EPISODES * EPISODE_LENGTH,
            device="cpu",
            state_keys=keys,
            image_augmentation_function=shift,  # None: the default, compiled
            use_drq=True,
            storage_device="cpu",
            optimize_memory=True,
        )
        for name, shift in {"lerobot": None, "lerobot_eager": eager}.items()
    }
    rng = np.random.default_rng(0)
    for _ in range(IMAGE_EPISODES):
        episode = random_episode(schema, rng)
        ring.add_episodes(episode, [EPISODE_LENGTH], 0.99)
        for buffer in buffers.values():
            add_to_lerobot(buffer, episode)
    generator = torch.Generator().manual_seed(0)

    def ours() -> object:
        batch = ring.sample(BATCH)
        for camera in CAMERAS:
            for key in (camera, f"next.{camera}"):
                batch[key] = random_shift(batch[key], PAD, generator)
        return batch

    theirs = {name: functools.partial(b.sample, BATCH) for name, b in buffers.items()}
    return {"ours": ours, **theirs}


def image_figures(rounds: int) -> dict[str, float]:
    """Milliseconds of an augmented image batch, and LeRobot's over ours."""
    samplers = image_samplers()
    for sample in samplers.values():
        for _ in range(2):  # compiles
            sample()
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(rounds):
        for name, sample in samplers.items():
            times[name].append(seconds(sample))
    median = {name: statistics.median(values) for name, values in times.items()}
    figures = {f"image_drq_{name}_ms": value * 1e3 for name, value in median.items()}
    for name in ("lerobot", "lerobot_eager"):
        figures[f"image_drq_vs_{name}"] = median[name] / median["ours"]
    return figures


# --- files ---------------------------------------------------------------------------------------


def file_figures(rounds: int = 3) -> dict[str, float]:
    """Seconds to save and restore 250k state rows, and to save 1000 more; checksums included.

    Medians over rounds. A round begins with its former folders deleted: all is written again.
    """
    ring = random_ring(SAVED_ROWS)
    width = {name: (NEW_ROWS, *spec.shape) for name, spec in ring.schema.columns.items()}
    new = {name: np.zeros(shape, np.float32) for name, shape in width.items()}
    times: dict[str, list[float]] = {
        name: [] for name in ("save_250k_s", "restore_250k_s", "incremental_save_s")
    }
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            restored = FrameRing(ring.schema, SAVED_ROWS)
            times["save_250k_s"].append(seconds(ring.save, folder / "1"))
            times["restore_250k_s"].append(seconds(restored.load, folder / "1"))
            ring.add_episodes(new, [NEW_ROWS - 1], 0.99)
            times["incremental_save_s"].append(seconds(ring.save, folder / "2"))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of the image comparison")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "sample_state_ms": sample_ms(n_step=1),
        "sample_state_3_step_ms": sample_ms(n_step=3),
        "image_bytes_over_raw": image_bytes_over_raw(),
        **file_figures(),
        **image_figures(args.rounds),
    }
    for name, value in figures.items():
        sign, bar = BARS.get(name, ("", ""))
        print(f"{name:32s} {value:10.4f}  {sign} {bar}".rstrip())
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
