"""Real-time chunking by LeRobot's own `RTCProcessor`.

Source: Black et al. 2025, "Real-Time Execution of Action Chunking Flow Policies", arXiv 2506.07339.
The processor's gradient is of the denoising step alone, not of the network (LeRobot 0.6), so that a
guided chunk takes hardly longer than another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
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


def grouped(
    leftovers: np.ndarray | None, num_rows: int, batch_rows: int, execution_horizon: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Rows that may share a network call, with their leftovers.

    A call is guided by leftovers of one length, or not at all. Actions beyond the execution horizon
    have no weight and are cut off, so that rows which differ in those alone share a call.

    Args:
        leftovers: [num_rows, T, A], NaN behind the end of each; None for none.

    Yields:
        At most `batch_rows` row numbers [G], ascending, and leftovers [G, L, A] or None.
    """
    lengths = np.zeros(num_rows, dtype=np.int64)
    if leftovers is not None:
        cut = leftovers[:, :execution_horizon].astype(np.float32)
        lengths = (~np.isnan(cut).any(axis=2)).sum(axis=1)
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        for start in range(0, len(members), batch_rows):
            rows = members[start : start + batch_rows]
            yield rows, cut[rows, :length] if length else None
