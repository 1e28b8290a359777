"""Our policies as LeRobot's: what `lerobot-eval` and `lerobot-rollout` call.

The actions are those of `pld-ray eval`: the same code plays the chunks and composes the residual.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import PreTrainedPolicy
from torch import Tensor

from pld_ray.plugin.acting import ActingPolicy, load_chunked, load_residual
from pld_ray.plugin.configuration_pld import PldChunkedConfig, PldConfig, PldResidualConfig

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*vision_encoder.*"]


class PldPolicy(PreTrainedPolicy):
    """A folder of `pld-ray export`, which acts and is not trained here.

    It keeps the state of N environments, as many as the first batch after a `reset` has rows, each
    of which begins an episode with it. Without `reset` an episode has no end: LeRobot calls it.
    """

    config_class: Any = PldConfig
    name: Any = "pld"

    def __init__(self, config: PldConfig, folder: Path | None = None, **_: Any) -> None:
        super().__init__(config)
        if folder is None:
            raise ValueError(
                f"a policy of type {config.type} is trained with pld-ray: give the folder that "
                "pld-ray export writes as --policy.path"
            )
        self._folder = folder
        self._acting = self._load(folder)
        self._begins = True

    def _load(self, folder: Path) -> ActingPolicy:
        raise NotImplementedError

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_name_or_path: str | Path,
        *,
        config: PreTrainedConfig | None = None,
        revision: str | None = None,
        **_: Any,
    ) -> PldPolicy:
        """The policy of a folder, or of the hub.

        Raises:
            ConfigError, FileNotFoundError, ValueError: see `load_residual` and `load_chunked`.
        """
        folder = Path(pretrained_name_or_path)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            name = str(pretrained_name_or_path)
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))
        config = config or PreTrainedConfig.from_pretrained(folder)
        return cls(config, folder).eval()  # type: ignore[arg-type]

    def _save_pretrained(
        self, save_directory: Path, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        shutil.copytree(
            self._folder, save_directory, copy_function=shutil.copyfile, dirs_exist_ok=True
        )

    def reset(self) -> None:
        """The next batch begins an episode in each of its environments."""
        self._begins = True

    def select_action(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """The action [N, A] float32 of one step of each environment, in the environment's units.

        Args:
            batch: observations [N, ...], images [N, C, H, W] in [0, 1]; `task`, N instructions.
        """
        columns = self._columns(batch)
        rows = max(map(len, columns.values()), default=0)
        starts = np.ones(rows, bool) if self._begins else None
        actions = self._acting.predict(columns, starts, batch.get("task"))
        self._begins = False
        return torch.from_numpy(np.array(actions))

    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Chunks [N, T, A]: a residual corrects each action by its own observation, so T is 1."""
        return self.select_action(batch)[:, None]

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict | None]:
        raise NotImplementedError(f"a policy of type {self.config.type} is trained with pld-ray")

    def get_optim_params(self) -> dict:
        raise NotImplementedError(f"a policy of type {self.config.type} is trained with pld-ray")

    def _columns(self, batch: dict[str, Any]) -> dict[str, np.ndarray]:
        """The environment's observations, of LeRobot's."""
        columns = {}
        for key, shape in self._acting.inputs.items():
            if key not in batch:
                continue
            column = batch[key].detach().cpu()
            if len(shape) == 4:  # exact: LeRobot divided the bytes by 255
                column = (column.movedim(-3, -1) * 255).round().to(torch.uint8)
            columns[key] = column.numpy()
        return columns


class PldResidualPolicy(PldPolicy):
    """Base + residual."""

    config_class = PldResidualConfig
    name = "pld_residual"

    def _load(self, folder: Path) -> ActingPolicy:
        return load_residual(folder, str(self.config.device))


class PldChunkedPolicy(PldPolicy):
    """Q-chunking's policy: the best of its candidates."""

    config_class = PldChunkedConfig
    name = "pld_chunked"
    _planned = 0

    def _load(self, folder: Path) -> ActingPolicy:
        return load_chunked(folder, self.config.n_action_steps, str(self.config.device))

    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Chunks [N, T, A], whole, with noise of their own."""
        columns = self._columns(batch)
        n = len(next(iter(columns.values())))
        seeds = list(range(self._planned, self._planned + n))
        self._planned += n
        answer = self._acting.base_policy.infer(columns, [""] * n, list(range(n)), seeds)
        return torch.from_numpy(answer.chunks)
