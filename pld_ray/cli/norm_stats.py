"""`pld-ray norm-stats`."""

from __future__ import annotations

import pathlib

from pld_ray.cli.arguments import pop_value
from pld_ray.config import ConfigError

USAGE = """usage: pld-ray norm-stats DATASET [--horizon=H] [--delta=6,-1,6,-1] [--output=FILE]

Means, deviations and 1 % and 99 % quantiles of state and actions, over the windows of H actions
that training sees, in OpenPI's format. Written to DATASET/norm_stats.json.

  --horizon=1       actions of a window; those past an episode's end are left out
  --delta=LIST      which actions are differences to the state at the window's start, counted as
                    OpenPI does: 6,-1,6,-1 is six relative, one absolute, six relative, one absolute
  --output=FILE     another place
"""


def run(args: list[str]) -> int:
    """Compute and save the statistics of a dataset."""
    from pld_ray.cli.convert import positive
    from pld_ray.data.dataset import Dataset
    from pld_ray.data.norm_stats import FILE, compute_norm_stats, parse_delta, write_norm_stats

    horizon, delta = positive(args, "horizon") or 1, pop_value(args, "delta")
    output = pop_value(args, "output")
    if len(args) != 1 or args[0].startswith("--"):
        raise ConfigError(f"{' '.join(args) or 'no dataset'}: {USAGE.splitlines()[0]}")
    dataset = Dataset(args[0])
    stats = compute_norm_stats(dataset, horizon, parse_delta(delta) if delta else ())
    path = pathlib.Path(output) if output else dataset.root / FILE
    write_norm_stats(path, stats)
    for name, feature in (("state", "observation.state"), ("actions", "action")):
        print(f"{name:24}      mean       std       q01       q99")
        of_all = stats[name]
        for k, label in enumerate(dataset.names(feature)):
            values = (of_all.mean[k], of_all.std[k], of_all.q01[k], of_all.q99[k])
            print(f"  {label:22}" + "".join(f"{value:10.4g}" for value in values))
    print(f"written to {path}")
    return 0
