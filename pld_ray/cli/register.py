"""`pld-ray register`."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from pld_ray.cli.arguments import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "register",
        "Makes base + residual of a run's checkpoint, or of the best trial's of a sweep, a "
        "new version of the registered model NAME in MLflow: one model that takes the "
        "environment's observations and acts alone.",
    )
    parser.positional("run_or_sweep", "its folder")
    parser.value("name", "NAME", "of the registered model", required=True)
    parser.value("checkpoint", "NAME", "folder below RUN/checkpoints; best, or the newest one")
    parser.value("alias", "best", "alias that moves to the new version", default="best")
    parser.value("tracking_uri", "URI", "where the run's MLflow store is now, if it has moved")
    parser.switch("trust", "run the code that a foreign run names")
    return parser


def run(args: argparse.Namespace) -> int:
    """Register a policy and say how to load it."""
    folder = best_run(pathlib.Path(args.run_or_sweep).resolve())

    from pld_ray.registry import register_policy
    from pld_ray.registry.success import in_words

    made = register_policy(
        folder,
        args.name,
        checkpoint=args.checkpoint,
        alias=args.alias,
        tracking_uri=args.tracking_uri,
        trust=args.trust,
    )
    print(
        f"{folder.name}, checkpoint {made.checkpoint}, is version {made.version} of {args.name} at "
        f"{made.tracking_uri}\n"
        f"its success: {in_words(made.tags) or 'not known of this checkpoint'}\n"
        f'load it with: pld_ray.registry.load_policy("{made.uri}", "{made.tracking_uri}")'
    )
    if made.warning:
        print(f"pld-ray: {made.warning}", file=sys.stderr)
    return 0


def best_run(folder: pathlib.Path) -> pathlib.Path:
    """The folder itself, or that of a sweep's best trial.

    Raises:
        ConfigError: a sweep that has no best trial yet.
    """
    from pld_ray.config import ConfigError
    from pld_ray.runs.layout import SUMMARY_FILE, SWEEP_FILE, trial_folder

    if not (folder / SWEEP_FILE).is_file():
        return folder
    try:
        best = json.loads((folder / SUMMARY_FILE).read_text())["best"]
        return trial_folder(folder, str(best["trial"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is a sweep that is not over yet: give one of its trials/*"
        ) from None
