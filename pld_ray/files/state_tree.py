"""A state tree on disk without pickle: arrays in safetensors, everything else in JSON.

RLlib's own state files are pickles; its msgpack option patches msgpack for the whole process, which
makes Ray send numpy arguments as dicts. Hence this format for what pld-ray reads back.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pld_ray.errors import UserError
from pld_ray.files.tensors import save_arrays


class StateFileError(UserError, ValueError):
    """A state file is missing or damaged; the message names it."""


def save_tree(path: pathlib.Path, tree: Any) -> None:
    """Write `<path>.json` and `<path>.safetensors`.

    Args:
        path: without suffix.
        tree: nested dicts (keys text or int), lists and tuples of arrays, tensors, numbers, text,
            flags and None.

    Raises:
        TypeError: a leaf of another kind.
        OSError: the disk is full or cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    skeleton = _take_apart(tree, arrays)
    save_arrays(arrays, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(skeleton))


def load_tree(path: pathlib.Path) -> Any:
    """Read what `save_tree` wrote; arrays come back as numpy arrays.

    Raises:
        StateFileError: a file is missing or damaged.
    """
    try:
        skeleton = json.loads(path.with_suffix(".json").read_text())
        arrays = load_file(path.with_suffix(".safetensors"))
        return _put_together(skeleton, arrays)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise StateFileError(
            f"the checkpoint file {path}.json or .safetensors is missing or damaged ({error}); use "
            "an older checkpoint"
        ) from error


def _take_apart(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, torch.Tensor):
        node = node.detach().cpu().numpy()
    if isinstance(node, np.ndarray) and node.dtype != object:
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(node).reshape(node.shape)
        return {"array": name}
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, dict):
        return {"dict": [[key, _take_apart(value, arrays)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_take_apart(value, arrays) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise TypeError(f"a checkpoint cannot hold a {type(node).__name__}: {node!r}")


def _put_together(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    ((kind, content),) = node.items()
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: _put_together(value, arrays) for key, value in content}
    if kind == "value":
        return content
    values = [_put_together(value, arrays) for value in content]
    return values if kind == "list" else tuple(values)
