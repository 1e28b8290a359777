"""Import LIBERO without a prompt, a download or a graphics library.

A plain ``import libero.libero`` asks on stdin where its data sets live when it finds no
configuration, robosuite 1.4 opens a GL context while it is imported, and LIBERO's first
environment downloads its assets. `import_libero` prevents the three of them, once per process;
every module of this package calls it before it touches LIBERO. `enable_rendering` adds the GL
context afterwards, for the environments which need cameras.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import functools
import hashlib
import importlib.util
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import yaml

_GL_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_GL_HELP = (
    "Install a software renderer (Debian/Ubuntu: apt-get install libosmesa6) and set "
    "MUJOCO_GL=osmesa, or, on a machine with a GPU, libegl1 and MUJOCO_GL=egl. "
    "Without cameras (cameras=()) no graphics library is needed."
)


class RenderingUnavailableError(RuntimeError):
    """Camera observations were asked for and no usable OpenGL library was found."""


@functools.cache
def import_libero() -> ModuleType:
    """Import `libero.libero` with its configuration in place and return the module.

    The configuration lies in `LIBERO_CONFIG_PATH` when that is set (an existing file there is left
    as it is), otherwise in a folder of the per-user cache; the variable is set for child processes.

    Raises:
        ImportError: LIBERO is not installed.
    """
    config_dir = _ensure_config(libero_root())
    os.environ["LIBERO_CONFIG_PATH"] = str(config_dir)
    with _quiet_import(), _gl_disabled():
        macros = _preset_robosuite_macros()
        import robosuite

        robosuite.macros = macros
        import libero.libero
        import libero.libero.envs  # registers LIBERO's own problems, objects and predicates

    module: Any = libero.libero
    module.libero_config_path = str(config_dir)
    module.config_file = str(config_dir / "config.yaml")
    # The "assets" entry of the configuration is not read by LIBERO: its cache is the only hook,
    # and any existing folder there keeps it from downloading.
    assets = _read_assets_entry(config_dir)
    assets.mkdir(parents=True, exist_ok=True)
    module._assets_path_cache = str(assets)
    return cast(ModuleType, module)


def use_assets(folder: Path) -> None:
    """Let every LIBERO environment that this process builds from now on load from `folder`."""
    module: Any = import_libero()
    module._assets_path_cache = str(folder)


def libero_root() -> Path:
    """The folder of the installed `libero.libero`, found without importing it.

    Raises:
        ImportError: LIBERO is not installed.
    """
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("LIBERO is not installed: pip install hf-libero.")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


def configured_assets() -> Path:
    """The assets folder that LIBERO's configuration names; it need not hold anything."""
    return _read_assets_entry(_ensure_config(libero_root()))


def available_backends() -> list[str]:
    """Names of the off-screen GL backends whose library is installed: "egl" and/or "osmesa"."""
    return [name for name, library in _GL_LIBRARIES.items() if ctypes.util.find_library(library)]


@functools.cache
def enable_rendering() -> str:
    """Give robosuite a GL context class and return the backend in use, "egl" or "osmesa".

    `MUJOCO_GL` chooses when it names one of the two; else egl is taken on a machine with an NVIDIA
    device and osmesa on any other.

    Raises:
        RenderingUnavailableError: the library is missing or cannot be opened.
    """
    import_libero()
    installed = available_backends()
    preferred = ("egl", "osmesa") if os.path.exists("/dev/nvidiactl") else ("osmesa", "egl")
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if chosen not in _GL_LIBRARIES:
        chosen = next((name for name in preferred if name in installed), "")
    if chosen not in installed:
        wanted = f"MUJOCO_GL={chosen} asks for lib{_GL_LIBRARIES[chosen]}" if chosen else "none"
        raise RenderingUnavailableError(
            "Camera observations need an off-screen OpenGL library and "
            + (f"{wanted}, which is not installed. " if chosen else "none is installed. ")
            + _GL_HELP
        )
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = chosen
    try:
        from robosuite.utils import binding_utils

        if chosen == "egl":
            from robosuite.renderers.context.egl_context import EGLGLContext as context
        else:
            from robosuite.renderers.context.osmesa_context import OSMesaGLContext as context
    except Exception as error:  # PyOpenGL raises many kinds when a driver is half installed
        raise RenderingUnavailableError(
            f"The {chosen} OpenGL library could not be opened ({error}). {_GL_HELP}"
        ) from error
    binding_utils.GLContext = context
    return chosen


def cache_dir() -> Path:
    """A writable folder of this user for generated files: the XDG cache, else the temp folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    fallback = os.path.join(tempfile.gettempdir(), f"pld_ray-{os.getuid()}")
    for candidate in (Path(home) / "pld_ray", Path(fallback)):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    raise PermissionError(
        f"Neither {home} nor {tempfile.gettempdir()} is writable: set XDG_CACHE_HOME to a folder "
        "which is."
    )


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that other processes see the old file or the new one, no part."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _ensure_config(root: Path) -> Path:
    chosen = os.environ.get("LIBERO_CONFIG_PATH")
    if chosen:
        config_dir = Path(chosen)
    else:  # one folder per installation, so that two environments never rewrite each other's paths
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        config_dir = cache_dir() / "libero" / digest
    config_file = config_dir / "config.yaml"
    if config_file.is_file():
        return config_dir
    config_dir.mkdir(parents=True, exist_ok=True)
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": config_dir / "datasets",
        "assets": config_dir / "assets",
    }
    write_atomically(config_file, yaml.safe_dump({key: str(path) for key, path in paths.items()}))
    return config_dir


def _preset_robosuite_macros() -> ModuleType:
    """Load robosuite's constants and change three, before anything else of robosuite reads them.

    ``import robosuite.macros`` would first import the whole package, GL context included.
    """
    name = "robosuite.macros"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("robosuite")
    if package is None or package.origin is None:
        raise ImportError("robosuite is not installed: pip install robosuite==1.4.0.")
    spec = importlib.util.spec_from_file_location(name, Path(package.origin).parent / "macros.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"robosuite at {package.origin} has no readable macros.py.")
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.MUJOCO_GPU_RENDERING = False  # True would overwrite MUJOCO_GL with egl
    macros.CONSOLE_LOGGING_LEVEL = "ERROR"  # no notice about a missing private macro file
    macros.FILE_LOGGING_LEVEL = None  # no log file in the temp folder, shared by all users
    sys.modules[name] = macros
    return cast(ModuleType, macros)


def _read_assets_entry(config_dir: Path) -> Path:
    config_file = config_dir / "config.yaml"
    config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or "assets" not in config:
        raise ValueError(f"{config_file} has no 'assets' entry: delete the file or add the entry.")
    return Path(config["assets"])


@contextlib.contextmanager
def _gl_disabled() -> Iterator[None]:
    before = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]
        if before is not None:
            os.environ["MUJOCO_GL"] = before


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Hold back what robosuite and LIBERO print at import; show it only when the import fails."""
    noise = io.StringIO()
    logger = logging.getLogger("robosuite_logs")
    logger.propagate = False  # it has a handler of its own; the root's would print its notices too
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(noise),
            contextlib.redirect_stdout(noise),
        ):
            warnings.simplefilter("ignore")
            yield
    except Exception:
        sys.stderr.write(noise.getvalue())
        raise
    for handler in logger.handlers:  # they were created with the redirected streams
        if isinstance(handler, logging.StreamHandler) and handler.stream is noise:
            handler.setStream(sys.stderr)
