"""`pld-ray sweep --dry_run`: the trials of a sweep and whether the cluster has room for them."""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter
from typing import Any

import ray
from rich.console import Console
from rich.table import Table

from pld_ray.jobs.cluster import alive_nodes, describe, running_ray
from pld_ray.jobs.elsewhere import located, other_cluster
from pld_ray.jobs.placing import Resources, fit_at_once, without_marks
from pld_ray.sweep import plan
from pld_ray.sweep.config import Sweep, label
from pld_ray.sweep.run import check_points


def preview(sweep: Sweep, as_json: bool = False) -> str:
    """The trial table, what each trial reserves, and how many fit at once; nothing is started.

    The cluster is that of `ray_address` or RAY_ADDRESS, else this machine.

    Raises:
        ConfigError: a point that cannot be a trial.
    """
    check_points(sweep)
    is_search = sweep.config.searcher == "optuna"
    found = [] if is_search else plan.sweep_points(sweep)
    config = sweep.trial_config(found[0] if found else {})
    wanted = plan.bundles(sweep, config)
    nodes = cluster_nodes(sweep)
    at_once = min(fit_at_once(wanted, nodes), sweep.config.max_concurrent or 10**9)
    steps = sweep.config.stop.env_steps or sweep.base.total_steps
    figures: dict[str, Any] = {
        "name": sweep.config.name,
        "folder": str(sweep.config.folder()),
        "num_trials": plan.num_trials(sweep),
        "env_steps_per_trial": steps,
        "resources_per_trial": total(wanted),
        "roles": dict(Counter(role for role, _ in plan.roles(sweep, config))),
        "nodes": [without_marks(node) for node in nodes],
        "trials_at_once": at_once,
        "rounds": math.ceil(plan.num_trials(sweep) / at_once) if at_once else None,
        "scheduler": sweep.config.scheduler.type,
        "rungs": plan.rungs(sweep.config, steps),
        "trials": [{"trial": plan.trial_id(i), **point} for i, point in enumerate(found)],
    }
    return json.dumps(figures, indent=1) if as_json else as_text(figures)


def cluster_nodes(sweep: Sweep) -> list[Resources]:
    """Resources of each node that the sweep would run on."""
    address = other_cluster(sweep.config)
    if ray.is_initialized():
        return alive_nodes()
    if not address:
        return [{"CPU": float(os.cpu_count() or 1)}]
    with running_ray(located(sweep.base, sweep.started_in), address):
        return alive_nodes()


def as_text(figures: dict[str, Any]) -> str:
    """The figures for people, at most 100 characters wide."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "seed", "point"):
        table.add_column(name, overflow="fold")
    for trial in figures["trials"]:
        point = {k: v for k, v in trial.items() if k != "trial"}
        table.add_row(trial["trial"], str(point.get("seed", "")), label(point))
    text = io.StringIO()
    console = Console(file=text, width=100, color_system=None)
    if figures["trials"]:
        console.print(table)
    else:
        console.print("points are drawn one after the other by the searcher")
    nodes = "; ".join(describe(node) for node in figures["nodes"])
    lines = [
        "",
        f"{figures['num_trials']} trials of {figures['env_steps_per_trial']:,} environment steps "
        f"-> {figures['folder']}",
        f"each reserves {describe(figures['resources_per_trial'])}",
        f"the cluster has {nodes}",
    ]
    if figures["trials_at_once"]:
        lines.append(f"{figures['trials_at_once']} at once, {figures['rounds']} rounds")
    else:
        lines.append("not one trial fits: ask for less (runners.*, cpus_per_trial) or add nodes")
    if figures["rungs"]:
        lines.append(f"ASHA compares at {', '.join(f'{r:,}' for r in figures['rungs'])} steps")
    return text.getvalue() + "\n".join(lines)


def total(bundles: list[Resources]) -> Resources:
    """The sum of bundles."""
    summed: Counter[str] = Counter()
    for bundle in bundles:
        summed.update(bundle)
    return dict(summed)
