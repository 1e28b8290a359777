"""LeRobot checkpoints as base policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pld_ray.policies.checkpoint import CONFIG, folder_fingerprint, open_checkpoint
from pld_ray.policies.lerobot_names import NamedFeatures
from pld_ray.policies.lerobot_network import DTYPES, load_config, load_network
from pld_ray.policies.lerobot_processors import load_processors, names_and_shapes
from pld_ray.policies.lerobot_rtc import enable_rtc, grouped
from pld_ray.policies.lerobot_sampling import chosen_feature_dim, make_sampler
from pld_ray.policies.protocol import BATCH_ROWS, PolicyDescription, Prediction

SUPPORTED_TYPES = ("act", "diffusion", "smolvla", "pi0", "pi05")
"""LeRobot policy types whose rows were proved independent of each other (see the tests)."""


class LeRobotBasePolicy:
    """A LeRobot policy, frozen and in evaluation mode, that answers rows independently.

    `select_action` is never called: its queue is one per policy object and mixes environments
    that are not in lock step.

    Every network call has exactly `batch_rows` rows: fewer are padded with zeros, more are split.
    Matrix products of different heights take different paths through the BLAS library and sum in
    different orders, so the same row would get another last bit in another company; with one
    shape there is one path, and a row's place in it does not matter. That was measured with one
    torch thread and with two. From three on, a product on the CPU is cut between rows at places
    that the library chooses (SmolVLA's small products showed it, by 1e-6): give such a process
    one thread, or `batch_rows` 1.

    Args:
        path: the pretrained directory with `config.json`, the weights and the two processors,
            loaded without the network; or a hub name `owner/name`; None is the embedded ACT
            policy of `pld_tabletop`.
        device: torch device of the network; answers are numpy arrays on the host.
        batch_rows: rows of every network call; 8 cost a single row 0.3 ms more than its own forward
            pass (1.4 against 1.1 ms for the embedded policy) and eight rows nothing. Answers are
            bit-identical only among policies of equal `batch_rows` and device, and on the CPU of
            equal numbers of torch threads.
        dtype: `float32` or `bfloat16`; None is the checkpoint's. Act and diffusion keep float32
            weights and compute in bfloat16 (autocast).
        compile: `torch.compile` what is called most: the network, or the denoising step.
        rename_map: environment's observation name -> the policy's; None is the one that the
            checkpoint was trained with.
        tokenizer_path: local folder of the tokeniser, for policies that name one on the hub.
        vlm_path: local folder of SmolVLA's vision-language model (its configuration, tokeniser
            and processor); default `tokenizer_path`, which may be the same folder.
        n_action_steps: actions of a chunk that are played; None is the checkpoint's own number.
        features: `pooled` returns the mean of the vision-language prefix (smolvla, pi0, pi05)
            beside the chunk, `none` does not.
        rtc: real-time chunking (smolvla, pi0, pi05): a chunk can be made to continue another one,
            see `BasePolicy.infer`.

    Attributes:
        input_features: observation -> shape of one row, in the environment's names.
        chunk_size, n_obs_steps, feature_dim: see `PolicyDescription`.

    Raises:
        FileNotFoundError: the directory, one of its files, or the tokeniser is missing.
        ValueError: a file is broken, weights are missing or unknown, the policy type is not
            supported, the device is absent, or an argument does not fit the policy.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        device: str = "cpu",
        batch_rows: int = BATCH_ROWS,
        dtype: str | None = None,
        compile: bool = False,
        rename_map: Mapping[str, str] | None = None,
        tokenizer_path: str | Path | None = None,
        vlm_path: str | Path | None = None,
        n_action_steps: int | None = None,
        features: str = "none",
        rtc: bool = False,
    ) -> None:
        checkpoint = open_checkpoint(path)
        if batch_rows < 1:
            raise ValueError(f"batch_rows must be at least 1, not {batch_rows}")
        if checkpoint.policy_type not in SUPPORTED_TYPES:
            raise ValueError(
                f"{checkpoint.directory / CONFIG} is of type {checkpoint.policy_type!r}; base "
                f"policies of type {', '.join(SUPPORTED_TYPES)} are supported"
            )
        for name, folder in (("tokenizer_path", tokenizer_path), ("vlm_path", vlm_path)):
            if folder is not None and not Path(folder).expanduser().is_dir():
                raise FileNotFoundError(f"--policy.{name} {str(folder)!r} is not a directory")
        config = load_config(checkpoint, device, dtype)
        self.rtc = rtc
        self._execution_horizon = enable_rtc(config) if rtc else 0
        self._preprocess, self._postprocess = load_processors(
            checkpoint, config, str(device), tokenizer_path or vlm_path
        )
        self._policy = load_network(checkpoint, config, dtype, vlm_path or tokenizer_path)
        self._sampler = make_sampler(self._policy, DTYPES[dtype] if dtype == "bfloat16" else None)
        if compile:
            self._sampler.compile()
        self._device = torch.device(device)

        self._policy_names, shapes = names_and_shapes(checkpoint, config, rename_map)
        self.input_features: dict[str, tuple[int, ...]] = NamedFeatures(shapes, self._policy_names)
        self.batch_rows = batch_rows
        self.action_dim = int(config.output_features["action"].shape[0])
        self.chunk_size = self._sampler.chunk_size
        self.n_obs_steps = self._sampler.n_obs_steps
        self.n_action_steps = int(
            config.n_action_steps if n_action_steps is None else n_action_steps
        )
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise ValueError(
                f"n_action_steps is {self.n_action_steps}; a chunk of this policy has "
                f"{self.chunk_size} actions: choose 1 to {self.chunk_size}"
            )
        self.feature_dim = chosen_feature_dim(features, self._sampler.feature_dim, config.type)
        self.fingerprint = checkpoint.fingerprint(
            dtype=dtype,
            compile=compile or None,
            rename_map=dict(rename_map) if rename_map else None,
            n_action_steps=n_action_steps,
            rtc=rtc or None,
            tokenizer=tokenizer_path and folder_fingerprint(tokenizer_path),
            vlm=vlm_path and folder_fingerprint(vlm_path),
        )
        self._description = PolicyDescription.of(self)

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """See `BasePolicy.infer`; `seeds` are not used by deterministic policies such as ACT.

        Raises:
            ValueError: a request that does not fit, see `PolicyDescription.check`, or a stochastic
                policy without one seed a row.
        """
        num_rows = self._description.check(observations, tasks, leftovers)
        seeds = self._checked_seeds(seeds, num_rows)
        chunks = np.empty((num_rows, self.chunk_size, self.action_dim), dtype=np.float32)
        features = np.empty((num_rows, self.feature_dim), dtype=np.float32)
        normalized = np.empty_like(chunks) if self.rtc else None
        groups = grouped(leftovers, num_rows, self.batch_rows, self._execution_horizon)
        # guidance is a gradient, which tensors of inference mode cannot have
        with torch.no_grad() if self.rtc else torch.inference_mode():
            for rows, guide in groups:
                count, padding = len(rows), self.batch_rows - len(rows)
                batch: dict[str, Any] = {
                    own: self._padded(observations[env][rows])
                    for env, own in self._policy_names.items()
                }
                batch["task"] = [*(tasks[i] for i in rows), *[""] * padding]
                generators = [
                    torch.Generator().manual_seed(seed)
                    for seed in [*(seeds[i] for i in rows), *[0] * padding]
                ]
                actions, pooled = self._sampler(
                    self._preprocess(batch),
                    generators,
                    None if guide is None else self._padded(guide),
                )
                if normalized is not None:
                    normalized[rows] = actions[:count].float().cpu().numpy()
                chunks[rows] = self._postprocess(actions.float())[:count].cpu().numpy()
                if self.feature_dim and pooled is not None:
                    features[rows] = pooled[:count].cpu().numpy()
        return Prediction(chunks, features if self.feature_dim else None, normalized)

    def _checked_seeds(self, seeds: Sequence[int] | None, num_rows: int) -> list[int]:
        if not self._sampler.stochastic:
            return [0] * num_rows
        if seeds is None or len(seeds) != num_rows:
            raise ValueError(
                f"this base policy draws noise: give one seed for each of the {num_rows} rows, "
                f"not {'none' if seeds is None else len(seeds)}"
            )
        return [int(seed) for seed in seeds]

    def _padded(self, rows: np.ndarray) -> torch.Tensor:
        padded = np.zeros((self.batch_rows, *rows.shape[1:]), dtype=rows.dtype)
        padded[: len(rows)] = rows
        tensor = torch.from_numpy(padded).to(self._device)
        if tensor.ndim >= 4:  # images, channels last
            tensor = tensor.movedim(-1, -3).contiguous()
        return tensor.float() / 255 if padded.dtype == np.uint8 else tensor.float()
