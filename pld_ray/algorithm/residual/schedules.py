"""The residual scale beta_t over training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pld_ray.config.residual_sac import ResidualSACParams

WINDOW = 20  # episodes over which a success rate is taken


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
