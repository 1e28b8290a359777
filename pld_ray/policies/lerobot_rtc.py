"""Real-time chunking by LeRobot's own `RTCProcessor`.

Source: Black et al. 2025, "Real-Time Execution of Action Chunking Flow Policies", arXiv 2506.07339.
The processor's gradient is of the denoising step alone, not of the network (LeRobot 0.6), so that a
guided chunk takes hardly longer than another.
"""

from __future__ import annotations

import dataclasses

from lerobot.configs import PreTrainedConfig
from lerobot.policies.rtc import RTCConfig

INFERENCE_DELAY = 1
"""Actions certain to be played before a prefetched chunk begins: that of the present step."""


def enable_rtc(config: PreTrainedConfig) -> int:
    """Have the network that is built from `config` guide its chunks.

    The checkpoint's own `rtc_config` is used if it has one, else LeRobot's defaults.

    Returns:
        The execution horizon: actions of a leftover, from its first on, that have any weight.

    Raises:
        ValueError: the policy type cannot, or counts its actions in a way that leftovers cannot be
            handed back in.
    """
    if not hasattr(config, "rtc_config"):
        raise ValueError(
            f"policy.rtc=true: a policy of type {config.type!r} cannot continue the chunk being "
            "played; smolvla, pi0 and pi05 can. Set policy.rtc=false (policy.prefetch works alone)"
        )
    # relative: to the state at which the chunk was made; aloha: re-counted behind the network
    for option in ("use_relative_actions", "adapt_to_pi_aloha"):
        if getattr(config, option, False):
            raise ValueError(
                f"policy.rtc=true: this {config.type} checkpoint has {option}, so that what is "
                "left of a chunk is not in the terms of the next one: set policy.rtc=false"
            )
    own = dataclasses.replace(config.rtc_config or RTCConfig(), enabled=True, debug=False)
    if own.execution_horizon < INFERENCE_DELAY:
        raise ValueError(
            f"the checkpoint's rtc_config has execution_horizon {own.execution_horizon}: set it to "
            f"{INFERENCE_DELAY} or more, or policy.rtc=false"
        )
    config.rtc_config = own
    return int(own.execution_horizon)
