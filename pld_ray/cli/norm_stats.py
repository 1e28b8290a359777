"""`pld-ray norm-stats`."""

from __future__ import annotations

import argparse
import pathlib
import shlex

from pld_ray.cli.arguments import Parser, on_this_machine, whole_number
from pld_ray.config import ConfigError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "norm-stats",
        "Means, deviations and 1 % and 99 % quantiles of state and actions, over the "
        "windows of H actions that training sees, in OpenPI's format. Written to "
        "DATASET/norm_stats.json.",
    )
    parser.positional("dataset", "folder of a LeRobotDataset")
    parser.value(
        "horizon",
        "1",
        "actions of a window; those past an episode's end are left out",
        default=1,
        read=whole_number,
    )
    parser.value(
        "delta",
        "6,-1,6,-1",
        "which actions are differences to the state at the window's start, counted as OpenPI does: "
        "6,-1,6,-1 is six relative, one absolute, six relative, one absolute",
    )
    parser.value("output", "FILE", "another place", read=on_this_machine)
    return parser


def run(args: argparse.Namespace) -> int:
    """Compute and save the statistics of a dataset."""
    from pld_ray.data.dataset import Dataset
    from pld_ray.data.norm_stats import FILE, compute_norm_stats, parse_delta, write_norm_stats

    dataset = Dataset(args.dataset)
    path = pathlib.Path(args.output) if args.output else dataset.root / FILE
    if path.is_dir():
        named = shlex.quote(str(path / FILE))
        raise ConfigError(f"{path} is a folder: name the file, as in --output={named}")
    stats = compute_norm_stats(dataset, args.horizon, parse_delta(args.delta) if args.delta else ())
    write_norm_stats(path, stats)
    for name, feature in (("state", "observation.state"), ("actions", "action")):
        print(f"{name:24}      mean       std       q01       q99")
        of_all = stats[name]
        for k, label in enumerate(dataset.names(feature)):
            values = (of_all.mean[k], of_all.std[k], of_all.q01[k], of_all.q99[k])
            print(f"  {label:22}" + "".join(f"{value:10.4g}" for value in values))
    print(f"written to {path}")
    return 0
