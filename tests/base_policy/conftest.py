"""A small random ACT checkpoint and random observations for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies import make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy

STATE, ENVIRONMENT_STATE = "observation.state", "observation.environment_state"


def save_act(directory: Path, seed: int = 0) -> Path:
    """Random weights and random statistics, so that no two rows or steps agree by chance."""
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
def make_observations() -> Callable[[int, int], dict[str, np.ndarray]]:
    def make(rows: int, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            STATE: rng.standard_normal((rows, 8), dtype=np.float32),
            ENVIRONMENT_STATE: rng.standard_normal((rows, 24), dtype=np.float32),
        }

    return make
