"""Where LIBERO's meshes, textures and scenes come from, checked before the simulator looks.

hf-libero ships task files and init states but no assets. A folder of assets is taken from, in this
order: the `assets` argument, the environment variable `PLD_RAY_LIBERO_ASSETS`, LIBERO's own
configuration, the folder inside the installed package. Nothing is downloaded and nobody is asked,
unless the argument or the variable is the word "hub".
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from envs.bootstrap import configured_assets, libero_root

ASSETS_VARIABLE = "PLD_RAY_LIBERO_ASSETS"
HUB = "hub"
HUB_REPOSITORY = "lerobot/libero-assets"
MANIFESTS = Path(__file__).resolve().parent / "asset_manifests"  # a suite's files, one a line

_HELP = (
    f"Point the assets argument of the environment or {ASSETS_VARIABLE} at a complete folder, or "
    f"set either to 'hub' to download {HUB_REPOSITORY}."
)


class AssetsIncompleteError(FileNotFoundError):
    """No folder holds all the asset files which a suite needs; the message names the first one."""


def resolve_assets(suite: str, assets: str | Path | None = None) -> Path:
    """The assets folder for `suite`, with every file of the suite's manifest in it.

    A folder that was named (argument or variable) must be complete; the folders which nobody named
    are taken when they are. libero_90 has no manifest: its files are checked as they are loaded.

    Args:
        suite: a suite of LIBERO.
        assets: a folder, "hub", or None for the places which the module describes.

    Raises:
        AssetsIncompleteError: a file is missing; names it, the number of missing ones and the fix.
            Or the hub does not give them.
    """
    named = assets if assets is not None else os.environ.get(ASSETS_VARIABLE) or None
    if named == HUB:
        return _complete(suite, _download())
    if named is not None:
        return _complete(suite, Path(named))
    folders = [configured_assets(), libero_root() / "assets"]
    for folder in folders:
        if folder.is_dir() and not missing_files(suite, folder):
            return folder
    raise AssetsIncompleteError(f"Suite {suite} needs LIBERO's assets, none are here. {_HELP}")


@functools.cache
def required_files(suite: str) -> tuple[str, ...]:
    """Paths relative to the assets folder; without a manifest only LIBERO's folder of scenes."""
    manifest = MANIFESTS / f"{suite}.txt"
    if not manifest.is_file():
        return ("scenes",)
    return tuple(manifest.read_text(encoding="utf-8").split())


def missing_files(suite: str, folder: Path) -> list[str]:
    """Which of the required files `folder` lacks, in the order of the manifest."""
    return [name for name in required_files(suite) if not (folder / name).exists()]


def missing_on_load(suite: str, folder: Path, error: Exception) -> AssetsIncompleteError | None:
    """The error to raise instead when `error`, met while loading, says that a file is missing."""
    text = str(error)
    start = text.find(str(folder))
    if start < 0:
        return None
    name = text[start + len(str(folder)) :].split("'")[0].split('"')[0].strip().lstrip("/")
    if not name or (folder / name).exists():
        return None
    return AssetsIncompleteError(
        f"Suite {suite} needs {os.path.normpath(name)}, which {folder} lacks. {_HELP}"
    )


def _complete(suite: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise AssetsIncompleteError(f"The assets folder {folder} does not exist. {_HELP}")
    missing = missing_files(suite, folder)
    if missing:
        raise AssetsIncompleteError(
            f"Suite {suite} needs {missing[0]}, which {folder} lacks ({len(missing)} of "
            f"{len(required_files(suite))} files are missing). {_HELP}"
        )
    return folder.resolve()


def _download() -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(HUB_REPOSITORY, repo_type="dataset"))
    except Exception as error:  # the hub client's, the HTTP library's or the system's
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AssetsIncompleteError(
            f"LIBERO's assets cannot be had from the hub ({HUB_REPOSITORY}: {reason}): check the "
            "network, or name a folder that has them."
        ) from error
