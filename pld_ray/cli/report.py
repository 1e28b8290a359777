"""`pld-ray report`."""

from __future__ import annotations

import json

from pld_ray.cli.arguments import pop_flag, pop_value

USAGE = """usage: pld-ray report RUN_OR_SWEEP... [--output_dir=DIR] [--threshold=0.8] [--json]

RUN_OR_SWEEP is the folder of a run or of a sweep, or an MLflow run id. Several are compared.

  --output_dir=DIR      where report.html, curves.png, trials.csv and points.csv go; by default
                        `report` in the folder given, outputs/report for several
  --tracking_uri=URI    the MLflow store of run ids; for folders, if it has moved
  --threshold=0.8       success rate whose first reaching counts as sample efficiency
  --json                print the figures and the paths as JSON
"""


def run(args: list[str]) -> int:
    """Write the report and say where it is."""
    from pld_ray.config import ConfigError
    from pld_ray.report.write import make_report

    as_json = pop_flag(args, "json")
    output_dir, tracking_uri = pop_value(args, "output_dir"), pop_value(args, "tracking_uri")
    threshold = parse_threshold(pop_value(args, "threshold") or "0.8")
    unknown = [arg for arg in args if arg.startswith("--")]
    if unknown or not args:
        problem = f"{' '.join(unknown)} is none of its flags" if unknown else "no run was given"
        raise ConfigError(f"{problem}; {USAGE.splitlines()[0]}")
    made = make_report(args, output_dir=output_dir, tracking_uri=tracking_uri, threshold=threshold)
    if as_json:
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
    for words in made["missing"]:
        print(f"missing: {words}")
    for path in made["files"]:
        print(f"written: {path}")
    return 0


def parse_threshold(text: str) -> float:
    """A success rate in (0, 1].

    Raises:
        ConfigError: it is none.
    """
    from pld_ray.config import ConfigError

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ConfigError(f"--threshold={text}: must be a success rate in (0, 1], such as 0.8")
    return value
