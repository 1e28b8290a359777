"""`pld-ray report`."""

from __future__ import annotations

import argparse
import json

from pld_ray.cli.arguments import Parser, on_this_machine


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "report",
        "RUN_OR_SWEEP is the folder of a run or of a sweep, or an MLflow run id. Several "
        "are compared.",
    )
    parser.positional("run_or_sweep", "at least one", "+")
    parser.value(
        "output_dir",
        "DIR",
        "where report.html, curves.png, trials.csv and points.csv go; by default `report` in the "
        "folder given, outputs/report for several",
        read=on_this_machine,
    )
    parser.value("tracking_uri", "URI", "the MLflow store of run ids; for folders, if it has moved")
    parser.value(
        "threshold",
        "0.8",
        "success rate whose first reaching counts as sample efficiency",
        default=0.8,
        read=success_rate,
    )
    parser.switch("json", "print the figures and the paths as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the report and say where it is."""
    from pld_ray.report.write import make_report

    made = make_report(
        args.run_or_sweep,
        output_dir=args.output_dir,
        tracking_uri=args.tracking_uri,
        threshold=args.threshold,
    )
    if args.json:
        print(json.dumps(made, indent=1))
        return 0
    runs, settings = len(made["trials"]), len(made["points"])
    print(
        f"{made['title']}: {runs} run{'s' * (runs != 1)}, {settings} setting{'s' * (settings != 1)}"
    )
    if made["points"] and made["points"][0]["iqm_success"] is not None:
        best = made["points"][0]
        crown = "highest" if made["separation"] else "best" if settings > 1 else "success"
        remark = f", {made['separation']}" if made["separation"] else ""
        figure = f"{best['iqm_success']:.0%} (n = {best['n_seeds']})"
        print(f"{crown}: {best['point']}: {figure}{remark}")
    for missing in made["missing"]:
        print(f"missing: {missing}")
    for path in made["files"]:
        print(f"written: {path}")
    return 0


def success_rate(text: str) -> float:
    """A success rate in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ValueError("a success rate in (0, 1], such as 0.8")
    return value
