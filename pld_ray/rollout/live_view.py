"""What a runner's first environment sees and does, in a viewer: Rerun or Foxglove, by LeRobot."""

from __future__ import annotations

import collections
import importlib.metadata
from collections.abc import Mapping

import numpy as np

from pld_ray.columns import BASE_ACTION
from pld_ray.config.intervention import InterventionConfig
from pld_ray.rollout.device import DeviceError

PACKAGES = {"rerun": "rerun-sdk", "foxglove": "foxglove-sdk"}
LAST_EPISODES = 50
"""Over which the success rate is taken, as that of the journal."""


def check_view(options: InterventionConfig) -> None:
    """See, before anything starts, that the viewer's package is there.

    Raises:
        DeviceError: it is not.
    """
    if options.view == "none":
        return
    package = PACKAGES[options.view]
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise DeviceError(
            f"intervention.view={options.view} needs {package}, which is not installed: "
            'pip install "lerobot[viz]"'
        ) from None


class LiveView:
    """Cameras, state, actions, who acts, episodes and success of one environment.

    Args:
        options: `view` and `view_address`.

    Raises:
        DeviceError: the viewer cannot be reached or opened.
    """

    def __init__(self, options: InterventionConfig) -> None:
        check_view(options)
        from lerobot.utils import visualization_utils  # takes seconds, and few runs have a view

        self._viewer, self.mode = visualization_utils, options.view
        host, port = options.view_at()
        try:
            self._viewer.init_visualization(self.mode, session_name="pld-ray", ip=host, port=port)
        except Exception as error:
            raise DeviceError(
                f"intervention.view={self.mode}: the viewer cannot be opened: {error}"
            ) from error
        self._episodes = 0
        self._successes: collections.deque[bool] = collections.deque(maxlen=LAST_EPISODES)

    def show(
        self, observation: Mapping[str, np.ndarray], action: np.ndarray, person_acts: bool
    ) -> None:
        """One step.

        Args:
            observation: that the action answers; every value [...] without the environments' axis.
            action: that is executed, [A].
            person_acts: it is a person's.
        """
        seen: dict[str, object] = {
            key: value
            for key, value in observation.items()
            if key != BASE_ACTION and (value.ndim == 3 or value.ndim == 1)
        }
        seen["person_acts"] = float(person_acts)
        seen["episode"] = float(self._episodes)
        if self._successes:
            seen["success_rate"] = float(np.mean(self._successes))
        acts = {"executed": action, "base": observation[BASE_ACTION]}
        self._viewer.log_visualization_data(self.mode, seen, acts)

    def end_episode(self, success: bool) -> None:
        """The episode that was shown is over."""
        self._episodes += 1
        self._successes.append(success)

    def close(self) -> None:
        """Let go of the viewer; it stays open with what it has."""
        self._viewer.shutdown_visualization(self.mode)


def open_view(options: InterventionConfig) -> LiveView | None:
    """The viewer that the settings ask for; None where they ask for none.

    Raises:
        DeviceError: it cannot be reached or opened.
    """
    return None if options.view == "none" else LiveView(options)
