"""How each type of LeRobot policy turns one preprocessed batch into chunks of actions.

A sampler is called with the batch and one random generator per row, from which all of that row's
noise is drawn, so that noise does not depend on who shares the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from lerobot.policies import PreTrainedPolicy
from lerobot.policies.common.flow_matching import euler_integrate
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from lerobot.utils.constants import (
    OBS_IMAGES,
    OBS_LANGUAGE_ATTENTION_MASK,
    OBS_LANGUAGE_TOKENS,
    OBS_STATE,
)
from torch import Tensor

from pld_ray.policies.lerobot_rtc import INFERENCE_DELAY

Batch = Mapping[str, Any]
Generators = Sequence[torch.Generator]


class Sampler(Protocol):
    """Samples chunks from a frozen network.

    Attributes:
        chunk_size: T, actions per chunk.
        n_obs_steps: observations that the batch has per row; without a time axis if 1.
        stochastic: the chunk depends on the row's generator.
        feature_dim: F, width of the pooled prefix feature; 0 if there is none.
    """

    chunk_size: int
    n_obs_steps: int
    stochastic: bool
    feature_dim: int

    def __call__(
        self, batch: Batch, generators: Generators, leftover: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Normalised actions [B, T, A] and features [B, F] or None.

        Args:
            leftover: [B, L, A] normalised actions that the chunks are guided by (real-time
                chunking); only for networks built after `enable_rtc`.
        """
        ...

    def compile(self) -> None:
        """Compile what is called most."""
        ...


def make_sampler(policy: PreTrainedPolicy, autocast: torch.dtype | None) -> Sampler:
    """The sampler for `policy`; act and diffusion compute in `autocast` if it is given."""
    if policy.config.type == "act":
        return ActSampler(policy, autocast)
    if policy.config.type == "diffusion":
        return DiffusionSampler(policy, autocast)
    return FlowSampler(policy)


def chosen_feature_dim(features: str, available: int, policy_type: str) -> int:
    """F of `load_base_policy`'s option `features`, of which a sampler has `available`."""
    if features not in ("none", "pooled"):
        raise ValueError(f"features {features!r}: choose 'none' or 'pooled'")
    if features == "pooled" and not available:
        raise ValueError(
            f"features 'pooled': a policy of type {policy_type!r} has no vision-language prefix; "
            "smolvla, pi0 and pi05 have"
        )
    return available if features == "pooled" else 0


class ActSampler:
    """ACT: one forward pass, no noise."""

    n_obs_steps, stochastic, feature_dim = 1, False, 0

    def __init__(self, policy: PreTrainedPolicy, autocast: torch.dtype | None) -> None:
        self._policy, self._autocast = policy, autocast
        self.chunk_size = int(policy.config.chunk_size)

    def __call__(
        self, batch: Batch, generators: Generators, leftover: Tensor | None = None
    ) -> tuple[Tensor, None]:
        with _precision(self._policy, self._autocast):
            return self._policy.predict_action_chunk(dict(batch)), None

    def compile(self) -> None:
        self._policy.model.compile()


class DiffusionSampler:
    """Diffusion policy: a denoising loop over the whole horizon.

    The scheduler takes a list of generators, one per row: DDPM draws fresh noise at every step.
    The horizon begins with the oldest observation; what lies before the newest is cut off.
    """

    stochastic, feature_dim = True, 0

    def __init__(self, policy: PreTrainedPolicy, autocast: torch.dtype | None) -> None:
        self._policy, self._autocast = policy, autocast
        config = policy.config
        self.n_obs_steps = int(config.n_obs_steps)
        self.chunk_size = int(config.horizon) - self.n_obs_steps + 1
        self._noise_shape = (int(config.horizon), int(config.action_feature.shape[0]))
        if autocast is not None:  # the scheduler counts, and draws its noise, in float32
            policy.diffusion.unet.register_forward_hook(lambda unet, given, output: output.float())

    def __call__(
        self, batch: Batch, generators: Generators, leftover: Tensor | None = None
    ) -> tuple[Tensor, None]:
        model, cameras = self._policy.diffusion, list(self._policy.config.image_features)
        batch = dict(batch)
        if self.n_obs_steps == 1:
            batch |= {k: v[:, None] for k, v in batch.items() if isinstance(v, Tensor)}
        if cameras:
            batch[OBS_IMAGES] = torch.stack([batch[key] for key in cameras], dim=-4)
        with _precision(self._policy, self._autocast):
            actions = model.conditional_sample(
                len(generators),
                global_cond=model._prepare_global_conditioning(batch),
                generator=list(generators),
                noise=row_noise(generators, self._noise_shape, _device(self._policy)),
            )
        return actions[:, self.n_obs_steps - 1 :], None

    def compile(self) -> None:
        self._policy.diffusion.unet.compile()


class FlowSampler:
    """SmolVLA, π0 and π0.5: a vision-language prefix, then flow matching of the actions.

    The prefix is read once; its keys and values serve every denoising step, and the mean of its
    last hidden state over the valid tokens is the pooled feature, which thus costs nothing.
    """

    n_obs_steps, stochastic = 1, True

    def __init__(self, policy: PreTrainedPolicy) -> None:
        self._policy = policy
        config = policy.config
        self._smolvla = config.type == "smolvla"
        self._takes_state = config.type != "pi05"  # π0.5 reads its state in the prompt
        self._num_steps = config.num_steps if self._smolvla else config.num_inference_steps
        self._noise_shape = (int(config.chunk_size), int(config.max_action_dim))
        self._action_dim = int(config.action_feature.shape[0])
        self.chunk_size = int(config.chunk_size)
        if self._smolvla:
            language = policy.model.vlm_with_expert.config.text_config
        else:
            language = policy.model.paligemma_with_expert.paligemma.config.text_config
        self.feature_dim = int(language.hidden_size)

    def __call__(
        self, batch: Batch, generators: Generators, leftover: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        state = self.state_of(batch)
        hidden, valid, cache = self.read_prefix(batch, state)
        guidance: dict[str, Any] = {}
        if leftover is not None:
            guidance = {
                "rtc_processor": self._policy.rtc_processor,
                "rtc_enabled": True,
                "inference_delay": INFERENCE_DELAY,
                "prev_chunk_left_over": leftover,
            }
        actions = euler_integrate(
            lambda noisy, time: self.velocity(noisy, time, state, valid, cache),
            row_noise(generators, self._noise_shape, valid.device),
            self._num_steps,
            **guidance,
        )
        return self._encoded(actions[:, :, : self._action_dim]), masked_mean(hidden, valid)

    def compile(self) -> None:
        self._policy.model.denoise_step = torch.compile(self._policy.model.denoise_step)

    def state_of(self, batch: Batch) -> Tensor | None:
        """The state as the network takes it, [B, max_state_dim]; None where the prompt has it."""
        return self._policy.prepare_state(self._decoded(batch)) if self._takes_state else None

    def velocity(
        self, noisy: Tensor, time: Tensor, state: Tensor | None, valid: Tensor, cache: Any
    ) -> Tensor:
        """Of chunks [B, T, max_action_dim] at times [B], given what `read_prefix` returned."""
        # π0 gives its state to every denoising step, SmolVLA to the prefix
        given = {} if self._smolvla or state is None else {"state": state}
        return self._policy.model.denoise_step(
            **given, x_t=noisy, timestep=time, prefix_pad_masks=valid, past_key_values=cache
        )

    def read_prefix(self, batch: Batch, state: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Last hidden state [B, P, F], valid tokens [B, P], and the keys and values."""
        policy, model = self._policy, self._policy.model
        language = (batch[OBS_LANGUAGE_TOKENS], batch[OBS_LANGUAGE_ATTENTION_MASK])
        if self._smolvla:
            images = policy.prepare_images(batch)
            tokens, valid, causal = model.embed_prefix(*images, *language, state=state)
            backbone, attention = model.vlm_with_expert, make_att_2d_masks(valid, causal)
        else:
            images = policy._preprocess_images(batch)
            tokens, valid, causal = model.embed_prefix(*images, *language)
            backbone = model.paligemma_with_expert
            attention = prepare_attention_masks_4d(make_att_2d_masks(valid, causal))
            for part in (backbone.paligemma.model.language_model, backbone.gemma_expert.model):
                part.config._attn_implementation = "eager"  # the only one that takes this mask
        (hidden, _), cache = backbone.forward(
            attention_mask=attention,
            position_ids=torch.cumsum(valid, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[tokens, None],
            use_cache=True,
        )
        return hidden, valid, cache

    def _decoded(self, batch: Batch) -> Batch:
        """SmolVLA's ALOHA checkpoints count joints in another way."""
        if not getattr(self._policy.config, "adapt_to_pi_aloha", False):
            return batch
        return {**batch, OBS_STATE: self._policy._pi_aloha_decode_state(batch[OBS_STATE].clone())}

    def _encoded(self, actions: Tensor) -> Tensor:
        if not getattr(self._policy.config, "adapt_to_pi_aloha", False):
            return actions
        return self._policy._pi_aloha_encode_actions(actions)


def row_noise(generators: Generators, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal [B, *shape] float32, row i from generator i."""
    return torch.stack([torch.randn(shape, generator=g) for g in generators]).to(device)


def masked_mean(hidden: Tensor, valid: Tensor) -> Tensor:
    """Mean of [B, P, F] over the positions where [B, P] is true, in float32."""
    weights = valid[..., None].float()
    return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def _precision(policy: PreTrainedPolicy, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(_device(policy).type, dtype=dtype, enabled=dtype is not None)


def _device(policy: PreTrainedPolicy) -> torch.device:
    return next(policy.parameters()).device
