"""Every name in the folder of a run, of a sweep and of a checkpoint."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
from typing import Any

from pld_ray.files.manifest import MANIFEST_FILE

CONFIG_FILE = "config.yaml"
STATUS_FILE = "status.json"
SUMMARY_FILE = "summary.json"
PAST_SUMMARY_FILE = ".summary.json"
"""Of an end from which the run has gone on."""
METRICS_FILE = "metrics.jsonl"
RESTARTS_FILE = "metrics.restarts.jsonl"
"""Rows that a restart from an older checkpoint took out of `metrics.jsonl`, and each restart."""
LOG_FILE = "train.log"
STOP_FILE, RAY_TRAIN = ".stop", ".ray_train"
"""While learners train: that they are asked to stop, and what Ray Train keeps for itself."""
EVAL_INFO_FILE = "eval_info.json"
CURVE_FILE = "learning_curve.png"
CHECKPOINTS = "checkpoints"
BUFFER, DEMO_BUFFER = "buffer", "demo_buffer"
"""Episodes of the online and of the offline ring as datasets, with `dump_interval`."""

MLFLOW_FILE = "mlflow_run.json"
"""Tracking URI and id of the run's MLflow run."""
OUTBOX_FILE = "mlflow_outbox.jsonl"
"""Parameters, tags, artifacts and ends of the run, as they go to MLflow."""
SENT_FILE = "mlflow_sent.json"
"""Up to which record MLflow has metrics, values and artifacts."""

PROGRESS_FILE = "residual_sac.json"
"""In a checkpoint that is whole."""
TRAINER_FILE = "trainer.json"
"""The training loop's own state in a checkpoint."""
POLICY_FOLDER = "policy"
"""In a checkpoint of fine-tuning and in a distillation's folder: a policy as LeRobot loads it."""
BEST = "best"
"""Checkpoint with the highest validation success."""
CANDIDATE = "candidate"
"""Checkpoint of the weights that are being evaluated."""

SWEEP_FILE = "sweep.json"
SWEEP_CONFIG_FILE, BASE_FILE = "sweep.yaml", "base.yaml"
TRIALS = "trials"
TRIAL_FILE = "trial.json"
"""What a trial tries, as text."""
POINT_FILE = "point.json"
"""A trial's point, and the checkpoint that Tune was told of last."""
ENDED_FILE = "ended.json"
"""The last metrics of a trial that Tune is done with."""


def trial_folder(sweep: pathlib.Path, name: str) -> pathlib.Path:
    """The run's folder of a trial."""
    return sweep / TRIALS / name


def resuming(folder: str | os.PathLike[str]) -> str:
    """The flag that goes on with a run or a sweep, as a shell takes it."""
    return f"--resume={shlex.quote(str(folder))}"


def run_around(path: pathlib.Path) -> pathlib.Path | None:
    """The folder of the run in which another folder lies, as a checkpoint does."""
    around = path.resolve().parents[:2]
    return next((folder for folder in around if (folder / CONFIG_FILE).is_file()), None)


def sweep_around(folder: pathlib.Path) -> pathlib.Path | None:
    """The folder of the sweep of which a run's folder is a trial's."""
    trials = folder.resolve().parent
    is_trial = trials.name == TRIALS and (trials.parent / SWEEP_FILE).is_file()
    return trials.parent if is_trial else None


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def checkpoint_checksum(checkpoint: pathlib.Path) -> str | None:
    """Of its manifest; None where it has none."""
    return read_json(checkpoint / MANIFEST_FILE).get("checksum")
