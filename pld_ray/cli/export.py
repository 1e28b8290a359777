"""`pld-ray export`."""

from __future__ import annotations

import argparse
import pathlib

from pld_ray.cli.arguments import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "export",
        "Writes what a run of pld-ray acrlpd has learnt as a policy folder, which --policy.path of "
        "pld-ray train takes as its base policy.",
    )
    parser.positional("run", "folder of the run")
    parser.value("to", "DIR", "folder of the policy, new or empty", required=True)
    parser.value("checkpoint", "NAME", "one of RUN/checkpoints; best, or the newest, without it")
    parser.switch("trust", "open the environment that a foreign run names")
    return parser


def run(args: argparse.Namespace) -> int:
    """Export."""
    from pld_ray.jobs.export import export

    folder = pathlib.Path(args.to)
    checkpoint = export(pathlib.Path(args.run), folder, args.checkpoint, args.trust)
    print(f"{folder}: the policy of {checkpoint}\nnext: pld-ray train --policy.path={folder}")
    return 0
