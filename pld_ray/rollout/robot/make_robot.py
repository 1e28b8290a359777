"""LeRobot's robots by their settings, those of installed plugins among them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Mapping
from typing import Any

PLUGINS = ("lerobot_robot_", "lerobot_camera_")
"""How LeRobot's plugins are named."""


def make_robot(settings: Mapping[str, Any]) -> Any:
    """A `lerobot.robots.Robot` that is not connected yet.

    Args:
        settings: `type`, and the fields of LeRobot's configuration of it.

    Raises:
        ValueError: no such type or field, or what drives it is not installed.
    """
    import draccus
    from lerobot.robots import RobotConfig, make_robot_from_config

    kind = settings.get("type")
    import_known()
    known = RobotConfig.get_known_choices()
    if kind not in known:
        raise ValueError(
            f"env.robot.type={kind}: must be one of {', '.join(sorted(known))}, or of an installed "
            "plugin of LeRobot's (lerobot_robot_NAME)"
        )
    try:
        return make_robot_from_config(draccus.decode(RobotConfig, dict(settings)))
    except Exception as error:  # whatever a driver, or LeRobot's reader of settings, raises
        raise ValueError(f"env.robot of type {kind}: {one_line(error)}") from error


def import_known() -> None:
    """Let every robot and camera that is here register itself; others lack their drivers."""
    import lerobot.cameras
    import lerobot.robots

    for package in (lerobot.cameras, lerobot.robots):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.ispkg:
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    for distribution in importlib.metadata.distributions():
        name = str(distribution.metadata["Name"])
        if name.startswith(PLUGINS):
            try:
                importlib.import_module(name)
            except Exception as error:
                raise ValueError(
                    f"the plugin {name} cannot be imported ({one_line(error)}): mend or remove it"
                ) from error


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks; its class where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
