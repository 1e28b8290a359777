"""The plugin as if it were installed, and the settings of an environment around it."""

from __future__ import annotations

import os
import pathlib

import yaml

HERE = pathlib.Path(__file__).parent
METADATA = "Metadata-Version: 2.1\nName: lerobot_robot_tabletop\nVersion: 0.1.0\n"


def install(monkeypatch, folder: pathlib.Path) -> None:
    """Put the plugin and its metadata on the path, here and in processes to come."""
    info = folder / "lerobot_robot_tabletop-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    for path in (str(HERE), str(folder)):
        monkeypatch.syspath_prepend(path)
    given = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(folder), given]))
    monkeypatch.setenv("HF_LEROBOT_CALIBRATION", str(folder / "calibration"))


def settings(folder: pathlib.Path, robot=None, **arm) -> dict:
    """`env.robot` and `env.arm`, with changes."""
    import lerobot_robot_tabletop as plugin

    (folder / "arm.xml").write_text(plugin.MODEL)
    (folder / "port").touch()
    return {
        "robot": {"type": "tabletop", "port": str(folder / "port"), **(robot or {})},
        "arm": {
            "model": str(folder / "arm.xml"),
            "end_effector": "grasp",
            "joint_names": {"wrist_roll": "roll"},
            "rest_pose": plugin.REST,
            "bounds_low": [0.15, -0.2, 0.05],
            "bounds_high": [0.45, 0.2, 0.45],
            "reset_speed": 3.0,
            "call_timeout_s": 60.0,  # a busy machine is no robot that hangs
            "wait_for_person": False,
            **arm,
        },
    }


def text(value) -> str:
    """A setting as the command line takes it."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
