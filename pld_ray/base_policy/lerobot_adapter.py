"""LeRobot checkpoints as base policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import PreTrainedPolicy, get_policy_class, make_pre_post_processors

from pld_ray.base_policy.checkpoint import (
    CONFIG,
    WEIGHTS,
    PolicyCheckpoint,
    open_checkpoint,
)
from pld_ray.base_policy.protocol import BATCH_ROWS

SUPPORTED_TYPES = ("act",)
"""LeRobot policy types whose rows were proved independent of each other (see the tests)."""


def load_base_policy(
    path: str | Path | None = None, device: str = "cpu", batch_rows: int = BATCH_ROWS
) -> LeRobotBasePolicy:
    """Load a LeRobot pretrained directory, offline, frozen and in evaluation mode.

    Args:
        path: the directory with `config.json`, `model.safetensors` and the two processors; None
            is the embedded ACT policy of `pld_tabletop`.
        device: torch device of the network; answers are numpy arrays on the host.
        batch_rows: rows of every network call. Answers are bit-identical only among policies of
            equal `batch_rows` and device.

    Raises:
        FileNotFoundError: the directory or one of its files is missing.
        ValueError: a file is broken, the policy type is not supported, or the device is absent.
    """
    return LeRobotBasePolicy(open_checkpoint(path), device=device, batch_rows=batch_rows)


class LeRobotBasePolicy:
    """A LeRobot policy that answers rows independently: a `BasePolicy`.

    `predict_action_chunk` is called, never `select_action`, whose queue is one per policy object
    and mixes environments that are not in lock step.

    Every network call has exactly `batch_rows` rows: fewer are padded with zeros, more are split.
    Matrix products of different heights take different paths through the BLAS library and sum in
    different orders, so the same row would get another last bit in another company; with one
    shape there is one path, and a row's place in it does not matter. The number of torch threads
    made no difference for the embedded policy either (measured with one and two).

    Args:
        checkpoint: files checked by `open_checkpoint`.
        device: torch device.
        batch_rows: 8 costs a single row 0.3 ms more than its own forward pass (1.4 against
            1.1 ms for the embedded policy) and eight rows nothing.
    """

    def __init__(
        self, checkpoint: PolicyCheckpoint, device: str = "cpu", batch_rows: int = BATCH_ROWS
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        if checkpoint.policy_type not in SUPPORTED_TYPES:
            raise ValueError(
                f"{checkpoint.directory / CONFIG} is of type {checkpoint.policy_type!r}; base "
                f"policies of type {', '.join(SUPPORTED_TYPES)} are supported"
            )
        config = _load_config(checkpoint, device)
        self._device = torch.device(device)
        self._policy = _load_network(checkpoint, config)
        self._preprocess, self._postprocess = make_pre_post_processors(
            config,
            pretrained_path=str(checkpoint.directory),
            preprocessor_overrides={"device_processor": {"device": str(device)}},
        )
        self.batch_rows = batch_rows
        self.n_action_steps = int(config.n_action_steps)
        self.action_dim = int(config.output_features["action"].shape[0])
        self.input_features = {k: tuple(f.shape) for k, f in config.input_features.items()}
        self.fingerprint = checkpoint.fingerprint()

    def reset(self, env_ids: Sequence[int]) -> None:
        """Nothing is kept between calls, so nothing is dropped."""

    @torch.inference_mode()
    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> np.ndarray:
        """See `BasePolicy.infer`; `seeds` are not used by deterministic policies such as ACT.

        Raises:
            ValueError: a needed observation is missing or has another shape, or the number of
                tasks differs from the number of rows.
        """
        num_rows = self.check(observations, tasks)
        chunks = np.empty((num_rows, self.n_action_steps, self.action_dim), dtype=np.float32)
        for start in range(0, num_rows, self.batch_rows):
            rows = slice(start, min(start + self.batch_rows, num_rows))
            batch: dict[str, Any] = {
                k: self._padded(observations[k][rows]) for k in self.input_features
            }
            padding = self.batch_rows - len(tasks[rows])
            batch["task"] = [*tasks[rows], *[""] * padding]
            actions = self._policy.predict_action_chunk(self._preprocess(batch))
            actions = self._postprocess(actions[:, : self.n_action_steps])
            chunks[rows] = actions[: self.batch_rows - padding].float().cpu().numpy()
        return chunks

    def check(self, observations: Mapping[str, np.ndarray], tasks: Sequence[str]) -> int:
        """The number of rows of a well-formed request; refuses any other, naming what is wrong."""
        for key, shape in self.input_features.items():
            if key not in observations:
                raise ValueError(f"the base policy needs {key!r}; got {sorted(observations)}")
            # declared channel-first by LeRobot, given channel-last by environments
            row = (*shape[1:], shape[0]) if _is_image(key) else shape
            if tuple(observations[key].shape) != (len(tasks), *row):
                raise ValueError(
                    f"observation {key!r} has shape {tuple(observations[key].shape)}; expected "
                    f"{(len(tasks), *row)} for {len(tasks)} tasks"
                )
        return len(tasks)

    def _padded(self, rows: np.ndarray) -> torch.Tensor:
        padded = np.zeros((self.batch_rows, *rows.shape[1:]), dtype=rows.dtype)
        padded[: len(rows)] = rows
        tensor = torch.from_numpy(padded)
        if tensor.ndim == 4:
            tensor = tensor.permute(0, 3, 1, 2)
        return tensor.float() / 255 if padded.dtype == np.uint8 else tensor.float()


def _is_image(key: str) -> bool:
    return key.startswith("observation.image")


def _load_config(checkpoint: PolicyCheckpoint, device: str) -> PreTrainedConfig:
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"base policy device {device!r}: no CUDA device here; use 'cpu'")
    try:
        config = PreTrainedConfig.from_pretrained(checkpoint.directory, local_files_only=True)
    except Exception as error:  # draccus raises its own kinds; the file is what the user can fix
        raise ValueError(f"{checkpoint.directory / CONFIG} cannot be read: {error}") from error
    config.device = device
    return config


def _load_network(checkpoint: PolicyCheckpoint, config: PreTrainedConfig) -> PreTrainedPolicy:
    # the checkpoint's weights replace these; asking torchvision for them would need the network
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None
    policy_class = get_policy_class(config.type)
    try:
        policy = policy_class.from_pretrained(checkpoint.directory, config=config, strict=True)
    except Exception as error:
        raise ValueError(
            f"{checkpoint.directory / WEIGHTS} does not fit {CONFIG}: {error}"
        ) from error
    return policy.eval().requires_grad_(False)
