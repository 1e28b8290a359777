"""`pld-ray register`."""

from __future__ import annotations

import json
import pathlib

from pld_ray.cli.arguments import pop_flag, pop_value

USAGE = """usage: pld-ray register RUN_OR_SWEEP --name=NAME [options]

Makes base + residual of a run's checkpoint, or of the best trial's of a sweep, a new version of the
registered model NAME in MLflow: one model that takes the environment's observations and acts alone.

  --checkpoint=best     folder below RUN/checkpoints
  --alias=best          alias that moves to the new version
  --tracking_uri=URI    where the run's MLflow store is now, if it has moved
  --trust               run the code that a foreign run names
"""


def run(args: list[str]) -> int:
    """Register a policy and say how to load it."""
    from pld_ray.config import ConfigError

    name, checkpoint = pop_value(args, "name"), pop_value(args, "checkpoint") or "best"
    trust = pop_flag(args, "trust")
    alias, uri = pop_value(args, "alias") or "best", pop_value(args, "tracking_uri")
    if len(args) != 1 or name is None:
        raise ConfigError(USAGE.splitlines()[0])
    folder = best_run(pathlib.Path(args[0]).resolve())

    from pld_ray.registry import register_policy

    made = register_policy(
        folder, name, checkpoint=checkpoint, alias=alias, tracking_uri=uri, trust=trust
    )
    print(
        f"{folder.name}, checkpoint {checkpoint}, is version {made.version} of {name} at "
        f"{made.tracking_uri}\n"
        f'load it with: pld_ray.registry.load_policy("{made.uri}", "{made.tracking_uri}")'
    )
    return 0


def best_run(folder: pathlib.Path) -> pathlib.Path:
    """The folder itself, or that of a sweep's best trial.

    Raises:
        ConfigError: a sweep that has no best trial yet.
    """
    from pld_ray.config import ConfigError

    if not (folder / "sweep.json").is_file():
        return folder
    try:
        best = json.loads((folder / "summary.json").read_text())["best"]
        return folder / "trials" / str(best["trial"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is a sweep that is not over yet: give one of its trials/*"
        ) from None
