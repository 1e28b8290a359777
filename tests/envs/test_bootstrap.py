"""LIBERO must start without a question, a download, a log line or a graphics library."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envs import LiberoEnv, bootstrap
from envs.bootstrap import RenderingUnavailableError

BARE_START = """
import ctypes, logging, socket, sys

logging.basicConfig(level=logging.INFO)  # as Ray leaves it

def refuse(*args, **kwargs):
    raise OSError("no network in this test")

socket.socket.connect = socket.getaddrinfo = refuse
real_load = ctypes.CDLL.__init__

def load(self, name, *args, **kwargs):
    if name and any(part in str(name) for part in ("EGL", "OSMesa", "libGL", "glfw")):
        raise OSError(f"{name}: no graphics in this test")
    real_load(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = load
from envs import LiberoEnv
env = LiberoEnv()
env.reset(seed=0)
env.step(env.action_space.sample())
assert not [name for name in sys.modules if name.startswith("OpenGL")]
"""


@pytest.mark.parametrize("backend", [None, "egl"])
def test_state_only_starts_in_an_empty_home_in_silence(tmp_path, backend):
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("LIBERO_CONFIG_PATH", "MUJOCO_GL", "PYOPENGL_PLATFORM", "XDG_CACHE_HOME")
    }
    environment["HOME"] = str(tmp_path)
    if backend:
        environment["MUJOCO_GL"] = backend
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARE_START],
        stdin=subprocess.DEVNULL,  # LIBERO's question would end in EOFError
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout + result.stderr == ""
    (config,) = (tmp_path / ".cache" / "pld_ray" / "libero").glob("*/config.yaml")
    assert Path(yaml.safe_load(config.read_text())["bddl_files"]).is_dir()
    assert not (tmp_path / ".libero").exists()


def test_a_configuration_of_the_user_is_respected(tmp_path, monkeypatch):
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    (tmp_path / "config.yaml").write_text("assets: /somewhere\n")
    assert bootstrap._ensure_config(Path("unused")) == tmp_path
    assert (tmp_path / "config.yaml").read_text() == "assets: /somewhere\n"
    assert bootstrap._read_assets_entry(tmp_path) == Path("/somewhere")
    (tmp_path / "config.yaml").write_text("nothing: here\n")
    with pytest.raises(ValueError, match=r"config\.yaml has no 'assets' entry"):
        bootstrap._read_assets_entry(tmp_path)


def test_cache_falls_back_to_the_temp_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # not a folder: cannot be used
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    assert bootstrap.cache_dir() == tmp_path / "temp" / f"pld_ray-{os.getuid()}"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(PermissionError, match="XDG_CACHE_HOME"):
        bootstrap.cache_dir()


def test_cameras_without_a_graphics_library_say_what_to_install(monkeypatch):
    bootstrap.enable_rendering.cache_clear()
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(RenderingUnavailableError, match=r"libosmesa6.*MUJOCO_GL=osmesa.*libegl1"):
        LiberoEnv(cameras=("image",))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(RenderingUnavailableError, match="MUJOCO_GL=egl asks for libEGL"):
        LiberoEnv(cameras=("image",))


def test_the_suite_is_in_liberos_own_registries():
    bootstrap.import_libero()
    from libero.libero import benchmark

    from envs import pld_tabletop

    pld_tabletop.register()
    pld_tabletop.register()
    suite = benchmark.get_benchmark("pld_tabletop")()
    assert suite.get_task_names() == list(pld_tabletop.TASKS)
    assert all(Path(suite.get_task_bddl_file_path(i)).is_file() for i in range(suite.n_tasks))
