"""What `ray job submit --working-dir .` ships: enough to run, and little else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package

LIMIT_BYTES = 5 * 10**6


@pytest.fixture(scope="module")
def package(root, tmp_path_factory):
    """The archive that Ray uploads, made by Ray."""
    path = tmp_path_factory.mktemp("package") / "working_dir.zip"
    create_package(
        str(root), path, include_gitignore=True, excludes=get_runtime_env_default_excludes()
    )
    return path


@pytest.fixture(scope="module")
def unpacked(package, tmp_path_factory):
    """The archive as a node has it."""
    folder = tmp_path_factory.mktemp("node")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(folder)
    return folder


def test_it_is_small(package):
    with zipfile.ZipFile(package) as archive:
        largest = sorted(archive.infolist(), key=lambda f: f.file_size, reverse=True)[:5]
    assert package.stat().st_size < LIMIT_BYTES, [f.filename for f in largest]


def test_it_holds_the_code_the_shipped_policy_and_the_configurations(root, unpacked):
    for folder in ("pld_ray", "envs", "experiments/sweeps"):
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (unpacked / path.relative_to(root)).is_file(), path


def test_it_leaves_results_environments_and_secrets_behind(root, unpacked):
    shipped = {path.relative_to(unpacked).parts[0] for path in unpacked.iterdir()}
    assert shipped.isdisjoint({".git", ".venv", ".env", "outputs", "docs", "tests", "docker"})
    assert not (unpacked / "experiments/results").exists()
    names = {path.name for path in unpacked.rglob("*")}
    assert names.isdisjoint({"__pycache__", ".env", "checkpoints", "mlruns", "mlflow.db"})


def test_pld_ray_runs_from_it_where_it_is_not_installed(unpacked):
    sweep = ["sweep", "experiments/sweeps/smoke.yaml", "--print_config"]
    done = subprocess.run(
        [sys.executable, "-m", "pld_ray.cli", *sweep],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "name: smoke" in done.stdout
