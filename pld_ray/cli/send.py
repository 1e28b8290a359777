"""`pld-ray send`."""

from __future__ import annotations

import argparse

from pld_ray.cli.arguments import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "send",
        "Sends to MLflow what a run could not send because the server was away when it ended.",
    )
    parser.positional("run_dir", "folder of the run")
    parser.value("tracking_uri", "URI", "where the run's MLflow store is now, if it has moved")
    return parser


def run(args: argparse.Namespace) -> int:
    """Send it; exit status 1 when something is still left."""
    from pld_ray.jobs.open_tracker import send_tracked

    report = send_tracked(args.run_dir, args.tracking_uri)
    left = f", {report.num_left} are left: try again" if report.num_left else ""
    print(f"sent {report.num_sent} values to {report.tracking_uri}{left}")
    return 1 if report.num_left else 0
