"""Names of the columns that travel from an environment's step to a gradient."""

from __future__ import annotations

import numpy as np

Columns = dict[str, np.ndarray]
"""Column -> rows [n, ...]; an episode of L transitions has L + 1 rows, the last its final frame."""

BASE_ACTION = "base_action"
"""What the frozen base policy would do, [A] float32; part of every observation."""
POLICY_FEATURES = "observation.features"
"""What the base policy saw when it made the chunk that is being played."""
SUCCESS = "success"
"""bool: this step reached the goal; in a rollout's episodes only the last one can."""
START = "start"
"""Optional, bool: rows that may start a training window; without it every transition may."""
INTERVENED = "intervened"
"""bool: a person's action was executed, and is what `action` holds."""
SUCCEEDED = "succeeded"
"""bool: the episode of this row reached the goal, at this step or later; in a replay alone."""
DISCRETE_ACTION, DISCRETE_PENALTY = "discrete_action", "discrete_penalty"
GRIPPER_LABELS = (DISCRETE_ACTION, DISCRETE_PENALTY)
"""float32: the joint choice of discrete grippers that was executed, and what it cost."""
TASK_INDEX = "task_index"
"""The task's number, where an environment tells it: what a task embedding looks up."""
VECTOR_KEYS = ("observation.state", "observation.environment_state", POLICY_FEATURES)
"""Observations that are concatenated into the networks' input vector, in this order."""
READ_COLUMNS = (*VECTOR_KEYS, TASK_INDEX, BASE_ACTION)
"""Observations that networks read, images aside; others are stored and recorded, and no more."""
IMAGE_PREFIX = "observation.images."
FEATURE_PREFIX = "observation.features."
"""Of a camera's images, and of what a frozen vision encoder makes of them."""
