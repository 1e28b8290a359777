"""`pld-ray convert`."""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import shlex
from typing import Any

from pld_ray.cli.arguments import Parser, on_this_machine, whole_number
from pld_ray.config import ConfigError

FORMATS = ("aloha", "hilserl")
CHOICES = (
    ("reward", ("last", "every_frame"), "on the last frame, or on each one"),
    ("mode", ("image", "video"), "image or video"),
    ("color", ("auto", "rgb", "bgr"), "order of the stored channels; auto: as the file says"),
    ("joint_convention", ("raw", "openpi"), "openpi: pi0's joint signs and gripper ranges"),
)
"""Flags with the values that they take, the one that holds by default first."""
ALOHA_ALONE = (
    *("score", *(name for name, _, _ in CHOICES), "episodes", "mapping", "workers"),
    *("skip_bad", "push_to_hub"),
)
"""Flags that do nothing for HIL-SERL's pickles."""


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "convert",
        "Turns INPUT_DIR/SCORE_FOLDER/episode_*.hdf5 (aloha), or the *.pkl that HIL-SERL records "
        "(hilserl: --fps and --task alone), into a LeRobotDataset in --root. The same command goes "
        "on with a conversion that was stopped.",
    )
    parser.positional("format", " or ".join(FORMATS)).completer = lambda **_: FORMATS
    parser.positional("input_dir", "folder of the recordings")
    parser.value("repo_id", "NAME", "of the dataset, as in USER/NAME", required=True)
    parser.value("root", "DIR", "where the dataset goes", read=on_this_machine, required=True)
    parser.value(
        "score",
        "FOLDER=REWARD",
        "repeatable; score_5=1.0 and score_1=0.0 when none is given. A reward above 0 makes the "
        "folder's episodes successes",
        read=score,
        repeated=True,
    )
    for name, values, meaning in CHOICES:
        parser.value(name, "|".join(values), meaning, values=values)
    parser.value(
        "fps", "N", "frames per second; 50 for aloha, must be given for hilserl", read=whole_number
    )
    parser.value("task", "TEXT", "what is done; by default the name of INPUT_DIR")
    parser.value("episodes", "0,3,10:20", "numbers of files, in each folder; score_1/7: in one")
    parser.value("mapping", "FILE.yaml", "other arms, arrays and cameras")
    parser.value("workers", "N", "processes; one for each processor by default", read=whole_number)
    parser.switch("skip_bad", "leave out what cannot be converted")
    parser.switch("push_to_hub", "upload it; needs HF_HUB_OFFLINE=0 and a token (`hf auth login`)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Convert recordings of another format."""
    from pld_ray.cli.ls import plain_console
    from pld_ray.data.aloha_file import read_layout
    from pld_ray.data.aloha_part import Settings
    from pld_ray.data.conversion import PROGRESS_FILE, convert
    from pld_ray.data.conversion_progress import TerminalSteps

    if args.format not in FORMATS:
        raise ConfigError(f"{args.format} cannot be read: give {' or '.join(FORMATS)}")
    if args.format == "hilserl":
        return run_hilserl(args)
    if args.push_to_hub:
        require_hub()
    input_dir, root = pathlib.Path(args.input_dir), pathlib.Path(args.root)
    given: dict[str, Any] = {
        name: value
        for name in ("fps", "episodes", *(name for name, _, _ in CHOICES))
        if (value := getattr(args, name)) is not None
    }
    if args.score:
        given["scores"] = scores(args.score)
    task = args.task or input_dir.resolve().name.replace("_", " ")
    settings = Settings(repo_id=args.repo_id, task=task, **given)
    console = plain_console()
    steps = TerminalSteps(console)
    layout = read_layout(args.mapping)
    outcome = convert(input_dir, root, settings, layout, args.workers, args.skip_bad, steps)
    for reason in outcome.left_out.values():
        console.print(f"left out: {reason}", soft_wrap=True)
    if outcome.left_out:
        console.print(f"the list is in {root / PROGRESS_FILE}", soft_wrap=True)
    done = "was converted before" if outcome.was_finished else "converted"
    print(f"{root}: {outcome.num_episodes} episodes, {outcome.num_frames} frames {done}")
    print(f"next: pld-ray data {shlex.quote(str(root))}")
    if args.push_to_hub:
        from lerobot.datasets import LeRobotDataset

        LeRobotDataset(settings.repo_id, root=root).push_to_hub()
    return 0


def run_hilserl(args: argparse.Namespace) -> int:
    """Convert HIL-SERL's pickles.

    Raises:
        ConfigError: a flag was given that does nothing there, or `--fps` was not.
    """
    unset: tuple[Any, ...] = (None, [], False)
    if idle := [f"--{name}" for name in ALOHA_ALONE if getattr(args, name) not in unset]:
        raise ConfigError(
            f"{', '.join(idle)}: without effect on hilserl's pickles, for which there are --fps "
            "and --task alone; leave it out"
        )
    if args.fps is None:
        raise ConfigError(
            "--fps is missing: hilserl's pickles do not tell the steps per second of the robot; "
            "give it, as in --fps=10"
        )
    from pld_ray.cli.ls import plain_console
    from pld_ray.data.conversion_progress import TerminalSteps
    from pld_ray.data.hilserl import convert_hilserl

    source, root = pathlib.Path(args.input_dir), pathlib.Path(args.root)
    task = args.task or source.resolve().stem.replace("_", " ")
    with TerminalSteps(plain_console()).phase("converting", 0, "episodes") as advance:
        writer = convert_hilserl(source, root, args.fps, task, lambda: advance(1))
    print(f"{root}: {len(writer)} episodes, {sum(writer.lengths)} frames converted")
    print(f"next: pld-ray data {shlex.quote(str(root))}")
    return 0


def score(text: str) -> tuple[str, float]:
    """`FOLDER=REWARD`."""
    folder, _, value = text.rpartition("=")
    try:
        reward = float(value)
    except ValueError:
        reward = math.nan
    if not folder or not math.isfinite(reward):
        raise ValueError("FOLDER=REWARD with a finite number, as in score_5=1.0")
    return folder.strip("/"), reward


def scores(given: list[tuple[str, float]]) -> dict[str, float]:
    """Folder -> reward; ConfigError where a folder is given twice."""
    found: dict[str, float] = {}
    for folder, reward in given:
        if folder in found:
            raise ConfigError(f"--score={folder} is given twice: keep one of them")
        found[folder] = reward
    return found


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
