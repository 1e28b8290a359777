"""Configurations of our policy types, as LeRobot reads them from `config.json`.

LeRobot finds the policies' classes and processors by name, in `modeling_pld` and `processor_pld`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs import PreTrainedConfig

from pld_ray.plugin.policy_folder import RESIDUAL
from pld_ray.policies.checkpoint import EXPORTED


@dataclass
class PldConfig(PreTrainedConfig):
    """What both types have in common: they are trained by pld-ray, and act elsewhere."""

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> None:
        return None

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self) -> Any:
        raise NotImplementedError(f"a policy of type {self.type} is trained with pld-ray")

    def get_scheduler_preset(self) -> None:
        return None

    def validate_features(self) -> None:
        pass


@PreTrainedConfig.register_subclass(RESIDUAL)
@dataclass
class PldResidualConfig(PldConfig):
    """Base + residual, see `policy_folder.write_residual`."""

    format_version: int = 0
    observations: dict[str, Any] = field(default_factory=dict)
    actions: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    base_policy: dict[str, Any] = field(default_factory=dict)
    networks: dict[str, Any] = field(default_factory=dict)


@PreTrainedConfig.register_subclass(EXPORTED)
@dataclass
class PldChunkedConfig(PldConfig):
    """Q-chunking's policy, see `exported.write_policy`."""

    chunk_size: int = 1
    n_action_steps: int = 1
    params: dict[str, Any] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
