"""What a distillation is made of, written into its folder: a used folder answers for that alone."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.episode_writer import PROGRESS_FILE, read_progress
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import MANIFEST_FILE
from pld_ray.runs.layout import CONFIG_FILE, POLICY_FOLDER, SUMMARY_FILE, SWEEP_FILE, read_json
from pld_ray.runs.run_dir import RunDir
from pld_ray.sharded.policy_folder import PROVENANCE_FILE

INPUTS_FILE = "inputs.json"
COLLECTED, FINETUNE = "collected", "finetune"
"""In the folder: the datasets, the run of fine-tuning, and the result."""
ANOTHER = {CONFIG_FILE: "a run", SWEEP_FILE: "a sweep", MANIFEST_FILE: "a checkpoint"}
"""What lies in the folder of something else -> what that is."""

Facts = Mapping[str, Any]


def check_folder(out: pathlib.Path) -> None:
    """Refuse a folder of something else, whose summary would be written over.

    Raises:
        ConfigError: naming the folder, what it holds, and the fix.
    """
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    own = {INPUTS_FILE, COLLECTED, FINETUNE, POLICY_FOLDER} & set(there)
    held = next((what for name, what in ANOTHER.items() if name in there), None)
    if held is None and SUMMARY_FILE in there and not own:
        held = f"{SUMMARY_FILE}, and nothing of a distillation"
    if held is not None:
        raise ConfigError(f"output_dir={out} already holds {held}: choose another --output_dir")


def check_inputs(out: pathlib.Path, inputs: Facts, learning: FinetuneConfig) -> None:
    """Refuse a folder that was begun with something else.

    Args:
        out: of the distillation, new or used.
        inputs: `base_policy` (fingerprint), `runs` (each with path, checkpoint and its checksum)
            and `collected` (settings).
        learning: what the fine-tuning is asked for, with its datasets.

    Raises:
        ConfigError: naming the folder, what differs, and the fix.
        DataError: the progress of a recording is damaged.
    """
    before = read_json(out / INPUTS_FILE)
    if before:
        check_alike(out, before, inputs)
    else:  # of a release that did not write the file
        check_leftovers(out, inputs, learning.dataset)
    check_learning(out / FINETUNE, learning)


def begin(out: pathlib.Path, inputs: Facts, learning: FinetuneConfig) -> None:
    """Check the folder, see `check_inputs`, and write down what it is made of."""
    check_inputs(out, inputs, learning)
    if read_json(out / INPUTS_FILE) != inputs:  # paths may be others, of the same checkpoints
        write_json_atomically(out / INPUTS_FILE, dict(inputs))


def check_alike(out: pathlib.Path, before: Facts, now: Facts) -> None:
    """Refuse other inputs than `before`, which may lack some."""
    was, asked = before.get("base_policy"), now["base_policy"]
    if was not in (None, asked):
        refuse(out, f"the base policy {was[:12]}", f"{asked[:12]} (--policy.path)")
    if "runs" in before:
        check_runs(out, before["runs"], now["runs"])
    collected = before.get("collected", {})
    for name, value in now["collected"].items():
        if collected.get(name, value) != value:
            refuse(out, f"collected.{name}={collected[name]!r}", repr(value))


def check_runs(out: pathlib.Path, before: Sequence[Facts], now: Sequence[Facts]) -> None:
    """Refuse other residuals; a run may have moved."""
    known, asked = {identity(run) for run in before}, {identity(run) for run in now}
    if known == asked:
        return
    gone = described(run for run in before if identity(run) not in asked)
    new = described(run for run in now if identity(run) not in known)
    refuse(out, gone or ("fewer runs" if before else "no residual"), new or "fewer runs")


def check_leftovers(out: pathlib.Path, inputs: Facts, datasets: Sequence[str]) -> None:
    """Refuse a folder that contradicts the inputs by what lies there.

    Raises:
        ConfigError: policy or recordings are of another base policy or of other runs, or somebody
            took over while an episode was recorded.
    """
    about = read_json(out / POLICY_FOLDER / PROVENANCE_FILE)
    known = {"base_policy": about.get("base_policy", {}).get("fingerprint")}
    if "distilled_from" in about:
        known["runs"] = about["distilled_from"]
    residual = inputs["collected"]["teacher"] == "residual"
    asked = {**inputs, "runs": inputs["runs"] if residual else []}
    check_alike(out, known, asked)
    for root in map(pathlib.Path, datasets):
        if not (root / PROGRESS_FILE).is_file():
            continue
        recorded = read_progress(root / PROGRESS_FILE)["recording"]
        policy = (recorded.get("base_policy") or {}).get("fingerprint")
        check_alike(root, {"base_policy": policy}, inputs)
        if device := recorded.get("device"):
            refuse(root, f"intervention.device={device}, which acts in its episodes", "none")


def check_learning(folder: pathlib.Path, asked: FinetuneConfig) -> None:
    """Refuse what a fine-tuning that has begun would leave aside."""
    if not (folder / CONFIG_FILE).is_file():
        return
    before = dict(decisive(RunDir(folder).load_config(FinetuneConfig)))
    for name, value in decisive(asked):
        if before[name] != value:
            refuse(folder, f"{name}={before[name]!r}", repr(value))


def decisive(config: FinetuneConfig) -> Iterator[tuple[str, Any]]:
    """The settings that decide the policy; datasets by name, for the folder may have moved."""
    yield "dataset", ["/".join(pathlib.Path(path).parts[-2:]) for path in config.dataset]
    yield "dataset_weights", [round(weight, 9) for weight in config.dataset_weights]
    yield "total_steps", config.total_steps
    yield "seed", config.seed
    yield "policy.dtype", config.policy.dtype
    yield "policy.rename_map", dict(config.policy.rename_map)
    for name, value in dataclasses.asdict(config.algorithm).items():
        yield f"algorithm.{name}", value


def identity(run: Facts) -> tuple[str, ...]:
    """Equal ones are the same residual."""
    if run.get("checksum"):
        return (str(run["checksum"]),)
    return str(run.get("path")), str(run.get("checkpoint"))


def described(runs: Iterable[Facts]) -> str:
    """Each with its checkpoint."""
    return ", ".join(
        f"{run.get('path')} (checkpoint {run.get('checkpoint')}, {str(run.get('checksum'))[:12]})"
        for run in runs
    )


def refuse(where: pathlib.Path, was: str, asked: str) -> NoReturn:
    """Raise ConfigError with both sides."""
    raise ConfigError(
        f"{where} was begun with {was}, and is now asked for {asked}: give another --output_dir, "
        "or what it was begun with"
    )
