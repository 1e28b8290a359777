"""The presets that are shipped: YAML files of the package, known by their stems."""

from __future__ import annotations

import difflib
import os
import pathlib

from pld_ray.config.train import ConfigError

PRESETS = pathlib.Path(__file__).parent.parent / "presets"


def preset_names() -> list[str]:
    """Stems of the shipped files."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def find_preset(given: str | os.PathLike[str], folder: pathlib.Path | None = None) -> pathlib.Path:
    """The file of a configuration: a path as it stands, else a shipped preset's name.

    Args:
        folder: where a relative path is looked for first.

    Raises:
        ConfigError: there is neither; close names are suggested.
    """
    text = os.fspath(given)
    for path in ([folder / text] if folder else []) + [pathlib.Path(text)]:
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):
            continue
    names = preset_names()
    if text in names:
        return PRESETS / f"{text}.yaml"
    close = difflib.get_close_matches(pathlib.PurePath(text[:200]).stem, names, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else f"presets are {', '.join(names)}"
    raise ConfigError(f"{text[:300]}: no such file and no preset; {hint}")
