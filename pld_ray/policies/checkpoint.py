"""A LeRobot pretrained directory on disk: which files it must have, and their fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pld_ray.config.policy import EMBEDDED_POLICIES
from pld_ray.files.manifest import checksum
from pld_ray.options.check import names_repository

EMBEDDED_WEIGHTS = Path(__file__).parent / "weights"
"""Policies that ship with the library; PROVENANCE.json in each says how it was made."""
EMBEDDED_ACT = EMBEDDED_WEIGHTS / "pld_tabletop_act"
"""The one that is taken where none is named."""

CONFIG = "config.json"
RUN_CONFIG = "config.yaml"
"""Of a run of ours, which is no policy."""
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"

EXPORTED = "pld_chunked"
"""`type` of Q-chunking's own policy, which LeRobot knows through `pld_ray.plugin`."""
HUB_FILES = ["*.json", "*.safetensors", "vision_encoder.*"]
"""Of a policy's repository; the last are the weights of an exported policy's frozen encoder."""

LOCAL_WAY = (
    "give a local LeRobot pretrained directory (`hf download OWNER/NAME --local-dir DIR` makes "
    "one), or leave --policy.path out for the embedded ACT policy"
)
"""What helps where a policy that the command names is not there."""


@dataclasses.dataclass(frozen=True)
class PolicyCheckpoint:
    """The files of one checked pretrained directory.

    Attributes:
        directory: absolute path.
        config: `config.json`, parsed.
        files: every file that decides an answer, in a fixed order.
        weights: the safetensors files among them.
        processors: the two processors and their statistics among them.
        from_hub: it was asked for by hub name, so what it refers to may come from there too.
    """

    directory: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    weights: tuple[Path, ...]
    processors: tuple[Path, ...]
    from_hub: bool = False

    @property
    def policy_type(self) -> str:
        return str(self.config["type"])

    def processor_steps(self, name: str) -> list[dict[str, Any]]:
        """The steps of `PREPROCESSOR` or `POSTPROCESSOR`, as saved."""
        return json.loads((self.directory / name).read_text()).get("steps", [])

    def fingerprint(self, **options: Any) -> str:
        """sha256 over the names and contents of `files`, as 64 hexadecimal digits.

        Args:
            options: whatever else decides an answer and is not None, in JSON types.
        """
        own = _digest_of(self.files)
        options = {name: value for name, value in options.items() if value is not None}
        if not options:
            return own
        return checksum([own, options])


def open_checkpoint(path: str | Path | None, instead: str = LOCAL_WAY) -> PolicyCheckpoint:
    """Check a LeRobot pretrained directory before anything is loaded from it.

    LeRobot itself would look a missing directory up on the hub, and some of its policies come
    back with random weights when `model.safetensors` is missing; both are refused here.

    Args:
        path: the directory, the name of one of EMBEDDED_POLICIES, or a hub name `owner/name`,
            which is downloaded (with `HF_HUB_OFFLINE=1` it must be in the cache); None is the
            embedded ACT policy.
        instead: what to do where it is not there.

    Raises:
        FileNotFoundError: not a directory, not to be had from the hub, or one of its files is
            missing; the message names the file and how to get it.
        ValueError: a JSON file does not parse, `config.json` names no policy type, or a processor
            has a step that is not LeRobot's.
    """
    if path is None:
        directory, from_hub = EMBEDDED_ACT, False
    elif Path(path).expanduser().is_dir():
        directory, from_hub = Path(path).expanduser(), False
    elif str(path) in EMBEDDED_POLICIES:
        directory, from_hub = EMBEDDED_WEIGHTS / path, False
    else:
        directory, from_hub = _download(str(path), instead), True
    directory = directory.absolute()
    config = _read_json(directory / CONFIG, _hint(directory))
    if not isinstance(config.get("type"), str):
        raise ValueError(
            f"{directory / CONFIG} has no 'type': it must name the LeRobot policy type, e.g. 'act'"
        )
    weights = _weight_files(directory)
    processors: list[Path] = []
    for name in (PREPROCESSOR, POSTPROCESSOR):
        processors += _processor_files(directory / name)
    files = (directory / CONFIG, *weights, *processors, *_encoder_files(directory, config))
    tensors = tuple(file.resolve() for file in weights if file.suffix == ".safetensors")
    # the snapshots of the hub's cache are links to files that have other names: not resolved
    return PolicyCheckpoint(directory, config, files, tensors, tuple(processors), from_hub)


def folder_fingerprint(folder: str | Path) -> str:
    """sha256 over the tokeniser and configuration files of a folder; weights are left out."""
    files = [file for file in Path(folder).expanduser().iterdir() if file.is_file()]
    return _digest_of(sorted(f for f in files if f.suffix in (".json", ".model", ".txt")))


def _digest_of(files: Iterable[Path]) -> str:
    stamps = ((file, file.stat()) for file in files)
    return _digest(tuple((file, s.st_size, s.st_mtime_ns, s.st_ino) for file, s in stamps))


@functools.lru_cache(64)  # many gigabytes are read once in a process, until they change
def _digest(stamps: tuple[tuple[Path, int, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, size, *_ in stamps:
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _download(name: str, instead: str) -> Path:
    """The snapshot of a hub repository in the local cache, brought up to date if possible."""
    if not names_repository(name):
        raise FileNotFoundError(f"base policy {name!r} is not a directory: {instead}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client's, the HTTP library's or the system's
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"base policy {name!r} is not a directory here and cannot be had from the hub "
            f"({reason}): check the name and the network, or {instead}"
        ) from error


def _weight_files(directory: Path) -> list[Path]:
    """The weights in one file, or the index of several and those."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    index = directory / WEIGHTS_INDEX
    if not index.is_file():
        raise FileNotFoundError(
            f"{directory / WEIGHTS} is missing: without it the policy would act with random "
            "weights. Copy it from where the policy was trained (policy.save_pretrained)"
        )
    shards = _read_json(index, "").get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{index} has no 'weight_map' of tensor names to files: copy it again")
    names = sorted({_plain_name(name, index) for name in shards.values()})
    return [index, *(_existing(directory / name, index) for name in names)]


def _encoder_files(directory: Path, config: dict[str, Any]) -> list[Path]:
    """The frozen vision encoder beside an exported policy: a file, or the folder of another's."""
    params, file = config.get("params"), directory / CONFIG
    if config["type"] != EXPORTED or not isinstance(params, dict):
        return []
    if not (name := params.get("vision_encoder_weights")):
        return []
    encoder = directory / _plain_name(name, file)
    names = (CONFIG, WEIGHTS) if encoder.is_dir() else ("",)
    return [_existing(encoder / name, file) for name in names]


def _processor_files(file: Path) -> list[Path]:
    hint = (
        "it holds the policy's normalisation; checkpoints from before LeRobot 0.4 are converted "
        "with lerobot/processor/migrate_policy_normalization.py"
    )
    files = [file]
    steps = _read_json(file, hint).get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError(f"{file}: 'steps' must be a list of objects: copy it again")
    for step in steps:
        # a step may also name any Python class, which LeRobot imports and calls
        if "registry_name" not in step:
            raise ValueError(
                f"{file} has a step that is not registered in LeRobot ({step.get('class')!r}): "
                "only registered steps are run; save the policy again without it"
            )
        if state_file := step.get("state_file"):
            files.append(_existing(file.parent / _plain_name(state_file, file), file))
    return files


def _hint(directory: Path) -> str:
    """Where `config.json` comes from; a run and its checkpoints have none."""
    for folder in (directory, *directory.parents[:2]):
        if (folder / RUN_CONFIG).is_file():
            export = f"pld-ray export {shlex.quote(str(folder))} --to=DIR"
            return f"`{export}` writes what this run has learnt as a policy"
    return "a LeRobot pretrained directory has one: save with save_pretrained()"


def _plain_name(name: Any, named_in: Path) -> str:
    if not isinstance(name, str) or Path(name).name != name or name == "..":
        raise ValueError(f"{named_in} names the file {name!r}, which must lie beside it")
    return name


def _existing(file: Path, named_in: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing, named in {named_in}")
    return file


def _read_json(file: Path, hint: str) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {hint}")
    try:
        content = json.loads(file.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}): copy it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content
