"""`DisturbedEnv`: a task of `pld_tabletop` in which something is otherwise than in training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs import pld_tabletop
from envs.libero import LiberoEnv


class DisturbedEnv(LiberoEnv):
    """The task, disturbed; all disturbances follow from `seed` and the init state alone.

    Args:
        task: name or number of a task of `pld_tabletop`; None is its default.
        displacement: metres by which the target of every stored init state stands outside the
            region where it starts otherwise, beyond a side that is drawn.
        action_noise: standard deviation of Gaussian noise on what is executed, as a share of the
            action's range; what leaves the range is clipped.
        noisy_dims: of the action; () is all of them.
        perception_noise: standard deviation, metres, of where the target is seen, anew each step.
        delay: steps after which an action is executed; until the first arrives the arm holds still.
        seed: of all that is drawn.
        others: of `LiberoEnv`.

    Raises:
        ValueError: a number out of range, or what `LiberoEnv` raises.
    """

    def __init__(
        self,
        task: str | int | None = None,
        displacement: float = 0.0,
        action_noise: float = 0.0,
        noisy_dims: tuple[int, ...] = (),
        perception_noise: float = 0.0,
        delay: int = 0,
        seed: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(pld_tabletop.SUITE, task, **others)
        numbers = {
            "displacement": displacement,
            "action_noise": action_noise,
            "perception_noise": perception_noise,
            "delay": delay,
        }
        for name, value in numbers.items():
            if not 0 <= value < np.inf:
                raise ValueError(f"{name} must be 0 or more, not {value}.")
        space: Any = self.action_space
        size = space.shape[0]
        wrong = [dim for dim in noisy_dims if not 0 <= dim < size]
        if wrong:
            raise ValueError(f"noisy_dims {wrong}: an action has dimensions 0 to {size - 1}.")
        if delay and self._control_mode == "absolute":
            raise ValueError(
                "delay needs control_mode='relative', in which no action is no motion."
            )
        self.displacement, self.perception_noise = displacement, perception_noise
        self._action_std = np.zeros(size)
        self._low, self._high = space.low, space.high
        noisy = list(noisy_dims) or slice(None)
        self._action_std[noisy] = action_noise * (space.high - space.low)[noisy]
        self._delayed: deque[np.ndarray] = deque()
        self._delay, self._seed = int(delay), seed
        self._rng = np.random.default_rng(seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As `LiberoEnv.reset`; an episode from a stored state is disturbed the same each time."""
        state = (options or {}).get("init_state_id")
        if state is not None:
            self._rng = np.random.default_rng([self._seed, int(state)])
        elif seed is not None:
            self._rng = np.random.default_rng([self._seed, seed])
        hold = np.zeros(len(self._low), np.float32)
        hold[list(self.gripper_dims)] = -1.0
        self._delayed = deque([hold] * self._delay)
        return super().reset(seed=seed, options=options)

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """As `LiberoEnv.step`, of the action `delay` steps ago and with noise."""
        self._delayed.append(np.asarray(action))
        executed = self._delayed.popleft()
        if self._action_std.any():
            noise = self._action_std * self._rng.standard_normal(len(self._action_std))
            executed = np.clip(executed + noise, self._low, self._high).astype(np.float32)
        return super().step(executed)

    def _observe(self) -> None:
        if not self.perception_noise:
            super()._observe()
            return
        scene: Any = self._scene
        true = scene.target_pos
        scene.target_pos = true + self.perception_noise * self._rng.standard_normal(3)
        try:
            super()._observe()
        finally:
            scene.target_pos = true

    def _set_stored_state(self, init_state_id: int) -> None:
        super()._set_stored_state(init_state_id)
        if not self.displacement:
            return
        env, sim = self._env, self._env.sim
        problem = env.parsed_problem
        (region,) = problem["regions"]["main_table_target_region"]["ranges"]
        joint = env.objects_dict[problem["obj_of_interest"][0]].joints[-1]
        place = sim.data.get_joint_qpos(joint).copy()
        place[:2] = outside(region, place[:2], self.displacement, int(self._rng.integers(4)))
        sim.data.set_joint_qpos(joint, place)
        sim.forward()
        env._post_process()
        env._update_observables(force=True)


def outside(region: Sequence[float], place: np.ndarray, distance: float, side: int) -> np.ndarray:
    """The place [2] moved straight to `distance` metres beyond a side of its region.

    Args:
        region: x and y of the lowest corner, then of the highest.
        place: where it was, inside.
        side: 0 to 3: lowest x, lowest y, highest x, highest y.
    """
    moved = place.copy()
    moved[side % 2] = region[side] + (distance if side >= 2 else -distance)
    return moved
