"""The residual scale beta_t over training, and who is deployed meanwhile."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pld_ray.config.residual_sac import ResidualSACParams

WINDOW = 20  # episodes over which a success rate is taken


@dataclass
class Trial:
    """Whether the residual has shown that it does as well as the base policy.

    Until its last 20 training episodes succeed as often as the base policy does, it acts in
    `share` of the episodes alone, and what is deployed is the base policy. It counts as long as a
    run lasts: a residual that falls behind is on trial again.

    Attributes:
        share: `trial_share`; 1 is no trial.
        base_successes, base_episodes: of the base policy.
        residual: success of the residual's last episodes.
    """

    share: float
    base_successes: int = 0
    base_episodes: int = 0
    residual: list[bool] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """The residual may be deployed."""
        if self.share == 1:
            return True
        if len(self.residual) < WINDOW or not self.base_episodes:
            return False
        return sum(self.residual) / WINDOW >= self.base_successes / self.base_episodes

    @property
    def residual_share(self) -> float:
        """Of the training episodes to come."""
        return 1.0 if self.passed else self.share

    def on_episode(self, success: bool, residual: bool) -> None:
        """Count an episode of the residual, or of the base policy."""
        if residual:
            self.residual = [*self.residual, bool(success)][-WINDOW:]
        else:
            self.base_successes += bool(success)
            self.base_episodes += 1

    def state_dict(self) -> dict[str, Any]:
        """What was counted, as JSON."""
        state = asdict(self)
        del state["share"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.base_successes, self.base_episodes = state["base_successes"], state["base_episodes"]
        self.residual = list(state["residual"])


class ResidualScaleSchedule:
    """beta_t (3): constant, linear in environment steps, or growing with success.

    - `constant`: residual_scale.
    - `linear`: from residual_scale_init to residual_scale over residual_scale_steps steps.
    - `success`: starts at residual_scale_init; after each window of 20 finished episodes whose
      success rate is above residual_scale_success it grows by residual_scale_increment, up to
      residual_scale. It never shrinks.

    Args:
        params: `ResidualSACParams`.
    """

    def __init__(self, params: ResidualSACParams) -> None:
        self.params = params
        self._grown = min(params.residual_scale_init, params.residual_scale)
        self._window: list[bool] = []

    def value(self, env_steps: int) -> float:
        """beta, in action units, `env_steps` environment steps after warm-up."""
        params = self.params
        if params.residual_scale_schedule == "constant":
            return params.residual_scale
        if params.residual_scale_schedule == "linear":
            progress = min(max(env_steps, 0) / params.residual_scale_steps, 1.0)
            start = params.residual_scale_init
            return start + progress * (params.residual_scale - start)
        return self._grown

    def on_episode(self, success: bool) -> None:
        """Count one finished episode; only the `success` schedule listens."""
        if self.params.residual_scale_schedule != "success":
            return
        self._window.append(bool(success))
        if len(self._window) < WINDOW:
            return
        rate = sum(self._window) / WINDOW
        self._window = []
        if rate > self.params.residual_scale_success:
            grown = self._grown + self.params.residual_scale_increment
            self._grown = min(grown, self.params.residual_scale)

    def state_dict(self) -> dict[str, Any]:
        """What the schedule has counted, as JSON."""
        return {"grown": self._grown, "window": list(self._window)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._grown = float(state["grown"])
        self._window = [bool(success) for success in state["window"]]
