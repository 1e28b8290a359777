"""The tags by which runs are found and compared in MLflow."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import pathlib
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.finetune import FinetuneParams
from pld_ray.runs.layout import resuming

if TYPE_CHECKING:
    from pld_ray.config import TrainConfig
    from pld_ray.config.finetune import FinetuneConfig

COMMIT_VARIABLE = "PLD_RAY_GIT_COMMIT"
PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def run_tags(
    config: TrainConfig | FinetuneConfig,
    *,
    kind: str = "train",
    preset: str = "default",
    run_dir: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """Tags of a run; what is not known is left out.

    Args:
        config: of the run.
        kind: `train`, `trial` or `finetune`.
        preset: name of the preset that the configuration was made from.
        run_dir: the run's folder.
    """
    from pld_ray.policies import base_policy_fingerprint

    fingerprint = base_policy_fingerprint(config.policy.type, config.policy.path)
    tags = {
        "suite": config.env.suite,
        "task": config.env.task,
        "seed": str(config.seed),
        "preset": preset,
        "base_policy": fingerprint[:12] if len(fingerprint) == 64 else fingerprint,
        "cluster": cluster_in_words(),
        "mlflow.note.content": note(config, preset, run_dir),
        **process_tags(kind),
    }
    if run_dir is not None:
        tags["run_dir"] = str(pathlib.Path(run_dir).resolve())
    return {name: value for name, value in tags.items() if value}


def process_tags(kind: str) -> dict[str, str]:
    """Tags of whatever this process logs: a training run, a trial, a sweep."""
    tags = {
        "pld_ray.kind": kind,
        "pld_ray.version": version(),
        "mlflow.source.git.commit": git_commit(),
        "mlflow.source.name": socket.gethostname(),
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user(),
    }
    return {name: value for name, value in tags.items() if value}


def note(
    config: TrainConfig | FinetuneConfig, preset: str, run_dir: str | os.PathLike[str] | None = None
) -> str:
    """Two lines of markdown that stand at the top of the run's page."""
    task = config.env.task.replace("_", " ")
    algorithm: Any = config.algorithm
    again = resuming(pathlib.Path(run_dir or "").resolve())
    if isinstance(algorithm, FinetuneParams):
        updates = f"Fine-tuning, seed {config.seed}: {config.total_steps:,} updates."
        return f"{updates}  \nContinue with `pld-ray finetune {again}`"
    learns = (
        f"chunks of {algorithm.horizon} ({algorithm.improvement})"
        if isinstance(algorithm, ACRLPDParams)
        else f"residual scale {algorithm.residual_scale:g}"
    )
    lines = [
        f"**{task}** ({config.env.suite}), seed {config.seed}: preset {preset}, "
        f"{config.total_steps:,} environment steps, {learns}, UTD {algorithm.utd:g}."
    ]
    if run_dir is not None:
        lines.append(f"Continue with `pld-ray train {again}`")
    return "  \n".join(lines)


def git_commit() -> str:
    """Commit of the checkout that the package lies in, else of `PLD_RAY_GIT_COMMIT`, else empty."""
    if given := os.environ.get(COMMIT_VARIABLE):
        return given
    if not (PACKAGE.parent / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def version() -> str:
    """Of the installed package; empty when it is not installed."""
    try:
        return importlib.metadata.version("pld-ray")
    except importlib.metadata.PackageNotFoundError:
        return ""


def user() -> str:
    """Login name; empty where the system has none for this user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def cluster_in_words() -> str:
    """Nodes and resources of the Ray cluster, as `2 nodes: 16 CPU, 1 GPU`; empty without Ray."""
    import ray

    if not ray.is_initialized():
        return ""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total = ray.cluster_resources()
    amounts = [f"{total[name]:g} {name}" for name in ("CPU", "GPU") if total.get(name)]
    count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    return f"{count}: {', '.join(amounts)}" if amounts else count
