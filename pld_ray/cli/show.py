"""`pld-ray show`."""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
from typing import Any

from pld_ray.cli.arguments import Parser

FIGURES = (
    "train/success_rate",
    "train/assisted_success_rate",
    "train/intervention_share",
    "train/intervention_count_mean",
    "train/intervention_steps_mean",
    "train/episode_len_mean",
    "residual_scale",
    "updates",
    "learner/critic_loss",
    "learner/actor_loss",
    "learner/flow_loss",
    "learner/q_mean",
    "learner/alpha",
    "replay/online",
    "replay/offline",
    "time/wall_s",
)


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("show")
    parser.positional("run", "folder of a run, a trial or a sweep")
    parser.switch("json", "the same as one object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Show one run."""
    shown = describe(pathlib.Path(args.run))
    if args.json:
        print(json.dumps(shown, indent=1))
        return 0
    print_details(shown)
    return 0


def describe(folder: pathlib.Path) -> dict[str, Any]:
    """Everything that is shown, as plain values.

    Raises:
        ConfigError: the folder holds neither a run nor a sweep.
    """
    from pld_ray.config import ConfigError
    from pld_ray.config.acrlpd_train import command_of, config_class_of
    from pld_ray.runs.layout import METRICS_FILE, SWEEP_FILE
    from pld_ray.runs.listing import read_alone, read_config, read_sweep
    from pld_ray.runs.reading import latest_checkpoints, read_metrics

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; pld-ray ls lists the runs below a folder")
    if (folder / SWEEP_FILE).is_file():
        sweep, trials = read_sweep(folder, folder.resolve().name)
        return {
            **sweep.as_json(),
            "trial_rows": {pathlib.Path(t.path).name: t.as_json() for t in trials},
            "mlflow": mlflow_record(folder),
            "unsent": (unsent := num_unsent(folder, sweep.state)),
            "next": next_commands(folder, sweep.state, [], is_sweep=True, unsent=unsent),
        }
    config = read_config(folder)
    if config is None:
        raise ConfigError(
            f"{folder} holds no run: config.yaml is missing or not a run's; pld-ray ls "
            f"{shlex.quote(str(folder))} lists the runs below it"
        )
    listed = read_alone(folder)
    checkpoints = latest_checkpoints(folder)
    last = read_metrics(folder / METRICS_FILE, everything=True).last
    command = command_of(config_class_of(config))
    return {
        **listed.as_json(),
        "command": command,
        "settings": changed_settings(config),
        "figures": {name: last[name] for name in FIGURES if name in last},
        "checkpoints": dict(checkpoints),
        "mlflow": mlflow_record(folder),
        "unsent": (unsent := num_unsent(folder, listed.state)),
        "next": next_commands(
            folder,
            listed.state,
            [name for name, _ in checkpoints],
            command=command,
            unsent=unsent,
        ),
    }


def changed_settings(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Dotted key -> `value` and `default`, where the two differ; keys of today's version only."""
    from dataclasses import asdict

    from pld_ray.config.acrlpd_train import config_class_of

    defaults = flatten(asdict(config_class_of(config)()))
    return {
        key: {"value": value, "default": defaults.get(key)}
        for key, value in flatten(config).items()
        if value != defaults.get(key) and key != "output_dir"
    }


def flatten(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys; an empty one is a value."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def mlflow_record(folder: pathlib.Path) -> dict[str, str] | None:
    """Tracking URI and run id; None where the run was not tracked."""
    from pld_ray.runs.layout import MLFLOW_FILE, read_json

    record = read_json(folder / MLFLOW_FILE)
    known = {"tracking_uri", "run_id"} <= record.keys()
    return {key: str(record[key]) for key in ("tracking_uri", "run_id")} if known else None


def num_unsent(folder: pathlib.Path, state: str) -> int:
    """Values and artifacts that wait for `pld-ray send`; a run that goes on sends them itself."""
    from pld_ray.tracking import outbox

    record = mlflow_record(folder)
    if record is None or state == "running":
        return 0
    try:
        return outbox.num_unsent(folder, record["run_id"])
    except (ValueError, KeyError, TypeError):  # a damaged file: what sends says so
        return 0


def next_commands(
    folder: pathlib.Path,
    state: str,
    checkpoints: list[str],
    is_sweep: bool = False,
    command: str = "train",
    unsent: int = 0,
) -> dict[str, str]:
    """What can be done with the folder now: verb -> command; `command` made the run."""
    from pld_ray.runs.layout import POLICY_FOLDER, resuming, sweep_around

    path = shlex.quote(str(folder))
    commands = {}
    if state in ("interrupted", "failed", "never started"):
        if (sweep := sweep_around(folder)) is not None:
            commands["resume"] = f"pld-ray sweep {resuming(sweep)}"
        else:
            commands["resume"] = f"pld-ray {'sweep' if is_sweep else command} {resuming(folder)}"
    evaluated = next(
        (name for name in ("best", "final", *checkpoints) if name in checkpoints), None
    )
    if evaluated is not None and command == "finetune":
        policy = f"{path}/checkpoints/{evaluated}/{POLICY_FOLDER}"
        commands["learn on"] = f"pld-ray train --policy.path={policy}"
    elif evaluated is not None:
        commands["evaluate"] = f"pld-ray eval --checkpoint={path}/checkpoints/{evaluated}"
    if unsent:
        commands["send"] = f"pld-ray send {path}"
    record = mlflow_record(folder)
    if record is not None:
        if command != "finetune":  # of environment steps, which it has none of
            commands["report"] = f"pld-ray report {path}"
        if record["tracking_uri"].startswith("sqlite:"):
            uri = shlex.quote(record["tracking_uri"])
            commands["open MLflow"] = f"mlflow ui --backend-store-uri={uri}"
    return commands


def print_details(shown: dict[str, Any]) -> None:
    """Sections of `name  value` lines."""
    from rich.text import Text

    from pld_ray.charts.numbers import short_number
    from pld_ray.cli.ls import LEGEND, STYLES, plain_console

    console = plain_console()

    def section(title: str, rows: dict[str, str]) -> None:
        if rows:
            console.print()
            console.print(Text(title, "bold"))
            width = max(map(len, rows))
            for name, value in rows.items():
                console.print(f"  {name:{width}}  {value}", soft_wrap=True)

    state = Text.assemble(
        (shown["name"], "bold"), "  ", (shown["state"], STYLES.get(shown["state"], ""))
    )
    console.print(state, soft_wrap=True)
    if shown["reason"]:
        console.print(f"  {shown['reason']}", soft_wrap=True)
    total = f" of {shown['total_steps']:,}" if shown["total_steps"] else ""
    facts = {
        "folder": shown["path"],
        "task": shown["task"] or "-",
        "seed": "-" if shown["seed"] is None else str(shown["seed"]),
        "steps": f"{shown['env_steps']:,}{total}",
        "held states": held_text(shown),
        "validation": validation_text(shown),
    }
    if shown.get("command") == "finetune":  # plays the validation states alone
        del facts["held states"]
    if shown["point"]:
        facts["tries"] = shown["point"]
    trials = shown.get("trial_rows", {})
    if shown["kind"] == "sweep":
        del facts["seed"], facts["held states"], facts["validation"]
        facts |= facts_of_trials(shown, trials)
    section("run" if shown["kind"] != "sweep" else "sweep", facts)
    section(
        "settings that differ from the defaults",
        {
            k: f"{v['value']}  (default {v['default']})"
            for k, v in shown.get("settings", {}).items()
        },
    )
    section("newest figures", {k: figure(v) for k, v in shown.get("figures", {}).items()})
    section(
        "checkpoints",
        {k: f"{short_number(v)} steps" for k, v in shown.get("checkpoints", {}).items()},
    )
    section("trials", trial_table(trials))
    if trials:
        console.print(f"  ({LEGEND})", soft_wrap=True)
    mlflow = dict(shown["mlflow"] or {"": "not tracked"})
    if shown["unsent"]:
        mlflow["not sent yet"] = f"{shown['unsent']:,} values and artifacts"
    section("MLflow", mlflow)
    section("next", shown["next"])


def facts_of_trials(shown: dict[str, Any], trials: dict[str, Any]) -> dict[str, str]:
    """How many trials of a sweep ended how, and what the best one reached."""
    ended = ", ".join(f"{n} {name}" for name, n in shown["trials"].items())
    best = trials.get(shown["best_trial"])
    if best is None:
        return {"trials": ended or "none"}
    return {
        "trials": ended,
        "best trial": f"{shown['best_trial']}: {best['point']}, seed {best['seed']}",
        "its held states": held_text(best),
        "its validation": validation_text(best),
    }


def held_text(shown: dict[str, Any]) -> str:
    """Success on the held states, which neither training nor the choice of a checkpoint saw."""
    from pld_ray.cli.ls import rate

    held = rate(shown["success"]) if shown["held"] else "at the end of the run"
    if shown["base_success"] is None:  # there is none, or it has not been played yet
        return f"learnt policy {held}" if shown["held"] else held
    return f"base {rate(shown['base_success'])} -> base + residual {held}"


def validation_text(shown: dict[str, Any]) -> str:
    """Success while training, by which the checkpoint `best` is chosen."""
    from pld_ray.cli.ls import rate

    known = shown["validation_base_success"] is not None
    base = f"base {rate(shown['validation_base_success'])} -> " if known else ""
    least = f", least {rate(shown['least_validation_success'])}" if known else ""
    newest = "" if shown["held"] else f", newest {rate(shown['success'])}"
    return f"{base}best {rate(shown['best_validation_success'])}{least}{newest}, while training"


def trial_table(trials: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Name of the trial -> its line, below a heading; empty without trials."""
    from pld_ray.cli.ls import rate

    if not trials:
        return {}
    lines = {
        "": ("state", "point", "seed", "base", "held", "validation"),
        **{
            name: (
                trial["state"],
                trial["point"] or "-",
                "-" if trial["seed"] is None else str(trial["seed"]),
                rate(trial["base_success"]),
                rate(trial["success"] if trial["held"] else None),
                rate(trial["best_validation_success"]),
            )
            for name, trial in trials.items()
        },
    }
    widths = [max(map(len, column)) for column in zip(*lines.values(), strict=True)]
    return {
        name: "  ".join(
            f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for name, line in lines.items()
    }


def figure(value: float) -> str:
    """Four significant digits, and all digits of a large number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
