"""A plugin of LeRobot's, as somebody would install it: an arm of six joints that MuJoCo moves."""

from __future__ import annotations

import os
import pathlib
import threading
from dataclasses import dataclass

import mujoco
import numpy as np
from lerobot.robots import Robot, RobotConfig

JOINTS = ("pan", "lift", "elbow", "wrist_roll", "wrist_pitch", "hand_roll")
MODEL = """
<mujoco model="tabletop">
  <compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast"/>
  <default>
    <joint damping="2" armature="0.05" range="-2.6 2.6"/>
    <geom type="capsule" size="0.02" density="300" contype="0" conaffinity="0"/>
    <position kp="200" dampratio="1"/>
  </default>
  <worldbody>
    <body name="shoulder" pos="0 0 0.15">
      <joint name="pan" axis="0 0 1"/>
      <geom fromto="0 0 0 0 0 0.05"/>
      <body name="upper" pos="0 0 0.05">
        <joint name="lift" axis="0 1 0" range="-1.2 1.8"/>
        <geom fromto="0 0 0 0.25 0 0"/>
        <body name="fore" pos="0.25 0 0">
          <joint name="elbow" axis="0 1 0"/>
          <geom fromto="0 0 0 0.2 0 0"/>
          <body name="wrist" pos="0.2 0 0">
            <joint name="roll" axis="1 0 0"/>
            <geom fromto="0 0 0 0.03 0 0"/>
            <body name="palm" pos="0.03 0 0">
              <joint name="wrist_pitch" axis="0 1 0"/>
              <geom fromto="0 0 0 0.03 0 0"/>
              <body name="hand" pos="0.03 0 0">
                <joint name="hand_roll" axis="1 0 0"/>
                <geom fromto="0 0 0 0.02 0 0"/>
                <site name="grasp" pos="0.06 0 0"/>
                <body name="finger" pos="0.04 0.02 0">
                  <joint name="finger" type="slide" axis="0 1 0" range="0 0.04"/>
                  <geom type="box" size="0.02 0.002 0.01"/>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="pan"/><position joint="lift"/><position joint="elbow"/>
    <position joint="roll"/><position joint="wrist_pitch"/><position joint="hand_roll"/>
    <position joint="finger"/>
  </actuator>
</mujoco>
"""
REST = dict(zip(JOINTS, (0.0, -40.0, 90.0, 0.0, 30.0, 0.0), strict=True)) | {"gripper": 100.0}


@RobotConfig.register_subclass("tabletop")
@dataclass(kw_only=True)
class TabletopConfig(RobotConfig):
    port: str
    step_s: float = 0.1
    """Simulated after each command."""
    camera: bool = True
    calibrated: bool = True
    away: bool = False
    """It begins stretched out and not where episodes do."""
    unplug_after: int | None = None
    """Commands after which it is gone, until it is connected anew."""
    seen_in: str | None = None
    """File that takes a line after each command: the process that drives it, and the hand's x."""


class Tabletop(Robot):
    config_class = TabletopConfig
    name = "tabletop"

    def __init__(self, config: TabletopConfig):
        super().__init__(config)
        self.config = config
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        if not config.away:
            self.data.qpos[:6] = np.radians([REST[name] for name in JOINTS])
            self.data.qpos[6] = 0.04
        mujoco.mj_forward(self.model, self.data)
        self.sent: list[dict[str, float]] = []
        self.connections = 0
        self.gone = self._connected = False
        # cleared by a test: it does not come back until they are set again
        self.answers, self.obeys = threading.Event(), threading.Event()
        self.answers.set()
        self.obeys.set()
        self.threads: set[int] = set()

    @property
    def _joints(self) -> dict[str, type]:
        return {f"{name}.pos": float for name in (*JOINTS, "gripper")}

    @property
    def observation_features(self) -> dict:
        return {**self._joints, **({"front": (24, 32, 3)} if self.config.camera else {})}

    @property
    def action_features(self) -> dict:
        return self._joints

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def is_calibrated(self) -> bool:
        return self.config.calibrated

    def connect(self, calibrate: bool = True) -> None:
        self.threads.add(threading.get_ident())
        if not pathlib.Path(self.config.port).exists():
            raise ConnectionError(f"Could not connect on port '{self.config.port}'.\nIs it there?")
        self._connected, self.gone = True, False
        self.connections += 1

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_observation(self) -> dict:
        self.threads.add(threading.get_ident())
        self.answers.wait()
        if self.gone:
            raise ConnectionError("There is no status packet!")
        q = np.degrees(self.data.qpos[:6])
        told = {f"{name}.pos": float(value) for name, value in zip(JOINTS, q, strict=True)}
        told["gripper.pos"] = float(self.data.qpos[6] / 0.04 * 100)
        if self.config.camera:  # a picture of one dot where the hand is
            told["front"] = np.zeros((24, 32, 3), np.uint8)
            x, y, _ = self.hand
            told["front"][int(np.clip(24 * x, 0, 23)), int(np.clip(16 + 32 * y, 0, 31))] = 255
        return told

    def send_action(self, action: dict) -> dict:
        self.threads.add(threading.get_ident())
        self.obeys.wait()
        if self.gone:
            raise ConnectionError("There is no status packet!")
        self.sent.append(dict(action))
        self.data.ctrl[:6] = np.radians([action[f"{name}.pos"] for name in JOINTS])
        self.data.ctrl[6] = action["gripper.pos"] / 100 * 0.04
        self.run(self.config.step_s)
        if self.config.seen_in is not None:
            with pathlib.Path(self.config.seen_in).open("a") as file:
                file.write(f"{os.getpid()} {self.hand[0]}\n")
        if self.config.unplug_after == len(self.sent):
            self.gone = True
        return action

    def disconnect(self) -> None:
        self._connected = False

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / self.model.opt.timestep)):
            mujoco.mj_step(self.model, self.data)

    @property
    def hand(self) -> np.ndarray:
        """Where it truly is [3], m."""
        return self.data.site("grasp").xpos.copy()
