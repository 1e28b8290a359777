"""Sweeps and runs in a real MLflow store, as `pld-ray` leaves them."""

from __future__ import annotations

import itertools
import math
import pathlib
import random
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from pld_ray.tracking.mlflow_record import write_record

TOTAL, INTERVAL, BASE = 36_000, 3_000, 0.56
TASK = "pick_up_the_can_and_place_it_in_the_bin"
START_MS = 1_760_000_000_000


class Tracked:
    """Writes runs through `MlflowClient`."""

    def __init__(self, uri: str, experiment: str = "pld-ray") -> None:
        self.uri = uri
        self.client = MlflowClient(uri, uri)
        found = self.client.get_experiment_by_name(experiment)
        self.experiment = (
            found.experiment_id if found else self.client.create_experiment(experiment)
        )

    def run(
        self,
        name: str,
        *,
        params: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        metrics: dict[str, list[tuple[int, float]]] | None = None,
        status: str = "FINISHED",
        folder: pathlib.Path | None = None,
        parent: str | None = None,
    ) -> str:
        """One run; `folder` gets its `mlflow_run.json`. Returns the run id."""
        tags = {"pld_ray.kind": "train", "task": TASK, **(tags or {})}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        run_id = self.client.create_run(
            self.experiment, start_time=START_MS, tags=tags, run_name=name
        ).info.run_id
        points = [
            Metric(key, value, START_MS + step, step)
            for key, series in (metrics or {}).items()
            for step, value in series
        ]
        for start in range(0, len(points), 1000):
            self.client.log_batch(run_id, metrics=points[start : start + 1000])
        self.client.log_batch(run_id, params=[Param(k, str(v)) for k, v in (params or {}).items()])
        self.client.set_terminated(run_id, status, end_time=START_MS + 3_600_000)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_record(folder, self.uri, run_id)
        return run_id

    def tag(self, run_id: str, **tags: str) -> None:
        """Add tags."""
        self.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])


def learning_run(
    final: float,
    halfway: float,
    *,
    rng: random.Random,
    end: int = TOTAL,
    held: bool = True,
    scale: float = 0.5,
    schedule: str = "constant",
    steps_per_s: float = 42.0,
    utd: float = 1.0,
) -> dict[str, list[tuple[int, float]]]:
    """Metrics of a run whose success climbs from the base policy's to `final`.

    Args:
        halfway: environment steps at which half of the climb is done.
        end: environment steps at which the run ended.
        held: whether it was evaluated on the held states.
    """

    def success(step: int) -> float:
        climbed = 1 / (1 + math.exp(-(step - halfway) / 3_000))
        noisy = BASE + (final - BASE) * climbed + rng.gauss(0, 0.025)
        return round(min(1.0, max(0.0, noisy)) * 50) / 50

    evaluations = range(INTERVAL, end + 1, INTERVAL)
    reports = range(500, end + 1, 500)
    metrics = {
        "eval/base_success": [(0, BASE)],
        "eval/n_episodes": [(0, 100.0), *((s, 50.0) for s in evaluations)],
        "eval/residual_success": [(s, success(s)) for s in evaluations],
        "residual_scale": [
            (s, scale * min(1.0, s / 15_000) if schedule == "linear" else scale) for s in reports
        ],
        "updates": [(s, max(0.0, (s - 6_000) * utd)) for s in reports],
        "time/wall_s": [(s, s / steps_per_s) for s in reports],
        "learner/critic_loss": [(s, rng.random()) for s in reports],
    }
    if held:
        metrics["eval/held_residual_success"] = [(end, success(end))]
        metrics["eval/held_base_success"] = [(end, BASE)]
    return metrics


def make_sweep(
    store: Tracked, folder: pathlib.Path, *, seeds: int = 3, name: str = "residual scale and UTD"
) -> str:
    """A sweep of 12 points; one trial fails and one is stopped early. Returns the parent's id."""
    rng = random.Random(0)
    parent = store.run(
        name,
        tags={"pld_ray.kind": "sweep", "sweep": name},
        params={"sweep.name": name},
        folder=folder,
    )
    points = list(itertools.product((0.1, 0.25, 0.5, 1.0), (0.5, 1.0, 2.0)))
    for number, ((scale, utd), seed) in enumerate(itertools.product(points, range(seeds))):
        trial = f"t{number:04d}"
        final = min(0.99, 0.6 + 0.42 * scale**0.6 - 0.04 * abs(utd - 1.0) + rng.gauss(0, 0.02))
        halfway = 21_000 - 5_000 * utd + 4_000 * (1 - scale) + rng.gauss(0, 800)
        tags = {
            "pld_ray.kind": "trial",
            "sweep": name,
            "trial": trial,
            "point": f"algorithm.residual_scale={scale:.4g}, algorithm.utd={utd:.4g}",
            "seed": str(seed),
            "suite": "pld_tabletop",
            "preset": "tabletop",
            "base_policy": "3fd0a7c1b2e94d55",
            "pld_ray.version": "0.1.0",
            "mlflow.source.git.commit": "3b2cf0d8f5ab94f2f4a4a1a7e0a5a0c7e61f1d11",
            "cluster": "1 node, 16 CPUs, 1 GPU",
            "failure": "",
            "stopped": "",
        }
        status, end, held = "FINISHED", TOTAL, True
        if (scale, utd, seed) == (1.0, 2.0, 1):
            status, end, held = "FAILED", 12_000, False
            tags["failure"] = "NonFiniteTrainingError: critic_loss is NaN at update 5,210"
        if (scale, seed) == (0.1, 2):
            end, held = 15_000, False
            tags["stopped"] = "by the scheduler or the user at 15000 steps"
        run_dir = folder / "trials" / trial
        tags["run_dir"] = str(run_dir)
        store.run(
            f"{trial} {tags['point']}, seed={seed}",
            params={
                "algorithm.residual_scale": scale,
                "algorithm.utd": utd,
                "algorithm.gamma": 0.98,
                "env.task": TASK,
                "seed": seed,
                "output_dir": run_dir,
            },
            tags=tags,
            metrics=learning_run(
                final,
                halfway,
                rng=rng,
                end=end,
                held=held,
                scale=scale,
                schedule="linear" if scale == 1.0 else "constant",
                steps_per_s=60 - 12 * utd + rng.gauss(0, 1),
                utd=utd,
            ),
            status=status,
            folder=run_dir,
            parent=parent,
        )
    return parent


def differing_runs(
    store: Tracked, root: pathlib.Path, count: int, evaluations: int = 2
) -> list[str]:
    """Runs that differ in so much that no name holds it; returns their folders."""
    for number in range(count):
        params = {f"algorithm.key_{k}": f"value_{k}_of_{number}" for k in range(6)}
        metrics = {"eval/residual_success": [(1000 * (i + 1), 0.5) for i in range(evaluations)]}
        folder = root / f"run_{number}"
        store.run("seed0", params=params, metrics=metrics, folder=folder)
    return [str(root / f"run_{number}") for number in range(count)]
