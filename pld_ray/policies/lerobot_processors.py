"""Pre- and postprocessing as a checkpoint stores it: normalisation, prompts, tokeniser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import make_pre_post_processors

from pld_ray.policies.checkpoint import CONFIG, PREPROCESSOR, PolicyCheckpoint
from pld_ray.policies.lerobot_names import environment_names, needed_features

RENAME, TOKENIZER, DEVICE = (
    "rename_observations_processor",
    "tokenizer_processor",
    "device_processor",
)
TOKENIZER_FLAG = "--policy.tokenizer_path (of pld-ray acrlpd --algorithm.actor_tokenizer_path)"


def load_processors(
    checkpoint: PolicyCheckpoint,
    config: PreTrainedConfig,
    device: str,
    tokenizer_path: str | Path | None,
) -> tuple[Any, Any]:
    """The checkpoint's two pipelines, on `device` and without the network.

    Observations are renamed before (`environment_names`), so the pipeline's own renaming is
    switched off. Prompts are padded to a fixed length: padded to the longest of a batch, a row's
    last bits would depend on its company.

    Raises:
        FileNotFoundError: the tokeniser is not on this machine.
        ValueError: a pipeline cannot be built, or its statistics are of another width or not
            finite.
    """
    steps = {step["registry_name"]: step for step in checkpoint.processor_steps(PREPROCESSOR)}
    overrides: dict[str, dict[str, Any]] = {
        DEVICE: {"device": device},
        RENAME: {"rename_map": {}},
    }
    if TOKENIZER in steps:
        name = steps[TOKENIZER].get("config", {}).get("tokenizer_name")
        overrides[TOKENIZER] = {
            "tokenizer_name": local_pretrained(
                name, tokenizer_path, checkpoint, f"{PREPROCESSOR} names the tokeniser"
            ),
            "padding": "max_length",
        }
    try:
        processors = make_pre_post_processors(
            config,
            pretrained_path=str(checkpoint.directory),
            preprocessor_overrides={k: v for k, v in overrides.items() if k in steps},
        )
    except Exception as error:  # of many kinds; what the user can mend are the files
        raise ValueError(
            f"the processors of {checkpoint.directory} cannot be built: {error}"
        ) from error
    _try_processors(processors, config, checkpoint)
    return processors


def _try_processors(processors: tuple[Any, Any], config: Any, checkpoint: PolicyCheckpoint) -> None:
    """Refuse statistics that do not fit the policy's features, or make NaN of zeros."""
    preprocess, postprocess = processors
    zeros = {name: torch.zeros(1, *shape) for name, shape in needed_features(config).items()}
    action = torch.zeros(1, 1, *config.output_features["action"].shape)
    try:
        made = [*preprocess({**zeros, "task": [""]}).values(), postprocess(action)]
    except Exception as error:
        raise ValueError(
            f"the processors of {checkpoint.directory} do not fit what {CONFIG} declares: {error}"
        ) from error
    numbers = (value for value in made if isinstance(value, torch.Tensor))
    if not all(value.isfinite().all() for value in numbers):
        raise ValueError(
            f"the processors of {checkpoint.directory} have statistics that are not finite: copy "
            "them again from where the policy was trained"
        )


def names_and_shapes(
    checkpoint: PolicyCheckpoint, config: Any, rename_map: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """What a policy needs: environment name -> its own name, environment name -> shape of a row.

    Args:
        checkpoint: its folder.
        config: its configuration.
        rename_map: environment name -> its name; None or empty is the one that it was trained with,
            as far as its names are still used.

    Raises:
        ValueError: the map does not fit it.
    """
    needed = needed_features(config)
    if not rename_map:
        saved = _saved_rename_map(checkpoint)
        rename_map = {env: own for env, own in saved.items() if own in needed}
    names = environment_names(needed, rename_map)
    return names, {env: needed[own] for env, own in names.items()}


def _saved_rename_map(checkpoint: PolicyCheckpoint) -> dict[str, str]:
    for step in checkpoint.processor_steps(PREPROCESSOR):
        if step["registry_name"] == RENAME:
            return dict(step.get("config", {}).get("rename_map") or {})
    return {}


def local_pretrained(
    name: str | None,
    override: str | Path | None,
    checkpoint: PolicyCheckpoint,
    what: str,
) -> str:
    """The folder of a tokeniser or vision-language model that a checkpoint names.

    It is the folder `override`, or `name` if that is a folder, or what the hub's cache holds under
    `name`; only a checkpoint that itself came from the hub may download it.

    Args:
        what: begins the error message, before the name.

    Raises:
        FileNotFoundError: it is not on this machine; names the flag to use. Or `override` is no
            directory.
    """
    if override is not None:
        folder = Path(override).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"tokenizer_path {str(override)!r} is not a directory")
        return str(folder)
    if name and Path(name).is_dir():
        return name
    if name and checkpoint.from_hub:
        return name
    if name and (cached := _cached_snapshot(name)):
        return cached
    raise FileNotFoundError(
        f"{checkpoint.directory}: {what} {name!r}, which is not on this machine; local policies "
        f"are loaded without the network. Download it (`hf download {name} --local-dir DIR`, its "
        f"*.json and tokeniser files are enough) and give DIR as {TOKENIZER_FLAG}"
    )


def _cached_snapshot(name: str) -> str | None:
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):  # not there, or no hub name at all
        return None
