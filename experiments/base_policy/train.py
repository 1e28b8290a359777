"""Fit one small LeRobot ACT to recorded demonstrations of all tasks."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import torch
from demonstrations import ACTION, ENVIRONMENT_STATE, STATE
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies import make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy


@dataclasses.dataclass(frozen=True)
class Training:
    """How the policy is fitted: AdamW, cosine learning rate with a short warm-up."""

    updates: int = 4000
    batch_size: int = 128
    learning_rate: float = 1.5e-3
    warmup: int = 200


def act_config(environment_state_dim: int) -> ACTConfig:
    """A 0.3 M parameter ACT on robot and environment state, without the VAE."""
    return ACTConfig(
        device="cpu",
        push_to_hub=False,
        chunk_size=8,
        n_action_steps=4,
        dim_model=128,
        n_heads=4,
        dim_feedforward=256,
        n_encoder_layers=1,
        n_decoder_layers=1,
        use_vae=False,
        latent_dim=8,
        dropout=0.0,
        pretrained_backbone_weights=None,
        normalization_mapping={
            "STATE": NormalizationMode.MEAN_STD,
            "ENV": NormalizationMode.MEAN_STD,  # ACT's default leaves it raw
            "ACTION": NormalizationMode.MEAN_STD,
        },
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (8,)),
            ENVIRONMENT_STATE: PolicyFeature(FeatureType.ENV, (environment_state_dim,)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (7,))},
    )


def train(columns: dict[str, np.ndarray], training: Training, seed: int, output: Path) -> float:
    """Train on `columns` (see `load_columns`) and save a pretrained directory at `output`.

    All frames are normalised once and batches are gathered from tensors; a loader that reads
    frame by frame would take most of the time.

    Returns:
        the mean L1 loss of the last 200 updates, in normalised action units.
    """
    torch.manual_seed(seed)
    config = act_config(columns[ENVIRONMENT_STATE].shape[1])
    policy = ACTPolicy(config).train()
    stats = {
        key: {"mean": columns[key].mean(0), "std": columns[key].std(0)}
        for key in (STATE, ENVIRONMENT_STATE, ACTION)
    }
    preprocess, postprocess = make_pre_post_processors(config, dataset_stats=stats)
    frames = preprocess(
        {key: torch.from_numpy(columns[key]) for key in (STATE, ENVIRONMENT_STATE, ACTION)}
    )
    window, is_pad = chunk_windows(columns["episode_index"], config.chunk_size)

    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=training.learning_rate, weight_decay=1e-4, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    losses, start = [], time.monotonic()
    for update in range(training.updates):
        rows = torch.randint(len(window), (training.batch_size,), generator=generator)
        loss, _ = policy.forward(
            {
                STATE: frames[STATE][rows],
                ENVIRONMENT_STATE: frames[ENVIRONMENT_STATE][rows],
                ACTION: frames[ACTION][window[rows]],
                "action_is_pad": is_pad[rows],
            }
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, training)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (update + 1) % 500 == 0:
            mean = np.mean(losses[-200:])
            print(
                f"{update + 1} updates, loss {mean:.4f}, {time.monotonic() - start:.0f} s",
                flush=True,
            )
    policy.eval().save_pretrained(output)
    preprocess.save_pretrained(output)
    postprocess.save_pretrained(output)
    return float(np.mean(losses[-200:]))


def learning_rate(update: int, training: Training) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    warm = min(1.0, (update + 1) / training.warmup)
    return (
        training.learning_rate * warm * (0.5 + 0.5 * math.cos(math.pi * update / training.updates))
    )


def chunk_windows(episode_index: np.ndarray, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [N, length] of the chunk that starts at each frame, and which of them are padding.

    A chunk that would run over its episode's end repeats the last frame there.
    """
    episode = torch.from_numpy(episode_index)
    rows = torch.arange(len(episode))[:, None] + torch.arange(length)
    inside = rows < len(episode)
    rows = rows.clamp(max=len(episode) - 1)
    is_pad = ~(inside & (episode[rows] == episode[:, None]))
    last = torch.searchsorted(episode, episode, right=True) - 1
    return torch.where(is_pad, last[:, None], rows), is_pad
