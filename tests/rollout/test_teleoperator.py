"""LeRobot's teleoperators as devices: axes, grippers, verdicts, and a device that goes."""

import numpy as np
import pytest
from lerobot.teleoperators.gamepad import GamepadTeleop, GamepadTeleopConfig
from lerobot.teleoperators.utils import TeleopEvents

from pld_ray.config import InterventionConfig
from pld_ray.rollout.device import DeviceError, DeviceLostError, DevicePerson, Reading
from pld_ray.rollout.make_intervenor import check_intervention
from pld_ray.rollout.teleoperator import TeleoperatorDevice, axes_of

OPTIONS = InterventionConfig(device="gamepad", speed=0.5)


class Pad:
    """LeRobot's controller object, pressed by the test."""

    deltas, gripper, acts, ended, unplugged = (0.0, 0.0, 0.0), "stay", True, None, False

    def update(self):
        if self.unplugged:
            raise OSError("read error")

    def get_deltas(self):
        return self.deltas

    def gripper_command(self):
        return self.gripper

    def should_intervene(self):
        return self.acts

    def get_episode_end_status(self):
        return self.ended

    def stop(self):
        pass


@pytest.fixture
def pad():
    teleoperator = GamepadTeleop(GamepadTeleopConfig())
    teleoperator.gamepad = Pad()  # its driver, pygame, needs the hardware
    return teleoperator.gamepad, TeleoperatorDevice(teleoperator, OPTIONS)


def test_lerobot_s_axes_become_libero_s_dimensions(pad):
    controller, device = pad
    assert list(device.dims) == [0, 1, 2, 6]
    controller.deltas = (1.0, -0.5, 3.0)
    assert device.read().action == {0: 0.5, 1: -0.25, 2: 0.5}


def test_a_grip_stays_until_the_hand_is_off(pad):
    controller, device = pad
    commands = []
    for gripper, acts in [("close", True), ("stay", True), ("open", True), ("stay", True),
                          ("stay", False), ("stay", True)]:  # fmt: skip
        controller.gripper, controller.acts = gripper, acts
        action = device.read().action
        commands.append(action if action is None else action.get(6))
    assert commands == [1.0, 1.0, -1.0, -1.0, None, None]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(TeleopEvents.SUCCESS, "success"), (TeleopEvents.FAILURE, "failure"),
     (TeleopEvents.RERECORD_EPISODE, "discard"), (None, None)],
)  # fmt: skip
def test_buttons_end_the_episode(pad, status, verdict):
    controller, device = pad
    controller.ended, controller.acts = status, False
    assert device.read() == Reading(verdict=verdict)


def test_an_unplugged_gamepad_leaves_the_episode_to_the_policy(pad, caplog):
    controller, device = pad
    low, high = np.full(7, -1.0), np.full(7, 1.0)
    person = DevicePerson(device, low, high, lambda s: None)
    observation = {"base_action": np.zeros((1, 7), np.float32)}
    assert person.intervene(observation, np.ones(1, bool), 0).actions
    controller.unplugged = True
    assert not person.intervene(observation, np.ones(1, bool), 0).actions
    assert not person.intervene(observation, np.ones(1, bool), 0).actions
    assert [r.message.split(":")[0] for r in caplog.records] == ["gamepad does not answer (OSError"]
    with pytest.raises(DeviceLostError):
        device.read()


def test_a_teleoperator_of_joints_is_refused():
    class Leader:
        name = "so101_leader"
        action_features = {"names": {"shoulder_pan.pos": 0}}

    with pytest.raises(DeviceError, match="so101_leader commands"):
        axes_of(Leader())


@pytest.mark.parametrize("device", ["gamepad", "keyboard_ee"])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(device):
    with pytest.raises(DeviceError, match=f"^intervention.device={device} "):
        check_intervention(InterventionConfig(device=device), None)
