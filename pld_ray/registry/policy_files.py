"""A trained policy as a folder of its own: JSON and safetensors, no environment, no replay.

The folder holds `policy.json` and `policy.safetensors` (the networks that act and what they are
normalised with), `policy_config.json` (spaces and network settings), `config.yaml` (the run's), and
the vision encoder's weights where there is one.
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

    from pld_ray.algorithm.module import ResidualModule
    from pld_ray.config import TrainConfig

SETTINGS = "policy_config.json"
STATE = "policy"
ENCODER = "vision_encoder"


def export_policy(
    checkpoint: pathlib.Path, config: TrainConfig, folder: pathlib.Path
) -> dict[str, Any]:
    """Write the policy of a checkpoint into `folder`.

    Returns:
        The content of `policy_config.json`.

    Raises:
        StateFileError: the checkpoint is incomplete.
    """
    from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

    from pld_ray.algorithm.module import non_inference
    from pld_ray.algorithm.state_file import load_tree, save_tree
    from pld_ray.build import algorithm_config

    state = load_tree(checkpoint / "learner")[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
    left_out = non_inference(config.algorithm)
    acting = {k: v for k, v in state.items() if k.split(".")[0] not in left_out}
    model_config = dict(algorithm_config(config).get_default_rl_module_spec().model_config)
    observations, actions = policy_spaces(config)
    folder.mkdir(parents=True, exist_ok=True)
    params = dict(model_config["params"])
    weights = params.get("vision_encoder_weights")
    if weights and pathlib.Path(weights).is_file():
        name = ENCODER + pathlib.Path(weights).suffix
        shutil.copy(weights, folder / name)
        params["vision_encoder_weights"] = name
    settings = {
        "format_version": 1,
        "model_config": {**model_config, "params": params},
        "observations": {k: describe_space(s) for k, s in observations.spaces.items()},
        "actions": describe_space(actions),
    }
    save_tree(folder / STATE, acting)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1))
    return settings


def policy_spaces(config: TrainConfig) -> tuple[gym.spaces.Dict, gym.spaces.Box]:
    """What the networks see, `base_action` included, and the action space.

    The environment is opened, and the base policy only if the networks see its features.
    """
    from pld_ray.build import policy_loader
    from pld_ray.rollout.factory import env_maker, make_base_policy
    from pld_ray.rollout.vector_env import with_base_policy

    env: Any = env_maker(config.env.settings())()
    try:
        settings: dict[str, Any] = {"type": "none"}
        if config.policy.features != "none":
            settings = {"type": config.policy.type, "path": config.policy.path}
            settings |= policy_loader(config.policy)
        policy = make_base_policy(settings, env.action_space)
        spaces = with_base_policy(policy, env.observation_space, env.action_space)
        return spaces, env.action_space
    finally:
        env.close()


def load_policy_module(folder: pathlib.Path) -> ResidualModule:
    """The networks that `export_policy` wrote, ready to act.

    Raises:
        StateFileError: a file is missing or damaged.
    """
    import gymnasium as gym
    import torch

    from pld_ray.algorithm.module import ResidualModule
    from pld_ray.algorithm.state_file import load_tree

    settings = json.loads((folder / SETTINGS).read_text())
    model_config = settings["model_config"]
    weights = model_config["params"].get("vision_encoder_weights")
    if weights and (folder / weights).is_file():
        model_config["params"]["vision_encoder_weights"] = str(folder / weights)
    spaces: dict[str, gym.Space] = {
        key: make_space(space) for key, space in settings["observations"].items()
    }
    module = ResidualModule(
        observation_space=gym.spaces.Dict(spaces),
        action_space=make_space(settings["actions"]),
        inference_only=True,
        model_config=model_config,
    )
    state = {k: torch.as_tensor(v) for k, v in load_tree(folder / STATE).items()}
    module.load_state_dict(state)
    return module.eval()


def compute_actions(module: ResidualModule, observations: Mapping[str, np.ndarray]) -> np.ndarray:
    """Composed and clipped actions [B, A] float32 of base + residual, without noise.

    Args:
        module: of `load_policy_module`.
        observations: column -> [B, ...], `base_action` among them.

    Raises:
        ValueError: a column is missing.
    """
    import torch
    from ray.rllib.core.columns import Columns

    needed = module.input_columns
    missing = [key for key in needed if key not in observations]
    if missing:
        raise ValueError(f"the policy needs {', '.join(needed)}; missing: {', '.join(missing)}")
    batch = {key: torch.as_tensor(np.asarray(observations[key])) for key in needed}
    return module.forward_inference({Columns.OBS: batch})[Columns.ACTIONS].numpy()


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
