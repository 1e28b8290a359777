"""What a discrete gripper did, in the words of its critic: the choice made, and its penalty."""

from __future__ import annotations

from typing import Any

import numpy as np

from pld_ray.columns import DISCRETE_ACTION, DISCRETE_PENALTY
from pld_ray.networks.grippers import CLOSE, HOLD, NUM_CHOICES, OPEN, num_joint_choices


class GripperRecord:
    """Labels and penalties of the grippers of N environments, from the commands executed.

    A step that the critic decided keeps the critic's choice. Any other is labelled with the choice
    whose command lies nearest to the executed one; `hold` wins a tie. So a step of the base policy
    is `hold` under composition, where `hold` sends just that command, and without it `open`, `hold`
    or `close` as the base policy commanded.

    The penalty is HIL-SERL's (its `GripperPenaltyWrapper`): a command to close an open gripper or
    to open a closed one costs `grasp_penalty`, any other nothing. A command counts from half way
    between neutral and its end of the range. HIL-SERL measures the gripper; here it is where it was
    commanded last, and open when an episode begins.

    Args:
        params: `ResidualSACParams`: gripper_dims, grasp_penalty, compose_base.
        low, high: bounds of the action space, [A]; the lower opens, the upper closes.
        num_envs: N.
    """

    def __init__(self, params: Any, low: np.ndarray, high: np.ndarray, num_envs: int) -> None:
        self._dims = list(params.gripper_dims)
        self._low, self._high = low[self._dims], high[self._dims]
        self._neutral = (self._low + self._high) / 2
        self._composes, self._penalty = params.compose_base, params.grasp_penalty
        self._closed = np.zeros((num_envs, len(self._dims)), dtype=bool)
        self._place = NUM_CHOICES ** np.arange(len(self._dims))

    def reset(self, i: int) -> None:
        """Environment i begins an episode: its grippers are open."""
        self._closed[i] = False

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Uniform joint choices [n] int64."""
        return rng.integers(num_joint_choices(len(self._dims)), size=n)

    def commanded(
        self, action: np.ndarray, base_action: np.ndarray, joint: np.ndarray
    ) -> np.ndarray:
        """`action` [N, A] with the commands of joint choices [N] in the grippers' dimensions."""
        action = action.copy()
        choices = joint[:, None] // self._place % NUM_CHOICES
        commands = self._commands(self._held(base_action))
        action[:, self._dims] = np.take_along_axis(commands, choices[None], axis=0)[0]
        return action

    def columns(
        self, action: np.ndarray, base_action: np.ndarray, chosen: np.ndarray, stepped: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The columns `GRIPPER_LABELS` of one step, [N] float32 each.

        Args:
            action: executed, [N, A].
            base_action: [N, A].
            chosen: the critic's joint choices, [N]; -1 where it did not decide.
            stepped: False where the environment ignores its action, which then counts as none.
        """
        command = action[:, self._dims]
        nearest = _nearest(command, self._commands(self._held(base_action))) @ self._place
        meant = _nearest(command, self._commands(np.broadcast_to(self._neutral, command.shape)))
        stepped = stepped[:, None]
        closes, opens = (meant == CLOSE) & stepped, (meant == OPEN) & stepped
        charged = (closes & ~self._closed) | (opens & self._closed)
        self._closed = (self._closed | closes) & ~opens
        return {
            DISCRETE_ACTION: np.where(chosen >= 0, chosen, nearest).astype(np.float32),
            DISCRETE_PENALTY: (-self._penalty * charged.sum(1)).astype(np.float32),
        }

    def _held(self, base_action: np.ndarray) -> np.ndarray:
        """The commands [N, G] that `hold` sends."""
        held = base_action[:, self._dims]
        return held if self._composes else np.broadcast_to(self._neutral, held.shape)

    def _commands(self, held: np.ndarray) -> np.ndarray:
        """The command of each choice, [3, N, G]."""
        opened, closed = (np.broadcast_to(end, held.shape) for end in (self._low, self._high))
        return np.stack([opened, held, closed])


def _nearest(command: np.ndarray, commands: np.ndarray) -> np.ndarray:
    """The choice [N, G] whose command of [3, N, G] is nearest to [N, G]; a tie is `hold`."""
    distance = np.abs(commands - command)
    return np.where(distance[HOLD] <= distance.min(0), HOLD, distance.argmin(0))
