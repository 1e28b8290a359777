"""Where the base policy's own vision encoder is found."""

from __future__ import annotations

from typing import Any

from pld_ray.config import PolicyConfig
from pld_ray.policies.checkpoint import open_checkpoint


def with_policy_encoder(params: dict[str, Any], policy: PolicyConfig) -> dict[str, Any]:
    """A learner's parameters; `vision_encoder_name=policy` without a folder is the base policy's.

    Raises:
        ValueError: there is no base policy.
        FileNotFoundError: see `open_checkpoint`.
    """
    if params["vision_encoder_name"] != "policy" or params["vision_encoder_weights"] is not None:
        return params
    if policy.type == "none":
        raise ValueError(
            "algorithm.vision_encoder_name='policy': there is no base policy; name another "
            "encoder, or the folder of a policy as algorithm.vision_encoder_weights"
        )
    return {**params, "vision_encoder_weights": str(open_checkpoint(policy.path).directory)}
