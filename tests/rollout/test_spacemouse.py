"""A SpaceMouse: the reports of its hardware, through pyspacemouse, to LIBERO's dimensions."""

from __future__ import annotations

import struct

import pyspacemouse
import pytest
from pyspacemouse.config_helpers import apply_axis_convention

from pld_ray.config import InterventionConfig
from pld_ray.rollout.device import DeviceError, DeviceLostError, Reading
from pld_ray.rollout.make_intervenor import check_intervention
from pld_ray.rollout.spacemouse import FRESH_S, RELEASE_S, SpaceMouse

OPTIONS = InterventionConfig(device="spacemouse", speed=0.5)
FULL = 350  # counts of an axis at its end


class Cable:
    """The reports that wait at the USB port; what comes to a full ring is dropped."""

    def __init__(self):
        self.reports, self.unplugged = [], False

    def read(self, size):
        if self.unplugged:
            raise OSError("No such device")
        return self.reports.pop(0) if self.reports else b""

    def report(self, data):
        if len(self.reports) < 63:
            self.reports.append(data)

    def push(self, right, back, down):
        self.report(struct.pack("<B3h", 1, right, back, down))

    def turn(self, x, y, z):
        self.report(struct.pack("<B3h", 2, x, y, z))

    def press(self, left, right):
        self.report(bytes([3, left | right << 1]))

    def close(self):
        pass


class Keys:
    """What is typed beside it."""

    reading = Reading()

    def read(self):
        return self.reading

    def episode_begins(self):
        pass

    def close(self):
        pass


class Held:
    def __init__(self):
        info = pyspacemouse.get_device_specs()["SpaceNavigator"]
        info = apply_axis_convention(info, pyspacemouse.AxisConvention.ROS)
        self.cable, self.keys, self.now = Cable(), Keys(), 0.0
        self.meanwhile, self.slept = lambda: None, 0
        mouse = pyspacemouse.SpaceMouseDevice(info, self.cable)
        self.device = SpaceMouse(OPTIONS, mouse, self.keys, lambda: self.now, self.sleep)

    def sleep(self, seconds):
        self.now += seconds
        self.slept += 1
        self.meanwhile()

    def hold(self, seconds, pushed_s, read_every_s=None):
        """For so long, a report each 10 ms: pushed forward at first, then let go."""
        for step in range(round(100 * seconds)):
            self.cable.push(0, -FULL if step < 100 * pushed_s else 0, 0)
            self.cable.turn(0, 0, 0)
            self.now += 0.01
            if read_every_s and step % round(100 * read_every_s) == 0:
                self.device.read()


@pytest.fixture
def held():
    return Held()


def test_a_hand_that_rests_on_it_moves_nothing(held):
    assert held.device.read() == Reading()
    held.cable.push(10, -10, 10)
    assert held.device.read() == Reading()


@pytest.mark.parametrize(
    ("push", "turn", "dim", "value"),
    [
        ((0, -FULL, 0), (0, 0, 0), 0, 0.5),  # away from the person: forward
        ((-FULL, 0, 0), (0, 0, 0), 1, 0.5),  # to the left
        ((0, 0, -FULL // 2), (0, 0, 0), 2, 0.25),  # pulled up, half way
        ((0, 0, 0), (0, 0, -FULL), 5, 0.5),  # counterclockwise, seen from above
        ((0, -2 * FULL, 0), (0, 0, 0), 0, 0.5),  # never beyond the end
    ],
)
def test_axes_are_those_of_the_arm(held, push, turn, dim, value):
    held.cable.push(*push)
    held.cable.turn(*turn)
    expected = {d: value if d == dim else 0.0 for d in range(6)}
    assert held.device.read().action == pytest.approx(expected)


def test_tilting_turns_about_the_axis_that_it_is_pushed_along(held):
    for axis, turned in ((0, 3), (1, 4)):
        held.cable.turn(0, 0, 0)
        tilt = [0, 0, 0]
        tilt[1 - axis] = FULL  # roll about the forward axis, pitch about the left one
        held.cable.turn(*tilt)
        action = held.device.read().action
        assert [d for d in range(6) if action[d]] == [turned]


def test_the_newest_of_all_reports_counts(held):
    for value in range(0, -FULL - 1, -50):
        held.cable.push(0, value, 0)
    assert held.device.read().action[0] == pytest.approx(0.5)
    assert held.cable.reports == []


def test_buttons_grip_until_the_hand_is_off(held):
    held.cable.press(1, 0)
    assert held.device.read().action[6] == 1.0
    held.cable.press(0, 0)
    held.now = RELEASE_S
    assert held.device.read().action[6] == 1.0  # moved just now
    held.now += 0.01
    assert held.device.read() == Reading()
    held.cable.press(0, 1)
    assert held.device.read().action[6] == -1.0
    held.device.episode_begins()
    held.cable.press(0, 0)
    assert held.device.read() == Reading()


@pytest.mark.parametrize("begins", [True, False])
def test_a_cap_let_go_while_nobody_reads_moves_nothing(held, begins):
    """A reset, or the updates of a learner in this process: the report of the release is lost."""
    held.hold(0.2, 0.2, read_every_s=0.05)
    held.hold(1.0, 0.8)
    if begins:
        held.device.episode_begins()
    for _ in range(40):
        action = held.device.read().action
        assert not action or not any(action.values())
        held.now += 0.05
    assert held.device.read() == Reading()
    held.cable.press(1, 0)  # a button says nothing of the cap
    assert held.device.read().action == {**dict.fromkeys(range(6), 0.0), 6: 1.0}
    assert held.slept == 1


def test_a_cap_that_is_still_pushed_then_moves_at_once(held):
    held.hold(1.0, 1.0)
    held.meanwhile = lambda: held.cable.push(0, -FULL, 0)
    assert held.device.read().action[0] == pytest.approx(0.5)


def test_a_cap_let_go_in_a_pause_moves_nothing_after_it(held):
    held.keys.reading = Reading(paused=True)
    held.hold(1.0, 0.8, read_every_s=0.05)
    held.keys.reading = Reading()
    for _ in range(3):
        assert held.device.read() == Reading()
        held.now += 20


def test_a_cap_that_reports_no_more_stands_still(held):
    held.cable.push(0, -FULL, 0)
    assert held.device.read().action[0] == pytest.approx(0.5)
    held.now = FRESH_S
    assert held.device.read().action[0] == pytest.approx(0.5)
    held.now += 0.01
    assert not any(held.device.read().action.values())
    held.now = FRESH_S + RELEASE_S + 0.01
    assert held.device.read() == Reading()


def test_what_is_typed_ends_an_episode_pauses_or_stops(held):
    held.keys.reading = Reading(verdict="success")
    assert held.device.read() == Reading(verdict="success")
    held.cable.push(0, -FULL, 0)
    reading = held.device.read()
    assert (reading.verdict, reading.action[0]) == ("success", 0.5)
    held.keys.reading = Reading(paused=True)
    assert held.device.read().paused
    held.keys.reading = Reading(stop=True)
    assert held.device.read().stop


def test_a_mouse_that_is_pulled_out_is_said(held):
    held.cable.unplugged = True
    with pytest.raises(DeviceLostError, match=r"SpaceMouse does not answer .*No such device"):
        held.device.read()


def test_none_that_is_there_is_refused_with_what_to_do():
    with pytest.raises(DeviceError, match=r"device=spacemouse cannot be opened .*: plug it in"):
        check_intervention(OPTIONS, None)


def test_two_kinds_are_refused(monkeypatch):
    there = ["SpaceNavigator", "SpaceMouse Compact"]
    monkeypatch.setattr(pyspacemouse, "get_connected_devices", lambda: there)
    with pytest.raises(DeviceError, match="SpaceMouse Compact and SpaceNavigator are there"):
        check_intervention(OPTIONS, None)
