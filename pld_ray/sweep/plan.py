"""From a sweep to Ray Tune's objects: scheduler, searcher, resources, stop rules."""

from __future__ import annotations

import json
import math
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import Searcher
from ray.tune.stopper import TimeoutStopper

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import encode
from pld_ray.files.lock import this_process
from pld_ray.jobs.cluster import demands
from pld_ray.jobs.placing import Resources
from pld_ray.sweep.config import Sweep, SweepConfig
from pld_ray.sweep.space import Point, bounds, points, tune_domain, values
from pld_ray.sweep.trial import SweepTrial, resolve_seed

TIME = "env_steps"


def sweep_points(sweep: Sweep) -> list[Point]:
    """The points of a sweep, one for each trial; a population begins with draws of what mutates.

    Raises:
        ConfigError: there are fewer different draws than the sweep wants; a population may begin
            with equal ones.
    """
    config = sweep.config
    space = {**config.scheduler.mutations, **config.space}
    return points(
        space,
        config.variants,
        config.seeds,
        config.num_samples,
        config.search_seed,
        distinct=sweep.distinct and config.scheduler.type != "pbt",
    )


def num_trials(sweep: Sweep) -> int:
    """Trials of the whole sweep."""
    config = sweep.config
    if config.searcher == "optuna":
        return config.num_samples * len(config.seeds)
    return len(sweep_points(sweep))


def points_now(sweep: Sweep, known: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """The points of a sweep, where those that were begun are now: only a population's move."""
    moving = set(sweep.config.scheduler.mutations)
    return [
        {**point, **{a: v for a, v in known.get(trial_id(i), {}).items() if a in moving}}
        for i, point in enumerate(sweep_points(sweep))
    ]


def check_begun(sweep: Sweep, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to go on with a trial at another point than the one that it was begun at.

    A population's trial may have taken over any other's.

    Args:
        sweep: that is resumed.
        known: trial -> the point that its folder has.

    Raises:
        ConfigError: this release draws other points than the one that began the sweep.
    """
    if sweep.config.searcher == "optuna" or sweep.config.scheduler.type == "pbt":
        return
    for i, point in enumerate(sweep_points(sweep)):
        before = known.get(trial_id(i), {})
        for axis in before.keys() & point.keys():
            if json.dumps(before[axis]) != json.dumps(point[axis], default=str):
                raise ConfigError(
                    f"{trial_id(i)} was begun with {axis}={before[axis]} and would go on with "
                    f"{axis}={point[axis]}, because this pld-ray draws other points: resume the "
                    "sweep with the release that began it"
                )


def param_space(
    sweep: Sweep, known: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """What Tune draws trials from: the points themselves, or the domains of a search.

    Args:
        sweep: whose space it is.
        known: trial -> where it is now, of those that were begun; a population's have moved.
    """
    config = sweep.config
    if config.searcher == "optuna":
        axes = {axis: tune_domain(domain) for axis, domain in config.space.items()}
        if config.variants:
            axes["variant"] = tune.choice(list(config.variants))
        return {"point": axes}
    named = [{"id": trial_id(i), **p} for i, p in enumerate(points_now(sweep, known or {}))]
    return {"point": tune.grid_search(named)}


def trial_id(index: int) -> str:
    return f"t{index:04d}"


def searcher(config: SweepConfig, known: Sequence[Mapping[str, Any]] = ()) -> Searcher | None:
    """Optuna's TPE, each point repeated with every seed; None draws the points beforehand.

    Args:
        config: of the sweep.
        known: points that were drawn, which are suggested again before any new one, each as often
            as it is in there.
    """
    if config.searcher != "optuna":
        return None
    import optuna
    from ray.tune.search import Repeater
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    axes = {*config.space, *(["variant"] if config.variants else [])}
    again = [
        {f"point/{axis}": v for axis, v in point.items()} for point in known if point.keys() == axes
    ]
    search = OptunaSearch(
        metric=config.metric,
        mode="max",
        seed=config.search_seed,
        points_to_evaluate=again or None,
    )
    if len(config.seeds) == 1:
        return search
    return Repeater(search, repeat=len(config.seeds), set_index=True)


def scheduler(sweep: Sweep) -> TrialScheduler:
    """Tune's scheduler; its time is environment steps."""
    settings = sweep.config.scheduler
    longest = sweep.config.stop.env_steps or sweep.base.total_steps
    common = {"time_attr": TIME, "metric": sweep.config.metric, "mode": "max"}
    if settings.type == "asha":
        return ASHAScheduler(
            **common,
            max_t=longest,
            grace_period=min(settings.grace_steps, longest),
            reduction_factor=settings.reduction_factor,
        )
    if settings.type == "hyperband":
        # its brackets count from 1: evaluations, of which every report is one
        # and the last one comes at the end, whether or not the interval divides it
        evaluations = max(1, math.ceil(longest / max(1, sweep.base.evaluation.interval_steps)))
        return HyperBandScheduler(
            **{**common, "time_attr": "training_iteration"},
            max_t=evaluations,
            reduction_factor=settings.reduction_factor,
        )
    if settings.type == "pbt":
        # it recommends reuse_actors; a paused trial would hold its folder in a process set aside
        warnings.filterwarnings("ignore", message="Consider boosting PBT performance")
        return PopulationBasedTraining(
            **common,
            perturbation_interval=settings.interval_steps,
            quantile_fraction=settings.quantile,
            hyperparam_mutations={
                "point": {
                    axis: values(d) or tune_domain(d) for axis, d in settings.mutations.items()
                }
            },
            custom_explore_fn=WithinBounds(settings.mutations),
            log_config=False,
        )
    return FIFOScheduler()


class WithinBounds:
    """Tune multiplies a mutated number by 0.8 or 1.2, whatever its domain; this brings it back."""

    def __init__(self, mutations: Mapping[str, Any]) -> None:
        self.bounds = {axis: bounds(domain) for axis, domain in mutations.items()}

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        point = config["point"]
        for axis, limits in self.bounds.items():
            if limits is not None:
                point[axis] = min(max(point[axis], limits[0]), limits[1])
        return config


class WallTime(TimeoutStopper):
    """Tune's own for `time_budget_s`, which remembers whether it ended the sweep."""

    over = False

    def stop_all(self) -> bool:
        self.over = bool(super().stop_all())
        return self.over


def roles(sweep: Sweep, config: TrainConfig) -> list[tuple[str, Resources]]:
    """What one trial reserves: its own process first, then its runners, learners, replicas."""
    own = {"CPU": sweep.config.cpus_per_trial, **sweep.config.resources_per_trial}
    if not config.runners.num_learners and config.runners.num_gpus_per_learner:
        own["GPU"] = config.runners.num_gpus_per_learner  # it learns itself
    return [("trial", own), *demands(config)]


def bundles(sweep: Sweep, config: TrainConfig) -> list[Resources]:
    """The resources of `roles`. Ray refuses a bundle of nothing but for the trial's own."""
    own, *others = (resources for _, resources in roles(sweep, config))
    return [own, *filter(None, others)]


def trainable(sweep: Sweep, context: Mapping[str, Any]) -> Any:
    """`SweepTrial` with what all trials share, and what each reserves."""

    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        point = resolve_seed(config["point"], config.get("__trial_index__"), sweep.config.seeds)
        trial = sweep.trial_config(point)
        return tune.PlacementGroupFactory(bundles(sweep, trial), strategy=trial.placement.strategy)

    return tune.with_resources(tune.with_parameters(SweepTrial, sweep=dict(context)), resources)


def context(
    sweep: Sweep, folder: pathlib.Path, uri: str, parent_run_id: str, resumed: bool = False
) -> dict[str, Any]:
    """What every trial knows of the sweep, as plain values."""
    tracking = {**encode(sweep.config.tracking), "uri": uri or None}
    return {
        "folder": str(folder),
        "settings": encode(sweep.config),
        "base": encode(sweep.base),
        "preset": sweep.preset,
        "started_in": sweep.started_in,
        "tracking": tracking,
        "parent_run_id": parent_run_id,
        "resumed": resumed,
        "host": this_process().host,
    }


def rungs(config: SweepConfig, total_steps: int) -> list[int]:
    """Environment steps at which ASHA compares."""
    settings = config.scheduler
    if settings.type != "asha":
        return []
    count = int(math.log(max(1, total_steps / settings.grace_steps), settings.reduction_factor))
    return [settings.grace_steps * settings.reduction_factor**k for k in range(count + 1)]
