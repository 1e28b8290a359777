"""The plugins, installed as `make setup` installs them, and a tiny run to export."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PLUGINS = ("pld_ray/plugin/lerobot_policy_pld_ray", "envs/lerobot_env_pld_ray")


@pytest.fixture(scope="session")
def lerobot(tmp_path_factory):
    """Runs a module in a fresh process that has the plugins installed; a failure shows its output.

    A function of (module, *arguments) that returns what it printed.
    """
    site, sources = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sources")
    copies = [shutil.copytree(ROOT / name, sources / pathlib.Path(name).name) for name in PLUGINS]
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    options = ["--offline", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*install, *options, *map(str, copies)], check=True)
    path = os.pathsep.join([str(site), str(pathlib.Path(__file__).parent), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(module, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return done.stdout + done.stderr

    return run
