"""A LeRobot pretrained directory on disk: which files it must have, and their fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

EMBEDDED_ACT = Path(__file__).parent / "weights" / "pld_tabletop_act"
"""The ACT policy that ships with the library; PROVENANCE.json beside it says how it was made."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"


@dataclasses.dataclass(frozen=True)
class PolicyCheckpoint:
    """The files of one checked pretrained directory.

    Attributes:
        directory: absolute path.
        config: `config.json`, parsed.
        files: every file that decides an answer, in a fixed order.
    """

    directory: Path
    config: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def policy_type(self) -> str:
        return str(self.config["type"])

    def fingerprint(self) -> str:
        """sha256 over the names and contents of `files`, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()


def open_checkpoint(path: str | Path | None) -> PolicyCheckpoint:
    """Check a LeRobot pretrained directory before anything is loaded from it.

    LeRobot itself would look a missing directory up on the hub, and some of its policies come
    back with random weights when `model.safetensors` is missing; both are refused here.

    Args:
        path: the directory; None is the embedded ACT policy.

    Raises:
        FileNotFoundError: not a directory, or one of its files is missing; the message names the
            file and how to get it.
        ValueError: a JSON file does not parse, or `config.json` names no policy type.
    """
    directory = EMBEDDED_ACT if path is None else Path(path).expanduser()
    if not directory.is_dir():
        raise FileNotFoundError(
            f"base policy {str(path)!r} is not a directory: policies are read offline, from a "
            "local LeRobot pretrained directory. Download it (`hf download REPO --local-dir DIR`) "
            "and give DIR as --policy.path; leave it out for the embedded ACT policy"
        )
    config = _read_json(
        directory / CONFIG, "a LeRobot pretrained directory has one: save with save_pretrained()"
    )
    if not isinstance(config.get("type"), str):
        raise ValueError(
            f"{directory / CONFIG} has no 'type': it must name the LeRobot policy type, e.g. 'act'"
        )
    weights = directory / WEIGHTS
    if not weights.is_file():
        raise FileNotFoundError(
            f"{weights} is missing: without it the policy would act with random weights. "
            "Copy it from where the policy was trained (policy.save_pretrained)"
        )
    files = [directory / CONFIG, weights]
    for name in (PREPROCESSOR, POSTPROCESSOR):
        files += _processor_files(directory / name)
    return PolicyCheckpoint(directory.resolve(), config, tuple(files))


def _processor_files(file: Path) -> list[Path]:
    hint = (
        "it holds the policy's normalisation; checkpoints from before LeRobot 0.4 are converted "
        "with lerobot/processor/migrate_policy_normalization.py"
    )
    files = [file]
    for step in _read_json(file, hint).get("steps", []):
        if state_file := step.get("state_file"):
            if not (file.parent / state_file).is_file():
                raise FileNotFoundError(f"{file.parent / state_file} is missing, named in {file}")
            files.append(file.parent / state_file)
    return files


def _read_json(file: Path, hint: str) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {hint}")
    try:
        content = json.loads(file.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}): copy it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content
