"""Small random checkpoints of each policy type, and random observations for them.

LeRobot takes seconds to import: it is when a fixture first needs it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pld_ray.policies.lerobot_adapter import LeRobotBasePolicy

STATE, ENVIRONMENT_STATE = "observation.state", "observation.environment_state"


def save_act(directory: Path, seed: int = 0) -> Path:
    """Random weights and random statistics, so that no two rows or steps agree by chance."""
    import torch
    from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.policies import make_pre_post_processors
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    torch.manual_seed(seed)
    config = ACTConfig(
        device="cpu",
        push_to_hub=False,
        chunk_size=6,
        n_action_steps=4,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=2,
        use_vae=False,
        latent_dim=8,
        pretrained_backbone_weights=None,
        normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), NormalizationMode.MEAN_STD),
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (8,)),
            ENVIRONMENT_STATE: PolicyFeature(FeatureType.ENV, (24,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
    )
    policy = ACTPolicy(config)
    stats = {
        key: {"mean": torch.randn(n), "std": torch.rand(n) + 0.5}
        for key, n in ((STATE, 8), (ENVIRONMENT_STATE, 24), ("action", 7))
    }
    policy.save_pretrained(directory)
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def act_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_act(tmp_path_factory.mktemp("act") / "checkpoint")


@pytest.fixture
def act_observations() -> Callable[[int, int], dict[str, np.ndarray]]:
    def make(rows: int, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            STATE: rng.standard_normal((rows, 8), dtype=np.float32),
            ENVIRONMENT_STATE: rng.standard_normal((rows, 24), dtype=np.float32),
        }

    return make


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Type -> checkpoint directory, saved once; the tokeniser is in `../tokenizer`."""
    from tiny_policies import save_policy

    saved: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in saved:
            saved[kind] = save_policy(kind, tmp_path_factory.mktemp(kind))
        return saved[kind]

    return directory


@pytest.fixture(scope="session")
def load_tiny(tiny_directory: Callable[[str], Path]) -> Callable[..., LeRobotBasePolicy]:
    """`load_base_policy` of a tiny checkpoint by type, or of a directory made like one."""
    from tiny_policies import VISION_LANGUAGE, load_policy

    def load(kind_or_directory: str | Path, **options: Any) -> LeRobotBasePolicy:
        if isinstance(kind_or_directory, str):
            kind_or_directory = tiny_directory(kind_or_directory)
            if kind_or_directory.parent.name.startswith(VISION_LANGUAGE):
                options.setdefault("tokenizer_path", kind_or_directory.parent / "tokenizer")
        return load_policy(kind_or_directory, **options)

    return load


@pytest.fixture(scope="session")
def tiny_policy(load_tiny: Callable[..., LeRobotBasePolicy]) -> Callable[[str], LeRobotBasePolicy]:
    """Type -> loaded policy, loaded once; with features where there are some."""
    from tiny_policies import VISION_LANGUAGE

    loaded: dict[str, LeRobotBasePolicy] = {}

    def policy(kind: str) -> LeRobotBasePolicy:
        if kind not in loaded:
            features = "pooled" if kind in VISION_LANGUAGE else "none"
            loaded[kind] = load_tiny(kind, features=features)
        return loaded[kind]

    return policy


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"the network was asked for: {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
