"""The file of a sweep, read and checked."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any, Literal

from pld_ray.config import ConfigError, TrackingConfig, TrainConfig, check_amounts, check_custom
from pld_ray.config.acrlpd_train import config_class_of
from pld_ray.config.file import decode, encode, load_config, read_mapping
from pld_ray.config.keys import check_key, field_names, set_key
from pld_ray.config.presets import find_preset
from pld_ray.config.train import check_declared
from pld_ray.jobs.elsewhere import located, start_folder
from pld_ray.options import option
from pld_ray.sweep.checks import (
    check_changes,
    check_draws,
    check_in_one_process,
    check_set_once,
    check_size,
)
from pld_ray.sweep.space import Point, check_axes, check_repeats, split_keys, with_points_type


@dataclass
class SchedulerConfig:
    """Which trials are stopped early, or copied."""

    type: Literal["none", "asha", "hyperband", "pbt"] = option(
        "none", "`none`, `asha`, `hyperband` or `pbt`."
    )
    grace_steps: int = option(
        5_000, "Environment steps before ASHA may stop a trial.", within="[1, 1e10]"
    )
    reduction_factor: int = option(
        3, "ASHA and HyperBand keep one trial in so many at each rung.", within="[2, 100]"
    )
    interval_steps: int = option(
        5_000, "Environment steps between two perturbations of PBT.", within="[1, 1e10]"
    )
    quantile: float = option(
        0.25, "Share of the trials that PBT replaces by copies of the best.", within="(0, 0.5]"
    )
    mutations: dict[str, Any] = option(
        {}, "What PBT perturbs: configuration key -> domain, as in `space`."
    )


@dataclass
class StopConfig:
    """When trials, or the sweep, are over; each rule is off when None."""

    env_steps: int | None = option(
        None,
        "Environment steps of each trial; None is the base configuration's `total_steps`.",
        within="[1, 1e10]",
    )
    wall_time_s: float | None = option(
        None,
        "Seconds of the whole sweep; trials that still run are stopped early then.",
        within="(0, 1e9]",
        unit="s",
    )
    trial_wall_time_s: float | None = option(
        None, "Training seconds of a trial.", within="(0, 1e9]", unit="s"
    )
    success: float | None = option(
        None,
        "A trial whose evaluation reaches this success rate has learnt enough.",
        within="[0, 1]",
    )


@dataclass
class SweepConfig:
    """`pld-ray sweep FILE`."""

    name: str = option(
        "sweep", "Name of the sweep: of its folder and of its MLflow parent run.", name=True
    )
    base: str | None = option(
        None,
        "Configuration that every trial starts from: a shipped preset's name, or a file, relative "
        "to this one; None is the default one.",
        path="any",
    )
    set: dict[str, Any] = option({}, "Changes to it for every trial: dotted key -> value.")
    space: dict[str, Any] = option(
        {},
        "Dotted key -> domain: `{grid: [...]}`, `{choice: [...]}`, `{uniform: [low, high]}`, "
        "`{loguniform: [low, high]}`, `{quniform: [low, high, step]}`, `{randint: [low, "
        "high]}`, `{qloguniform: [low, high, step]}`, `{qrandint: [low, high, step]}`. "
        'Keys that change together are one entry, `"a, b": {grid: [[1, 2], [3, 4]]}`.',
    )
    variants: dict[str, Any] = option(
        {}, "Named sets of changes, each tried: name -> {dotted key: value}."
    )
    seeds: list[int] = option(
        [0],
        "Every point is tried once with each seed.",
        within="[0, 2147483647]",
        items=(1, 1000),
        distinct=True,
    )
    num_samples: int = option(
        1, "Draws from what is not a grid; each is tried with the whole grid.", within="[1, 10000]"
    )
    searcher: Literal["random", "optuna"] = option(
        "random", "`random`, or `optuna`: each draw learns from those before."
    )
    search_seed: int = option(0, "Seed of the draws.", within="[0, 2147483647]")
    metric: Literal["eval/residual_success", "best_success"] = option(
        "eval/residual_success",
        "What schedulers, searcher and the final table compare, greatest first: the last "
        "validation's success, or the best so far.",
    )
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    max_concurrent: int | None = option(
        None, "Trials at a time; None is as many as the cluster has room for.", within="[1, 10000]"
    )
    cpus_per_trial: float = option(
        1.0,
        "CPUs of a trial's own process; runners, learners and replicas come on top.",
        within="(0, 1024]",
    )
    resources_per_trial: dict[str, float] = option(
        {}, "Custom resources of that process, such as `{learning: 0.1}`.", within="[0, 1e6]"
    )
    max_failures: int = option(
        3, "Times that a trial starts anew from its checkpoint after dying.", within="[0, 1000]"
    )
    output_dir: str | None = option(
        None,
        "Folder of the sweep, on storage that every node has; None is `outputs/sweeps/<name>`.",
        path="new",
    )
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    ray_address: str | None = option(
        None,
        "A running Ray cluster (`auto`, `host:port`); None is that of RAY_ADDRESS, and without "
        "one, as with `local`, a Ray is started here.",
    )

    def folder(self) -> pathlib.Path:
        """The sweep's folder."""
        return pathlib.Path(self.output_dir or f"outputs/sweeps/{self.name}").resolve()

    def validate(self) -> None:
        """Raise ConfigError on the first value that cannot work by itself."""
        check_declared(self, is_new=True)
        check_amounts(
            {"cpus_per_trial": self.cpus_per_trial}
            | check_custom("resources_per_trial", self.resources_per_trial)
        )
        if self.searcher == "optuna" and self.scheduler.type == "pbt":
            raise ConfigError(
                "searcher=optuna and scheduler.type=pbt exclude each other: PBT draws"
            )
        if (self.scheduler.type == "pbt") != bool(self.scheduler.mutations):
            raise ConfigError("scheduler.mutations is what scheduler.type=pbt perturbs: give both")
        if "policy.path" in self.scheduler.mutations:
            raise ConfigError(
                "scheduler.mutations: policy.path cannot change within a trial, whose residual "
                "corrects one base policy; put it into a sweep without pbt"
            )


@dataclass
class Sweep:
    """A sweep that can run: its settings and the configuration its trials start from."""

    config: SweepConfig
    base: TrainConfig
    preset: str
    distinct: bool = True
    """Nothing is drawn twice; false for a sweep that an older release began."""
    started_in: pathlib.Path | None = None
    """Where its paths were typed, see `start_folder`; points keep them so."""

    def trial_config(self, point: Point) -> TrainConfig:
        """The configuration of a trial.

        Raises:
            ConfigError: a value has the wrong type, or the values do not go together.
        """
        mapping = encode(self.base)
        for key, value in self.changes(point).items():
            set_key(type(self.base), mapping, key, value)
        try:
            config: TrainConfig = located(decode(type(self.base), mapping), self.started_in)
            if self.config.stop.env_steps is not None:
                config.total_steps = self.config.stop.env_steps
            config.validate()
            check_in_one_process(config)
        except ConfigError as error:
            raise ConfigError(f"{describe(point)}: {error}") from error
        return config

    def changes(self, point: Point) -> dict[str, Any]:
        """Dotted key -> value of a point, its variant's included."""
        flat: dict[str, Any] = {}
        for axis, value in point.items():
            if axis == "variant":
                flat |= self.config.variants[value] or {}
            elif axis == "seed":
                flat["seed"] = value
            else:
                keys = split_keys(axis)
                flat |= dict(zip(keys, value, strict=True)) if len(keys) > 1 else {keys[0]: value}
        return with_points_type(flat, encode(self.base))


def load_sweep(args: list[str]) -> Sweep:
    """Read `FILE [--key=value ...]`.

    Raises:
        ConfigError: no file, an unknown key (with the closest known one), an empty space, a value
            that cannot be a trial's.
    """
    if not args or args[0].startswith("--"):
        raise ConfigError("pld-ray sweep takes a file first: pld-ray sweep FILE.yaml [--key=value]")
    file, overrides = pathlib.Path(args[0]), args[1:]
    if not file.is_file():
        raise ConfigError(f"{file}: no such sweep file; examples are in experiments/sweeps/")
    config = load_config(SweepConfig, [f"--config_path={file}", *overrides])
    if "name" not in read_mapping(file) and not any(a.startswith("--name") for a in overrides):
        config.name = file.stem
    return make_sweep(config, file)


def make_sweep(config: SweepConfig, file: pathlib.Path) -> Sweep:
    """The base configuration, and every key and value of the space checked against it.

    Raises:
        ConfigError: as `load_sweep`.
    """
    base, preset = load_base(config, file)
    of = type(base)
    known = field_names(of)
    places = {"set": config.set, "space": config.space, "scheduler.mutations": {}}
    places["scheduler.mutations"] = config.scheduler.mutations
    places |= {f"variants.{name}": changes or {} for name, changes in config.variants.items()}
    for place, mapping in places.items():
        if not isinstance(mapping, dict):
            raise ConfigError(f"{file}: {place} must be a mapping, not {mapping!r}")
        for axis in mapping:
            for key in split_keys(str(axis)):
                check_key(key, known, f"{file}: {place}: key ")
                if key == "seed" or key == "output_dir" or key.startswith("tracking."):
                    raise ConfigError(
                        f"{file}: {place}: {key} is the sweep's own: use seeds, output_dir or "
                        "tracking of the sweep"
                    )
    for place in ("space", "scheduler.mutations"):
        check_axes(places[place], f"{file}: {place}")
        check_draws(places[place], f"{file}: {place}: ", of)
    for name, changes in config.variants.items():
        check_changes(changes or {}, f"{file}: variants.{name}: ", of)
    for place in ("scheduler.mutations", "space"):
        check_set_once(config.variants, places[place], place, str(file))
    if not (config.space or config.variants or config.scheduler.mutations):
        raise ConfigError(
            f"{file}: nothing is swept: give space (key -> domain) or variants (name -> changes)"
        )
    check_size(config.space, config.num_samples * len(config.seeds) * max(1, len(config.variants)))
    check_repeats(config.variants, str(file))
    domains = [*config.space.values(), *config.scheduler.mutations.values()]
    if config.num_samples > 1 and config.searcher == "random" and all("grid" in d for d in domains):
        raise ConfigError(
            f"{file}: num_samples={config.num_samples}: nothing is drawn, grids and variants are "
            "tried whole: leave it out, or give more seeds for each point"
        )
    return Sweep(config, base, preset, started_in=start_folder())


def load_base(config: SweepConfig, file: pathlib.Path) -> tuple[TrainConfig, str]:
    """The configuration that trials start from, and its preset's name."""
    args = []
    preset, of = "default", TrainConfig
    if config.base is not None:
        try:
            path = find_preset(config.base, file.parent)
        except ConfigError as error:
            raise ConfigError(f"{file}: base: {error}") from error
        args, preset = [f"--config_path={path}"], path.stem
        found = config_class_of(read_mapping(path))
        of = found if issubclass(found, TrainConfig) else of  # others are refused below
    base: TrainConfig = load_config(of, args)
    mapping = encode(base)
    known = field_names(of)
    for key, value in config.set.items():
        check_key(key, known, f"{file}: set: key ")
        set_key(of, mapping, key, value)
    base = decode(of, mapping, f"{file}: set: ")
    base.tracking = config.tracking
    base.validate()
    return base, preset


def describe(point: Point) -> str:
    """A point as text, its seed last."""
    return ", ".join(f"{axis}={short(value)}" for axis, value in point.items()) or "the base"


def label(point: Point) -> str:
    """A point as text without its seed: equal for all seeds of a point."""
    return describe({axis: value for axis, value in point.items() if axis != "seed"})


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
