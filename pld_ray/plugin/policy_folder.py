"""Base + residual as a LeRobot policy folder: JSON and safetensors, no environment, no replay.

The folder holds `config.json` (LeRobot's keys, spaces, instruction, how to load both parts),
`model.safetensors` (the networks that act and what they are normalised with), the two processors,
`base_policy/` (its LeRobot files), and, where they are used, `tokenizer/` and the vision encoder's
weights.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pld_ray.config import ConfigError
from pld_ray.policies.checkpoint import CONFIG, WEIGHTS, open_checkpoint

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np

    from pld_ray.algorithm.residual.networks import ResidualNetworks
    from pld_ray.config import PolicyConfig
    from pld_ray.policies import BasePolicy

FORMAT_VERSION = 3
RESIDUAL = "pld_residual"
"""`type` in `config.json`."""
BASE_POLICY, TOKENIZER = "base_policy", "tokenizer"
TOKENIZER_FILES = (".json", ".model", ".txt")
"""Of a tokeniser's folder, which may hold the weights of a whole model besides."""
NEW_PLACE = "put it back, or write its new place as policy.path into the run's config.yaml"
"""What helps where the base policy of a stored run is gone."""


def write_residual(
    folder: pathlib.Path,
    state: Mapping[str, np.ndarray],
    model_config: Mapping[str, Any],
    environment: Mapping[str, Any],
    policy: PolicyConfig,
) -> dict[str, Any]:
    """Write base + residual.

    Args:
        folder: is made.
        state: of the networks, what acts.
        model_config: `params` and `tasks` of the networks.
        environment: `observations` and `actions` (spaces, see `describe_spaces`) and `task`.
        policy: the base policy.

    Returns:
        The content of `config.json`.

    Raises:
        FileNotFoundError: the base policy is gone.
    """
    import torch

    from pld_ray.files.tensors import save_tensors
    from pld_ray.networks.encoders.weights import with_weights_in
    from pld_ray.policies.exported import write_description
    from pld_ray.policies.protocol import channel_first

    folder.mkdir(parents=True, exist_ok=True)
    params = with_weights_in(folder, model_config["params"])
    settings = {
        "format_version": FORMAT_VERSION,
        **environment,
        "base_policy": write_base_policy(policy, folder),
        "networks": {"params": params, "tasks": list(model_config.get("tasks", ()))},
    }
    shapes = {
        key: channel_first(key, tuple(space["shape"]))
        for key, space in settings["observations"].items()
    }
    action_dim = settings["actions"]["shape"][0]
    settings = write_description(folder, RESIDUAL, shapes, action_dim, settings)
    tensors = {key: torch.as_tensor(value).contiguous() for key, value in state.items()}
    save_tensors(tensors, folder / WEIGHTS)
    return settings


def check_base_policy(policy: PolicyConfig) -> None:
    """Refuse a base policy that is gone, or incomplete.

    Raises:
        ConfigError: naming it, and what helps a stored run.
    """
    try:
        if policy.type != "none":
            open_checkpoint(policy.path, NEW_PLACE)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def write_base_policy(policy: PolicyConfig, folder: pathlib.Path) -> dict[str, Any]:
    """Copy the base policy's files into `folder`.

    Returns:
        How to load it from there: `type`, `path` (in `folder`, or a name on the hub, which stays
        one), `fingerprint` of its files, `prefetch`, and what else `load_base_policy` takes.
    """
    if policy.type == "none":
        return {"type": "none"}
    source = open_checkpoint(policy.path)
    loader = policy.loader()
    if not source.from_hub:
        for file in source.files:
            copy = folder / BASE_POLICY / file.relative_to(source.directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    if policy.tokenizer_path is not None:
        (folder / TOKENIZER).mkdir()
        for file in pathlib.Path(policy.tokenizer_path).expanduser().iterdir():
            if file.is_file() and file.suffix in TOKENIZER_FILES:
                shutil.copyfile(file, folder / TOKENIZER / file.name)
        loader["tokenizer_path"] = TOKENIZER
    return {
        "type": policy.type,
        "path": policy.path if source.from_hub else BASE_POLICY,
        "fingerprint": source.fingerprint(),
        "prefetch": policy.prefetch,
        "loader": loader,
    }


def read_settings(folder: pathlib.Path) -> dict[str, Any]:
    """`config.json` of a folder.

    Raises:
        ConfigError: the folder holds no base + residual, or one of another format.
    """
    again = "export the run again (pld-ray export, or pld-ray register)"
    try:
        settings = json.loads((folder / CONFIG).read_text())
        version = settings["format_version"] if settings["type"] == RESIDUAL else None
    except (OSError, ValueError, KeyError, TypeError):
        version = None
    if version is None:
        raise ConfigError(f"{folder / CONFIG} is missing, or is of no base + residual: {again}")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{folder / CONFIG}: format_version is {version!r}, and this pld-ray reads "
            f"{FORMAT_VERSION}: {again}"
        )
    return settings


def load_base(
    folder: pathlib.Path, settings: Mapping[str, Any], actions: gym.spaces.Box, device: str
) -> BasePolicy:
    """The base policy that `write_base_policy` described.

    Raises:
        ConfigError: it is not the one that the residual was trained on.
        FileNotFoundError: a file is missing, or the hub's name cannot be had.
    """
    from pld_ray.policies import NoBasePolicy, load_base_policy

    base = settings["base_policy"]
    if base["type"] == "none":
        return NoBasePolicy((actions.shape or (0,))[0])
    path = str(folder / BASE_POLICY) if base["path"] == BASE_POLICY else base["path"]
    loader = {**base["loader"], "device": device}
    if "tokenizer_path" in loader:
        loader["tokenizer_path"] = str(folder / TOKENIZER)
    if open_checkpoint(path).fingerprint() != base["fingerprint"]:
        raise ConfigError(
            f"the base policy {path} is not the one that this residual was trained on: its files "
            "have changed since it was exported"
        )
    return load_base_policy(path, **loader)


def load_networks(
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    spaces: gym.spaces.Dict,
    actions: gym.spaces.Box,
) -> ResidualNetworks:
    """The networks that `write_residual` wrote, ready to act.

    Args:
        folder: of the policy.
        settings: of `read_settings`.
        spaces: what they see, the base policy's part included.
        actions: of the environment.

    Raises:
        ConfigError: the weights are missing, damaged or of other networks, or a parameter is none
            that this release or an older one has.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from pld_ray.algorithm.residual.networks import ResidualNetworks
    from pld_ray.config import ResidualSACParams
    from pld_ray.networks.encoders.weights import with_weights_of

    stored = with_weights_of(folder, settings["networks"]["params"])
    try:
        params = ResidualSACParams.of_stored(stored)
    except ValueError as error:
        raise ConfigError(
            f"{folder / CONFIG}: networks.params.{error}: read it with the one that exported it"
        ) from None
    tasks = tuple(settings["networks"].get("tasks", ()))
    try:
        networks = ResidualNetworks.of_spaces(spaces, actions, params, tasks=tasks)
        networks.keep_what_acts()
        networks.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(
            f"{folder / WEIGHTS} cannot be read ({str(error).splitlines()[0]}): copy it again"
        ) from None
    return networks.eval()
