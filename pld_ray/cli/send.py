"""`pld-ray send`."""

from __future__ import annotations

from pld_ray.cli.arguments import pop_value

USAGE = """usage: pld-ray send RUN_DIR [--tracking_uri=URI]

Sends to MLflow what a run left in its spool because the server was away when it ended.

  --tracking_uri=URI    where the run's MLflow store is now, if it has moved
"""


def run(args: list[str]) -> int:
    """Send a spool; exit status 1 when something is still left."""
    from pld_ray.config import ConfigError
    from pld_ray.jobs.open_tracker import send_tracked

    uri = pop_value(args, "tracking_uri")
    if len(args) != 1:
        raise ConfigError(USAGE.splitlines()[0])
    report = send_tracked(args[0], uri)
    left = f", {report.num_left} are left: try again" if report.num_left else ""
    print(f"sent {report.num_sent} values to {report.tracking_uri}{left}")
    return 1 if report.num_left else 0
