"""The file of a sweep, read and checked."""

from __future__ import annotations

import copy
import pathlib
from dataclasses import dataclass, field
from typing import Any

import draccus
import yaml

from pld_ray.config import ConfigError, TrackingConfig, TrainConfig
from pld_ray.config_file import check_key, field_names, load_config, yaml_keys
from pld_ray.sweep.space import Point, check_axes, split_keys, with_points_type

SCHEDULERS = ("none", "asha", "hyperband", "pbt")
SEARCHERS = ("random", "optuna")


@dataclass
class SchedulerConfig:
    """Which trials are stopped early, or copied."""

    type: str = "none"
    """`none`, `asha`, `hyperband` or `pbt`."""
    grace_steps: int = 5_000
    """Environment steps before ASHA may stop a trial."""
    reduction_factor: int = 3
    """ASHA and HyperBand keep one trial in so many at each rung."""
    interval_steps: int = 5_000
    """Environment steps between two perturbations of PBT."""
    quantile: float = 0.25
    """Share of the trials that PBT replaces by copies of the best."""
    mutations: dict[str, Any] = field(default_factory=dict)
    """What PBT perturbs: configuration key -> domain, as in `space`."""


@dataclass
class StopConfig:
    """When trials, or the sweep, are over; each rule is off when None."""

    env_steps: int | None = None
    """Environment steps of each trial; None is the base configuration's `total_steps`."""
    wall_time_s: float | None = None
    """Seconds of the whole sweep; trials that still run are stopped early then."""
    trial_wall_time_s: float | None = None
    """Training seconds of a trial."""
    success: float | None = None
    """A trial whose evaluation reaches this success rate has learnt enough."""
    plateau_evaluations: int | None = None
    """A trial whose last so many evaluations differ little has learnt all it will."""
    plateau_std: float = 0.01
    """Standard deviation of the success rate that counts as little."""


@dataclass
class SweepConfig:
    """`pld-ray sweep FILE`."""

    name: str = "sweep"
    """Name of the sweep: of its folder and of its MLflow parent run."""
    base: str | None = None
    """Configuration that every trial starts from (a preset), relative to this file; None is the
    default one."""
    set: dict[str, Any] = field(default_factory=dict)
    """Changes to it for every trial: dotted key -> value."""
    space: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> domain: `{grid: [...]}`, `{choice: [...]}`, `{uniform: [low, high]}`,
    `{loguniform: [low, high]}`, `{quniform: [low, high, step]}`, `{randint: [low, high]}`. Keys
    that change together are one entry, `"a, b": {grid: [[1, 2], [3, 4]]}`."""
    variants: dict[str, Any] = field(default_factory=dict)
    """Named sets of changes, each tried: name -> {dotted key: value}."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """Every point is tried once with each seed."""
    num_samples: int = 1
    """Draws from what is not a grid; each is tried with the whole grid."""
    searcher: str = "random"
    """`random`, or `optuna`: each draw learns from those before."""
    search_seed: int = 0
    """Seed of the draws."""
    metric: str = "eval/residual_success"
    """What schedulers, searcher and the final table compare, greatest first."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    max_concurrent: int | None = None
    """Trials at a time; None is as many as the cluster has room for."""
    cpus_per_trial: float = 1.0
    """CPUs of a trial's own process; runners, learners and replicas come on top."""
    resources_per_trial: dict[str, float] = field(default_factory=dict)
    """Custom resources of that process, such as `{learning: 0.1}`."""
    max_failures: int = 3
    """Times that a trial starts anew from its checkpoint after dying."""
    output_dir: str | None = None
    """Folder of the sweep, on storage that every node has; None is `outputs/sweeps/<name>`."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    ray_address: str | None = None
    """A running Ray cluster (`auto`, `host:port`); None starts a local one."""

    def folder(self) -> pathlib.Path:
        """The sweep's folder."""
        return pathlib.Path(self.output_dir or f"outputs/sweeps/{self.name}").resolve()

    def validate(self) -> None:
        """Raise ConfigError on the first value that cannot work by itself."""
        checks = [
            (bool(self.name) and "/" not in self.name, "name", "a folder's name"),
            (self.scheduler.type in SCHEDULERS, "scheduler.type", ", ".join(SCHEDULERS)),
            (self.searcher in SEARCHERS, "searcher", ", ".join(SEARCHERS)),
            (self.num_samples >= 1, "num_samples", ">= 1"),
            (bool(self.seeds), "seeds", "at least one"),
            (len(self.seeds) == len({*self.seeds}), "seeds", "different ones"),
            (self.cpus_per_trial > 0, "cpus_per_trial", "> 0"),
            (self.max_failures >= 0, "max_failures", ">= 0"),
            (self.max_concurrent is None or self.max_concurrent >= 1, "max_concurrent", ">= 1"),
            (self.scheduler.reduction_factor >= 2, "scheduler.reduction_factor", ">= 2"),
            (self.scheduler.grace_steps >= 1, "scheduler.grace_steps", ">= 1"),
            (self.scheduler.interval_steps >= 1, "scheduler.interval_steps", ">= 1"),
            (0 < self.scheduler.quantile <= 0.5, "scheduler.quantile", "in (0, 0.5]"),
            (self.stop.env_steps is None or self.stop.env_steps >= 1, "stop.env_steps", ">= 1"),
        ]
        for ok, name, accepted in checks:
            if not ok:
                value: Any = self
                for part in name.split("."):
                    value = getattr(value, part)
                raise ConfigError(f"{name}={value!r}: must be {accepted}")
        if self.searcher == "optuna" and self.scheduler.type == "pbt":
            raise ConfigError(
                "searcher=optuna and scheduler.type=pbt exclude each other: PBT draws"
            )
        if (self.scheduler.type == "pbt") != bool(self.scheduler.mutations):
            raise ConfigError("scheduler.mutations is what scheduler.type=pbt perturbs: give both")


@dataclass
class Sweep:
    """A sweep that can run: its settings and the configuration its trials start from."""

    config: SweepConfig
    base: TrainConfig
    preset: str

    def trial_config(self, point: Point) -> TrainConfig:
        """The configuration of a trial.

        Raises:
            ConfigError: a value has the wrong type, or the values do not go together.
        """
        mapping = copy.deepcopy(draccus.encode(self.base))
        for key, value in self.changes(point).items():
            set_value(mapping, key, value)
        try:
            config = draccus.decode(TrainConfig, mapping)
        except Exception as error:  # whatever draccus makes of a value
            raise ConfigError(f"{describe(point)}: a value has the wrong type: {error}") from error
        if self.config.stop.env_steps is not None:
            config.total_steps = self.config.stop.env_steps
        try:
            config.validate()
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
        return with_points_type(flat, draccus.encode(self.base))


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
    changes = pop_changes(overrides)
    config = load_config(SweepConfig, [f"--config_path={file}", *overrides])
    config.set |= changes
    if "name" not in yaml_keys(file) and not any(a.startswith("--name") for a in overrides):
        config.name = file.stem
    return make_sweep(config, file)


def pop_changes(args: list[str]) -> dict[str, Any]:
    """Remove each `--set.KEY=VALUE` from args; key -> value as YAML reads it."""
    found = [arg for arg in args if arg.startswith("--set.") and "=" in arg]
    for arg in found:
        args.remove(arg)
    pairs = (arg.removeprefix("--set.").split("=", 1) for arg in found)
    return {key: yaml.safe_load(value) for key, value in pairs}


def make_sweep(config: SweepConfig, file: pathlib.Path) -> Sweep:
    """The base configuration, and every key and value of the space checked against it."""
    base, preset = load_base(config, file)
    known = field_names(TrainConfig)
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
    check_axes(config.space, f"{file}: space")
    check_axes(config.scheduler.mutations, f"{file}: scheduler.mutations")
    if not (config.space or config.variants or config.scheduler.mutations):
        raise ConfigError(
            f"{file}: nothing is swept: give space (key -> domain) or variants (name -> changes)"
        )
    return Sweep(config, base, preset)


def load_base(config: SweepConfig, file: pathlib.Path) -> tuple[TrainConfig, str]:
    """The configuration that trials start from, and its preset's name."""
    args = []
    preset = "default"
    if config.base is not None:
        near = file.parent / config.base
        path = near if near.is_file() else pathlib.Path(config.base)
        if not path.is_file():
            raise ConfigError(f"{file}: base: {config.base} is neither beside the file nor here")
        args, preset = [f"--config_path={path}"], path.stem
    base = load_config(TrainConfig, args)
    mapping = draccus.encode(base)
    known = field_names(TrainConfig)
    for key, value in config.set.items():
        check_key(key, known, f"{file}: set: key ")
        set_value(mapping, key, value)
    try:
        base = draccus.decode(TrainConfig, mapping)
    except Exception as error:
        raise ConfigError(f"{file}: set: a value has the wrong type: {error}") from error
    base.tracking = config.tracking
    base.validate()
    return base, preset


def set_value(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested mapping."""
    *groups, name = key.split(".")
    for group in groups:
        mapping = mapping.setdefault(group, {})
    mapping[name] = value


def describe(point: Point) -> str:
    """A point in words, its seed last."""
    return ", ".join(f"{axis}={short(value)}" for axis, value in point.items()) or "the base"


def label(point: Point) -> str:
    """A point in words without its seed: equal for all seeds of a point."""
    return describe({axis: value for axis, value in point.items() if axis != "seed"})


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def dump_sweep(config: SweepConfig) -> str:
    """The sweep as YAML that `make_sweep` reads back."""
    return yaml.safe_dump(draccus.encode(config), sort_keys=False)
