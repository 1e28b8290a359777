"""Weights of encoders from local files, and what of them a policy's folder keeps."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping, Set
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pld_ray.networks.encoders.of_policy import (
    POLICY,
    WEIGHTS,
    read_policy_encoder,
    write_policy_encoder,
)

FILE_OPTION, TEXT_OPTION = "vision_encoder_weights", "text_encoder_path"


def with_weights_in(folder: pathlib.Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """A learner's parameters for a policy's folder, into which their weights' file is copied.

    Weights of an encoder that was trained are among the policy's own, and so are the embeddings of
    its instructions: it acts without the text model.
    """
    params = {**params, TEXT_OPTION: None}
    file = params.get(FILE_OPTION)
    if params.get("vision_encoder_name") == POLICY:
        write_policy_encoder(read_policy_encoder(str(file)), folder / "vision_encoder")
        return {**params, FILE_OPTION: "vision_encoder"}
    if not file or not params.get("freeze_vision_encoder", True):
        return {**params, FILE_OPTION: None}
    name = "vision_encoder" + pathlib.Path(file).suffix
    shutil.copyfile(file, folder / name)
    return {**params, FILE_OPTION: name}


def with_weights_of(folder: pathlib.Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """What `with_weights_in` wrote, as parameters that find the file.

    In place of a text model they name the policy's own weights, in older folders too.
    """
    name = params.get(FILE_OPTION)
    params = {**params, FILE_OPTION: str(folder / name) if name else None}
    if params.get("task_embedding") == "text":
        params[TEXT_OPTION] = str(folder / WEIGHTS)
    return params


def load_weights(
    name: str, model: nn.Module, needed: Set[str], file: str, ignored: tuple[str, ...] = ()
) -> None:
    """Fill a network from a file of tensors.

    Args:
        name: the encoder's, for messages.
        model: receives the weights.
        needed: its keys that the file must have; the others (a classifier's) may be missing or of
            another shape, and are then left as they are.
        file: safetensors, or anything that `torch.load(weights_only=True)` reads.
        ignored: prefixes of keys that the file may have besides.

    Raises:
        ValueError: no such file, not a file of tensors, or missing, unexpected or misshapen keys.
    """
    where = f"vision_encoder_weights={file}"
    state = read_tensors(where, pathlib.Path(file))
    own = model.state_dict()
    # files older than PyTorch 0.4.1 lack these counters; nothing reads them
    counted = {key for key in needed if not key.endswith("num_batches_tracked")}
    problems = {
        "are missing": [k for k in own if k in counted and k not in state],
        "are not expected": [k for k in state if k not in own and not k.startswith(ignored)],
        "have another shape": [k for k in needed & state.keys() if state[k].shape != own[k].shape],
    }
    for problem, keys in problems.items():
        if keys:
            first = ", ".join(sorted(keys)[:3])
            raise ValueError(
                f"{where} does not fit {name!r}: {len(keys)} keys {problem}: {first}; "
                "the names are those of the encoder's own state_dict"
            )
    model.load_state_dict({k: v for k, v in state.items() if k in needed}, strict=False)


def read_tensors(where: str, path: pathlib.Path) -> dict[str, Tensor]:
    """The tensors of a file, by name.

    Raises:
        ValueError: no such file, or something else than tensors in it.
    """
    if not path.is_file():
        raise ValueError(f"{where}: no such file; give a local safetensors file, or null")
    try:
        if path.suffix == ".safetensors":
            state = load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise ValueError(
            f"{where}: not a file of tensors ({type(error).__name__}); save it as safetensors"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{where}: not a file of tensors by name; save a state_dict in it")
    return state
