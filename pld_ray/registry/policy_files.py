"""Base + residual as a folder of its own: JSON and safetensors, no environment, no replay.

The folder holds `policy.json` and `policy.safetensors` (the networks that act and what they are
normalised with), `policy_config.json` (spaces, instruction, how to load both parts),
`base_policy/` (its LeRobot files), `config.yaml` (the run's), and, where they are used,
`tokenizer/` and the vision encoder's weights.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium as gym

    from pld_ray.algorithm.residual.networks import ResidualNetworks
    from pld_ray.config import PolicyConfig, TrainConfig
    from pld_ray.policies import BasePolicy

FORMAT_VERSION = 2
SETTINGS = "policy_config.json"
STATE = "policy"
BASE_POLICY, TOKENIZER = "base_policy", "tokenizer"
TOKENIZER_FILES = (".json", ".model", ".txt")
"""Of a tokeniser's folder, which may hold the weights of a whole model besides."""


def export_policy(
    checkpoint: pathlib.Path, config: TrainConfig, folder: pathlib.Path
) -> dict[str, Any]:
    """Write base + residual of a checkpoint into `folder`.

    Returns:
        The content of `policy_config.json`.

    Raises:
        CheckpointError, StateFileError: the checkpoint is damaged or incomplete.
        FileNotFoundError: the base policy is gone.
    """
    from pld_ray.algorithm.residual.networks import trained_only
    from pld_ray.algorithm.residual.pretrained import read_networks
    from pld_ray.files.state_tree import save_tree
    from pld_ray.networks.encoders.weights import with_weights_in
    from pld_ray.rllib.config import ResidualSACConfig

    left_out = trained_only(config.algorithm)
    state = read_networks(checkpoint)
    acting = {k: v for k, v in state.items() if k.split(".")[0] not in left_out}
    model_config = dict(ResidualSACConfig.of_run(config).get_default_rl_module_spec().model_config)
    folder.mkdir(parents=True, exist_ok=True)
    params = with_weights_in(folder, model_config["params"])
    settings = {
        "format_version": FORMAT_VERSION,
        **describe_environment(config),
        "base_policy": export_base_policy(config.policy, folder),
        "model_config": {**model_config, "params": params},
    }
    save_tree(folder / STATE, acting)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1))
    return settings


def describe_environment(config: TrainConfig) -> dict[str, Any]:
    """The spaces of a run's environment and its instruction in words; it is opened for that."""
    from pld_ray.rollout.factory import env_maker

    env: Any = env_maker(config.env.settings())()
    try:
        _, info = env.reset(seed=0)
        return {
            "observations": {k: describe_space(s) for k, s in env.observation_space.spaces.items()},
            "actions": describe_space(env.action_space),
            "task": str(info.get("task", "")),
        }
    finally:
        env.close()


def export_base_policy(policy: PolicyConfig, folder: pathlib.Path) -> dict[str, Any]:
    """Copy the base policy's files into `folder`.

    Returns:
        How to load it from there: `type`, `path` (in `folder`, or a name on the hub, which stays
        one), `fingerprint` of its files, `prefetch`, and what else `load_base_policy` takes.
    """
    from pld_ray.policies.checkpoint import open_checkpoint

    if policy.type == "none":
        return {"type": "none"}
    source = open_checkpoint(policy.path)
    loader = policy.loader()
    if not source.from_hub:
        (folder / BASE_POLICY).mkdir()
        for file in source.files:
            shutil.copy(file, folder / BASE_POLICY)
    if policy.tokenizer_path is not None:
        (folder / TOKENIZER).mkdir()
        for file in pathlib.Path(policy.tokenizer_path).expanduser().iterdir():
            if file.is_file() and file.suffix in TOKENIZER_FILES:
                shutil.copy(file, folder / TOKENIZER)
        loader["tokenizer_path"] = TOKENIZER
    return {
        "type": policy.type,
        "path": policy.path if source.from_hub else BASE_POLICY,
        "fingerprint": source.fingerprint(),
        "prefetch": policy.prefetch,
        "loader": loader,
    }


def read_settings(folder: pathlib.Path) -> dict[str, Any]:
    """`policy_config.json` of a folder.

    Raises:
        ConfigError: the folder holds no policy, or one of another format.
    """
    from pld_ray.config import ConfigError

    try:
        settings = json.loads((folder / SETTINGS).read_text())
        version = settings["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder / SETTINGS} is missing or damaged: register the policy again (pld-ray "
            "register)"
        ) from None
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{folder / SETTINGS}: format_version is {version!r}, and this pld-ray reads "
            f"{FORMAT_VERSION}: register the policy again (pld-ray register)"
        )
    return settings


def load_exported_base_policy(folder: pathlib.Path, settings: Mapping[str, Any]) -> BasePolicy:
    """The base policy that `export_base_policy` described.

    Raises:
        ConfigError: it is not the one that the residual was trained on.
        FileNotFoundError: a file is missing, or the hub's name cannot be had.
    """
    from pld_ray.config import ConfigError
    from pld_ray.policies.checkpoint import open_checkpoint
    from pld_ray.rollout.factory import make_base_policy

    base = settings["base_policy"]
    actions = make_space(settings["actions"])
    if base["type"] == "none":
        return make_base_policy({"type": "none"}, actions)
    path = str(folder / BASE_POLICY) if base["path"] == BASE_POLICY else base["path"]
    loader = dict(base["loader"])
    if "tokenizer_path" in loader:
        loader["tokenizer_path"] = str(folder / TOKENIZER)
    if open_checkpoint(path).fingerprint() != base["fingerprint"]:
        raise ConfigError(
            f"the base policy {path} is not the one that this residual was trained on: its files "
            "have changed since it was registered"
        )
    return make_base_policy({"type": base["type"], "path": path, **loader}, actions)


def load_policy_networks(
    folder: pathlib.Path, settings: Mapping[str, Any], spaces: gym.spaces.Dict
) -> ResidualNetworks:
    """The networks that `export_policy` wrote, ready to act.

    Args:
        spaces: what they see, the base policy's part included.

    Raises:
        StateFileError: a file is missing or damaged.
    """
    import torch

    from pld_ray.algorithm.residual.networks import ResidualNetworks
    from pld_ray.config import ResidualSACParams
    from pld_ray.files.state_tree import load_tree
    from pld_ray.networks.encoders.weights import with_weights_of

    params = with_weights_of(folder, settings["model_config"]["params"])
    networks = ResidualNetworks.of_spaces(
        spaces,
        make_space(settings["actions"]),
        ResidualSACParams(**params),
        tasks=settings["model_config"].get("tasks", ()),
    )
    networks.keep_what_acts()
    state = {k: torch.as_tensor(v) for k, v in load_tree(folder / STATE).items()}
    networks.load_state_dict(state)
    return networks.eval()


def describe_space(space: Any) -> dict[str, Any]:
    """A Box as JSON."""
    return {
        "shape": list(space.shape or ()),
        "dtype": str(space.dtype),
        "low": bound(space.low),
        "high": bound(space.high),
    }


def bound(values: np.ndarray) -> Any:
    """One number where all are equal, else a nested list; infinities as text."""
    flat = np.unique(values)
    return str(flat[0]) if flat.size == 1 else values.tolist()


def make_space(description: Mapping[str, Any]) -> gym.spaces.Box:
    """What `describe_space` described."""
    import gymnasium as gym

    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (
        np.broadcast_to(np.asarray(description[end], np.float64), shape).astype(dtype)
        for end in ("low", "high")
    )
    return gym.spaces.Box(low, high, shape, dtype.type)
