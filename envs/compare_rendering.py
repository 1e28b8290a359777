"""What "fast" rendering changes in the pictures: ``python -m envs.compare_rendering``.

Draws the same simulation states with both settings and prints, per task and camera, the mean
absolute difference (of 255) and the share of pixels in which a channel differs by more than 8.
--pictures writes a PNG with reference, fast and four times the difference side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from envs.experts import PickPlaceExpert
from envs.libero import LiberoEnv
from envs.observations import IMAGES
from envs.rendering import CAMERAS, FAST, RENDERINGS
from envs.suites import find_task

TASKS = ("libero_spatial:0", "libero_object:3", "libero_goal:9", "libero_10:2", "pld_tabletop:1")
THRESHOLD = 8


def pictures(
    suite: str, task: str | int, rendering: str, size: int, steps: int
) -> Iterator[dict[str, np.ndarray]]:
    """Pictures [size, size, 3] uint8 of both cameras, every tenth step of one expert's episode."""
    env = LiberoEnv(suite, task, cameras=tuple(CAMERAS), image_size=size, rendering=rendering)
    observation, _ = env.reset(options={"init_state_id": 0})
    expert = PickPlaceExpert(env)
    expert.reset(np.random.default_rng(0))
    for step in range(steps):
        if step % 10 == 0:
            yield {name: observation[IMAGES + name] for name in CAMERAS}
        observation, *_ = env.step(expert.act())
    env.close()


def compare(suite: str, task: str | int, size: int, steps: int) -> tuple[dict, list[np.ndarray]]:
    """Per camera (mean absolute difference, share of changed pixels), and rows of pictures."""
    reference, fast = (list(pictures(suite, task, r, size, steps)) for r in RENDERINGS)
    figures, rows = {}, []
    for name in CAMERAS:
        left = np.stack([picture[name] for picture in reference]).astype(int)
        right = np.stack([picture[name] for picture in fast]).astype(int)
        difference = np.abs(left - right)
        changed = (difference.max(axis=-1) > THRESHOLD).mean()
        figures[name] = (float(difference.mean()), float(changed))
        last = np.hstack([left[-1], right[-1], np.minimum(255, 4 * difference[-1])])
        rows.append(last.astype(np.uint8))
    return figures, rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="suite:task")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=61)
    parser.add_argument("--pictures", type=Path, help="PNG to write")
    options = parser.parse_args(arguments)
    print(f"{FAST} against reference, {options.size} x {options.size} pixels")
    print("| task | camera | mean abs. difference | pixels changed by more than 8 |")
    print("|---|---|---|---|")
    rows = []
    for entry in options.tasks:
        suite, _, task = entry.partition(":")
        figures, pair = compare(suite, task or 0, options.size, options.steps)
        rows += [np.hstack(pair)]
        for name, (mean, changed) in figures.items():
            label = f"{suite} {find_task(suite, task or 0).index}"
            print(f"| {label} | {name} | {mean:.2f} | {100 * changed:.1f} % |", flush=True)
    if options.pictures:
        from PIL import Image

        Image.fromarray(np.vstack(rows)).save(options.pictures)


if __name__ == "__main__":
    main()
