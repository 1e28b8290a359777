"""`pld-ray convert`."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from pld_ray.cli.arguments import pop_flag, pop_value, pop_values
from pld_ray.config import ConfigError

USAGE = """usage: pld-ray convert aloha INPUT_DIR --repo_id=NAME --root=DIR [--key=value ...]

Turns INPUT_DIR/SCORE_FOLDER/episode_*.hdf5 into a LeRobotDataset in DIR. The same command goes on
with a conversion that was stopped.

  --score FOLDER=REWARD     repeatable; score_5=1.0 and score_1=0.0 when none is given. A reward
                            above 0 makes the folder's episodes successes
  --reward=last             on the last frame; every_frame: on each one
  --mode=image              image or video
  --fps=50                  frames per second of the recordings
  --task=TEXT               what is done; by default the name of INPUT_DIR
  --episodes=0,3,10:20      numbers of files, in each folder; score_1/7: in one
  --color=auto              order of the stored channels: rgb, bgr, or what the file declares
  --joint_convention=raw    raw or openpi (pi0's joint signs and gripper ranges)
  --mapping=FILE.yaml       other arms, arrays and cameras
  --workers=N               processes; one for each processor by default
  --skip_bad                leave out what cannot be converted
  --push_to_hub             upload it; needs HF_HUB_OFFLINE=0 and a token (`hf auth login`)
"""

CHOICES = {
    "mode": ("image", "video"),
    "reward": ("last", "every_frame"),
    "color": ("auto", "rgb", "bgr"),
    "joint_convention": ("raw", "openpi"),
}


def run(args: list[str]) -> int:
    """Convert recordings of another format."""
    from pld_ray.cli.ls import plain_console
    from pld_ray.data.aloha_file import read_layout
    from pld_ray.data.aloha_part import Settings
    from pld_ray.data.conversion import PROGRESS_FILE, convert
    from pld_ray.data.conversion_progress import TerminalSteps

    skip_bad, push = pop_flag(args, "skip_bad"), pop_flag(args, "push_to_hub")
    texts = {name: pop_value(args, name) for name in ("repo_id", "root", "task", "episodes")}
    chosen: dict[str, Any] = {name: choice(args, name) for name in CHOICES}
    fps, workers = positive(args, "fps") or 50, positive(args, "workers")
    mapping, scores = pop_value(args, "mapping"), pop_scores(args)
    if len(args) != 2 or args[0] != "aloha" or args[1].startswith("--"):
        raise ConfigError(f"{' '.join(args) or 'no input'}: {USAGE.splitlines()[0]}")
    for name in ("repo_id", "root"):
        if not texts[name]:
            raise ConfigError(f"--{name} is missing: {USAGE.splitlines()[0]}")
    if push:
        require_hub()
    input_dir, root = pathlib.Path(args[1]), pathlib.Path(str(texts["root"]))
    task = texts["task"] or input_dir.resolve().name.replace("_", " ")
    settings = Settings(
        repo_id=str(texts["repo_id"]),
        task=task,
        fps=fps,
        episodes=texts["episodes"] or "",
        **chosen,
    )
    if scores:
        settings = dataclasses.replace(settings, scores=scores)
    console = plain_console()
    steps = TerminalSteps(console)
    outcome = convert(input_dir, root, settings, read_layout(mapping), workers, skip_bad, steps)
    for reason in outcome.left_out.values():
        console.print(f"left out: {reason}", soft_wrap=True)
    if outcome.left_out:
        console.print(f"the list is in {root / PROGRESS_FILE}", soft_wrap=True)
    done = "was converted before" if outcome.was_finished else "converted"
    print(f"{root}: {outcome.num_episodes} episodes, {outcome.num_frames} frames {done}")
    print(f"next: pld-ray data {root}")
    if push:
        from lerobot.datasets import LeRobotDataset

        LeRobotDataset(settings.repo_id, root=root).push_to_hub()
    return 0


def choice(args: list[str], name: str) -> str:
    """One of `CHOICES`; the first by default."""
    value = pop_value(args, name)
    if value is not None and value not in CHOICES[name]:
        raise ConfigError(f"--{name}={value}: must be {' or '.join(CHOICES[name])}")
    return value or CHOICES[name][0]


def positive(args: list[str], name: str) -> int | None:
    """A number from 1 on."""
    value = pop_value(args, name)
    if value is not None and not (value.isdecimal() and int(value) >= 1):
        raise ConfigError(f"--{name}={value}: must be a whole number from 1 on")
    return None if value is None else int(value)


def pop_scores(args: list[str]) -> dict[str, float]:
    """All of `--score FOLDER=REWARD`."""
    scores: dict[str, float] = {}
    for text in pop_values(args, "score"):
        folder, _, value = text.rpartition("=")
        try:
            scores[folder.strip("/")] = float(value)
        except ValueError:
            folder = ""
        if not folder:
            raise ConfigError(f"--score {text}: must be FOLDER=REWARD, as in score_5=1.0")
    return scores


def require_hub() -> None:
    """Say now what an upload would lack after hours of converting."""
    from huggingface_hub import get_token

    lacks = []
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        lacks.append("HF_HUB_OFFLINE=0 before the command")
    if get_token() is None:
        lacks.append("a token (`hf auth login`, or HF_TOKEN)")
    if lacks:
        raise ConfigError(
            f"--push_to_hub needs {' and '.join(lacks)}; without the flag the dataset stays in "
            "--root and can be uploaded later"
        )
