"""The base policy of runs that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pld_ray.policies.protocol import Prediction


class NoBasePolicy:
    """Zeros: no motion, and no gripper command. For learning from scratch.

    Args:
        action_dim: A.
    """

    n_action_steps = 100  # all alike: being asked at every step would cost more than the answer
    input_features: dict[str, tuple[int, ...]] = {}
    fingerprint = "none"

    def __init__(self, action_dim: int) -> None:
        self.action_dim = action_dim

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """Zeros [B, T, A]."""
        shape = (len(env_ids), self.n_action_steps, self.action_dim)
        return Prediction(np.zeros(shape, dtype=np.float32))


def base_policy_fingerprint(kind: str, path: str | None) -> str:
    """What the answers of a base policy depend on; `none` for no policy."""
    if kind == "none":
        return NoBasePolicy.fingerprint
    from pld_ray.policies.checkpoint import open_checkpoint

    return open_checkpoint(path).fingerprint()
