"""The vision encoder of a trained policy, out of the files of its folder."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pld_ray.columns import IMAGE_PREFIX
from pld_ray.files.tensors import save_tensors

CONFIG, WEIGHTS, PREPROCESSOR = "config.json", "model.safetensors", "policy_preprocessor.json"
ACT, CHUNKED, ENCODER = "act", "pld_chunked", "pld_vision_encoder"
LAYERS, HEADS, POLICY = "layers.", "heads.", "policy"
OPTION = "vision_encoder_weights"


@dataclass(frozen=True)
class PolicyEncoder:
    """A vision encoder that somebody else's losses have trained.

    Attributes:
        name: of the architecture, see `build_backbone`.
        hidden_dim: channels of `cnn`.
        state: of the `Backbone`: mean and std of its images, and its layers.
        heads: camera column -> state of its `ImageHead`; empty where the policy has none.
    """

    name: str
    hidden_dim: int
    state: dict[str, Tensor]
    heads: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def read_policy_encoder(folder: str) -> PolicyEncoder:
    """The vision encoder of a policy's folder.

    Args:
        folder: of a LeRobot ACT, of `pld-ray export`'s flow with an encoder of its own, or what
            `write_policy_encoder` wrote.

    Raises:
        ValueError: no such folder, a policy of another type or without cameras, or a damaged file.
    """
    where, path = f"{OPTION}={folder}", pathlib.Path(folder).expanduser()
    try:
        config = json.loads((path / CONFIG).read_text())
        kind = config["type"]
        readers = {ACT: of_act, CHUNKED: of_chunked, ENCODER: of_encoder}
        if kind not in readers:
            raise ValueError(
                f"{where}: a policy of type {kind!r} has no encoder that can be used alone; "
                "vision_encoder_name=policy knows act and pld_chunked: name another encoder"
            )
        return readers[kind](where, path, config)
    except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(
            f"{where}: not the folder of a policy ({type(error).__name__}: {error}); give one with "
            f"{CONFIG} and {WEIGHTS}"
        ) from None


def of_act(where: str, folder: pathlib.Path, config: Mapping[str, Any]) -> PolicyEncoder:
    """ACT's ResNet, up to its last stage; images as its preprocessor scales them."""
    if config.get("replace_final_stride_with_dilation"):
        raise ValueError(f"{where}: replace_final_stride_with_dilation is not known here")
    layers = {
        f"{LAYERS}model.{key}": value
        for key, value in part_of(load_file(folder / WEIGHTS), "model.backbone.").items()
    }
    if not layers:
        raise ValueError(f"{where}: the policy reads no camera; name another vision encoder")
    return PolicyEncoder(
        f"torchvision:{config['vision_backbone']}", 0, {**layers, **image_scale(where, folder)}
    )


def of_chunked(where: str, folder: pathlib.Path, config: Mapping[str, Any]) -> PolicyEncoder:
    """The encoder that a flow's cloning has trained, and what it makes of each camera."""
    params, state = config["params"], load_file(folder / WEIGHTS)
    state = {key: value for key, value in state.items() if key.startswith("ema_actor.")}
    cameras = sorted(key for key in config["input_features"] if key.startswith(IMAGE_PREFIX))
    heads = {
        camera: part_of({k.partition(".encoder.")[2]: v for k, v in state.items()}, f"{HEADS}{i}.")
        for i, camera in enumerate(cameras)
    }
    name, hidden_dim = params["vision_encoder_name"], int(params["image_encoder_hidden_dim"])
    if name == POLICY:  # of another policy, whose copy lies in the folder
        first = read_policy_encoder(str(folder / params[OPTION]))
        name, hidden_dim = first.name, first.hidden_dim
        if params["freeze_vision_encoder"]:
            return replace(first, heads=heads)
    trained = {
        k.rpartition(".backbone.")[2]: value for k, value in state.items() if ".backbone." in k
    }
    if not trained:
        raise ValueError(
            f"{where}: the policy has trained no vision encoder; name the one that it reads "
            f"cameras with ({name})"
        )
    return PolicyEncoder(name, hidden_dim, trained, heads)


def of_encoder(where: str, folder: pathlib.Path, config: Mapping[str, Any]) -> PolicyEncoder:
    """What `write_policy_encoder` wrote."""
    tensors = load_file(folder / WEIGHTS)
    heads = {camera: part_of(tensors, f"{HEADS}{camera}.") for camera in config.get("cameras", ())}
    state = {key: value for key, value in tensors.items() if not key.startswith(HEADS)}
    return PolicyEncoder(config["name"], int(config["hidden_dim"]), state, heads)


def write_policy_encoder(encoder: PolicyEncoder, folder: pathlib.Path) -> None:
    """Keep it in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "type": ENCODER,
        "name": encoder.name,
        "hidden_dim": encoder.hidden_dim,
        "cameras": list(encoder.heads),
    }
    (folder / CONFIG).write_text(json.dumps(description, indent=1))
    tensors = {f"{HEADS}{c}.{k}": v for c, head in encoder.heads.items() for k, v in head.items()}
    tensors |= encoder.state
    save_tensors({k: v.contiguous() for k, v in tensors.items()}, folder / WEIGHTS)


def image_scale(where: str, folder: pathlib.Path) -> dict[str, Tensor]:
    """Mean and standard deviation [3, 1, 1] by which a LeRobot policy scales its images.

    Raises:
        ValueError: it scales them otherwise, or each camera in its own way.
    """
    steps = json.loads((folder / PREPROCESSOR).read_text())["steps"]
    normalizer = next((s for s in steps if s.get("registry_name") == "normalizer_processor"), None)
    if (
        normalizer is None
        or normalizer["config"]["norm_map"].get("VISUAL", "IDENTITY") != "MEAN_STD"
    ):
        raise ValueError(
            f"{where}: {PREPROCESSOR} does not scale images by mean and standard deviation; name "
            "another encoder"
        )
    stats = load_file(folder / normalizer["state_file"])
    found: dict[str, Tensor] = {}
    for name in ("mean", "std"):
        values = [v.float() for k, v in stats.items() if "image" in k and k.endswith(f".{name}")]
        if not values or any(not torch.equal(value, values[0]) for value in values):
            raise ValueError(
                f"{where}: its cameras are scaled each in its own way, or not at all; train the "
                "policy with ImageNet's statistics (use_imagenet_stats), or name another encoder"
            )
        found[name] = values[0].reshape(3, 1, 1)
    return found


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of a part, by their names in it."""
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}
