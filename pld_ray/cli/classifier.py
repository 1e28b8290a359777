"""`pld-ray classifier`."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import shlex

from pld_ray.cli.arguments import Parser, on_this_machine, whole_number

DEFAULT_EPISODES = 60
ACTIONS = {
    "collect": ("root", "episodes", "hold", "init_states", "device"),
    "train": (),
    "evaluate": ("classifier",),
}
"""What is done -> the flags that it takes."""
FLAGS = ("root", "episodes", "hold", "init_states", "device", "classifier")


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "classifier",
        "collect: play episodes with cameras and label every frame, from the simulator or by key; "
        "noise is added in simulation, and none on a real arm (--env.robot). Settings are those of "
        "pld-ray train.\n"
        "train: learn a reward classifier from such datasets, --dataset=DIR; settings are those "
        "that --explain lists.\n"
        "evaluate: precision and recall of --classifier=DIR on other datasets.\n"
        "pld-ray train --env.reward_classifier=DIR learns from its verdict. Experimental: run "
        "on one camera of the embedded suite (--encoder=cnn), where three policies learnt so.",
        takes_settings=True,
        config_class="ClassifierConfig",
        other_class="TrainConfig",
        other_action="collect",
    )
    action = parser.positional("action", ", ".join(ACTIONS))
    action.completer = lambda **_: ACTIONS
    parser.value("root", "DIR", "collect: folder of the dataset", read=on_this_machine)
    parser.value(
        "episodes",
        "N",
        f"collect: episodes of the dataset; {DEFAULT_EPISODES} unless given",
        read=whole_number,
    )
    parser.value(
        "hold", "N", "collect: steps after a success that are kept, 10 unless given", read=count
    )
    parser.switch("init_states", "collect: start from the first N stored init states")
    parser.value("device", "NAME", "collect: a person takes over, as --intervention.device")
    parser.value("classifier", "DIR", "evaluate: folder of a classifier")
    return parser


def count(text: str) -> int:
    """A number from 0 on."""
    return 0 if text == "0" else whole_number(text)


def run(args: argparse.Namespace) -> int:
    """Collect, train or evaluate."""
    from pld_ray.config import ConfigError

    if args.action is None:  # not required with --print_config
        args.action = "train"
    if args.action not in ACTIONS:
        raise ConfigError(f"{args.action}: pld-ray classifier knows {', '.join(ACTIONS)}")
    given = [flag for flag in FLAGS if getattr(args, flag) not in (None, False)]
    if foreign := [f"--{flag}" for flag in given if flag not in ACTIONS[args.action]]:
        raise ConfigError(f"pld-ray classifier {args.action} takes no {', '.join(foreign)}")
    return {"collect": collect, "train": train, "evaluate": evaluate}[args.action](args)


def collect(args: argparse.Namespace) -> int:
    """Frames into a dataset."""
    from pld_ray.cli.collect import set_device
    from pld_ray.cli.ls import plain_console
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import dump_config, load_config
    from pld_ray.data.conversion_progress import TerminalSteps

    config = load_config(TrainConfig, args.settings)
    set_device(config, args.device or config.intervention.device)
    if args.print_config:
        print(dump_config(config), end="")
        return 0
    if args.root is None:
        raise ConfigError("--root=DIR is missing: the folder of the dataset")

    from pld_ray.data.episode_writer import kept_so_far
    from pld_ray.jobs.classifier_frames import FrameGoal, collect_frames

    episodes = args.episodes or DEFAULT_EPISODES
    goal = FrameGoal(episodes, 10 if args.hold is None else args.hold, args.init_states)
    counted = [0, 0]
    done = kept_so_far(pathlib.Path(args.root))
    with TerminalSteps(plain_console()).phase("recording", episodes, "episodes", done) as advance:

        def on_episode(successes: int, frames: int) -> None:
            counted[0] += successes
            counted[1] += frames
            advance(1)

        writer = collect_frames(config, pathlib.Path(args.root), goal, on_episode)
    print(
        f"{writer.root}: {len(writer)} episodes, {sum(writer.successes)} with a success; now "
        f"{counted[1]} frames, {counted[0]} of them show it\n"
        f"next: pld-ray classifier train --dataset={shlex.quote(str(writer.root))}"
    )
    return 0


def train(args: argparse.Namespace) -> int:
    """A classifier from datasets."""
    from pld_ray.cli.ls import plain_console
    from pld_ray.config import ConfigError
    from pld_ray.config.classifier import ClassifierConfig
    from pld_ray.config.file import dump_config, load_config
    from pld_ray.data.conversion_progress import TerminalSteps

    config: ClassifierConfig = load_config(ClassifierConfig, args.settings)
    if args.print_config:
        print(dump_config(config), end="")
        return 0
    if not config.dataset:
        raise ConfigError("--dataset=DIR is missing: a dataset of pld-ray classifier collect")

    from pld_ray.jobs.classifier import train_classifier

    with TerminalSteps(plain_console()).phase("training", config.steps, "updates") as advance:
        trained = train_classifier(config, lambda step, loss: advance(1))
    named = shlex.quote(config.output_dir)
    print(
        f"{config.output_dir}: threshold {trained.classifier.threshold:.3f}, "
        f"{in_words(trained.validation)}\n"
        f"curve: {trained.picture}\n"
        f"next: pld-ray classifier evaluate --classifier={named} --dataset=OTHER\n"
        f"      pld-ray train --env.reward_classifier={named}"
    )
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """A classifier on other datasets."""
    from pld_ray.config import ConfigError
    from pld_ray.config.classifier import ClassifierConfig
    from pld_ray.config.file import dump_config, load_config

    config: ClassifierConfig = load_config(ClassifierConfig, args.settings)
    if args.print_config:
        print(dump_config(config), end="")
        return 0
    for flag, given in (("classifier", args.classifier), ("dataset", config.dataset)):
        if not given:
            raise ConfigError(f"--{flag}=DIR is missing")

    from pld_ray.jobs.classifier import evaluate_classifier, plain

    figures, picture = evaluate_classifier(args.classifier, config.dataset)
    print(f"{in_words(figures)}\ncurve: {picture}\n{json.dumps(plain(figures))}")
    return 0


def in_words(figures: dict[str, float]) -> str:
    """Precision and recall of frames, and of the verdict on episodes."""
    shown = {k: "none" if math.isnan(v) else f"{v:.1%}" for k, v in figures.items()}
    return (
        f"{figures['frames']} frames: precision {shown['precision']}, recall {shown['recall']}; "
        f"{figures['episodes']} episodes: precision {shown['episode_precision']}, "
        f"recall {shown['episode_recall']}"
    )
