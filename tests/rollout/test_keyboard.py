"""The keyboard through a pseudo-terminal: what keys command, and a terminal that is given back."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import threading

import numpy as np
import pytest

from pld_ray.config import InterventionConfig
from pld_ray.rollout.device import DeviceError, DeviceLostError, DevicePerson, Reading, check_dims
from pld_ray.rollout.intervention import NOTHING
from pld_ray.rollout.keyboard import (
    ESCAPE_S,
    RELEASE_S,
    TERMINAL,
    TerminalKeyboard,
    open_terminal,
    tell_the_person,
)

OPTIONS = InterventionConfig(device="keyboard", speed=0.5, key_hold_s=0.25)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Typist:
    """The other end of the terminal."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.clock = Clock()
        self.path = os.ttyname(self.slave)
        self.before = termios.tcgetattr(self.slave)
        self.keyboard = TerminalKeyboard(OPTIONS, self.path, self.clock)

    def type(self, keys):
        """Send keys; they have been noted when this returns."""
        self.keyboard.noted.clear()
        os.write(self.master, keys.encode())
        assert self.keyboard.noted.wait(60)


@pytest.fixture
def typist(monkeypatch):
    noted, listen_to = threading.Event(), TerminalKeyboard._note

    def note(self, key):
        listen_to(self, key)
        noted.set()

    monkeypatch.setattr(TerminalKeyboard, "noted", noted, raising=False)
    monkeypatch.setattr(TerminalKeyboard, "_note", note)
    typist = Typist()
    yield typist
    typist.keyboard.close()
    for fd in (typist.master, typist.slave):
        try:
            os.close(fd)
        except OSError:
            continue


@pytest.mark.parametrize(
    ("key", "dim", "command"),
    [("w", 0, 0.5), ("s", 0, -0.5), ("a", 1, 0.5), ("d", 1, -0.5), ("r", 2, 0.5), ("f", 2, -0.5),
     ("u", 3, 0.5), ("o", 3, -0.5), ("i", 4, 0.5), ("k", 4, -0.5), ("j", 5, 0.5), ("l", 5, -0.5),
     ("W", 0, 0.5), ("c", 6, 1.0), ("v", 6, -1.0)],
)  # fmt: skip
def test_every_dimension_has_its_keys(typist, key, dim, command):
    typist.type(key)
    action = typist.keyboard.read().action
    assert action.pop(dim) == command
    assert not any(action.values())
    # the gripper is the base policy's until a key commands it
    assert 6 not in action


def test_a_key_counts_for_a_moment_and_the_hand_stays_for_a_while(typist):
    keyboard, clock = typist.keyboard, typist.clock
    assert keyboard.read() == Reading()
    typist.type("c")
    typist.type("w")
    assert keyboard.read().action == {0: 0.5, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1.0}
    clock.now += 0.3
    assert keyboard.read().action == {**dict.fromkeys(range(6), 0.0), 6: 1.0}
    clock.now += RELEASE_S
    assert keyboard.read().action is None
    typist.type("a")
    assert keyboard.read().action == {0: 0, 1: 0.5, 2: 0, 3: 0, 4: 0, 5: 0}
    typist.type("x")
    assert keyboard.read().action is None


@pytest.mark.parametrize(
    ("key", "verdict"), [("\r", "success"), ("0", "failure"), ("\x7f", "discard")]
)
def test_a_verdict_is_told_once(typist, key, verdict):
    typist.type(key)
    assert typist.keyboard.read() == Reading(verdict=verdict)
    assert typist.keyboard.read() == Reading()


def test_pause_holds_everything_until_it_is_pressed_again(typist):
    typist.type("p")
    assert typist.keyboard.read().paused
    typist.type("\r")
    assert typist.keyboard.read() == Reading(paused=True)
    typist.type("p")
    assert typist.keyboard.read() == Reading(verdict="success")


def test_a_new_episode_forgets_the_last_one_s_keys(typist):
    typist.type("w")
    typist.type("0")
    typist.keyboard.episode_begins()
    assert typist.keyboard.read() == Reading()


SEQUENCES = {
    "arrow": "\x1b[A",
    "right": "\x1b[C",
    "End": "\x1b[F",
    "End of an application": "\x1bOF",
    "F1": "\x1bOP",
    "F1 of a console": "\x1b[[A",
    "F5": "\x1b[15~",
    "Control-right": "\x1b[1;5C",
    "Delete": "\x1b[3~",
    "Alt-up": "\x1b\x1b[A",
}
FORWARD = {**dict.fromkeys(range(6), 0.0), 0: 0.5}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_arrow_and_function_keys_command_nothing(typist, sequence):
    typist.type(f"x{sequence}{sequence}w")
    assert typist.keyboard.read() == Reading(FORWARD)


@pytest.mark.parametrize(
    ("before", "after"),
    [("\x1b", "[D"), ("\x1b[", "C"), ("\x1b[1;", "5C"), ("\x1bO", "P"), ("\x1b[[", "A")],
)
def test_the_rest_of_a_sequence_may_come_later(typist, before, after):
    typist.type(f"x{before}")
    typist.type(f"{after}w")
    assert typist.keyboard.read() == Reading(FORWARD)


def test_escape_alone_means_nothing_and_takes_nothing_with_it(typist):
    typist.type("\x1b")
    assert typist.keyboard.read() == Reading()
    typist.type("w")
    assert typist.keyboard.read() == Reading(FORWARD)
    typist.type("x\x1b")
    typist.clock.now += 2 * ESCAPE_S
    typist.type("O")
    assert typist.keyboard.read() == Reading({**dict.fromkeys(range(6), 0.0), 3: -0.5})


@pytest.mark.parametrize("begun", ["\x1b", "\x1b[", "\x1b[1", "\x1bO"])
def test_a_sequence_never_swallows_a_stop_or_a_verdict(typist, begun):
    typist.type(f"x{begun}")
    typist.type(" ")
    assert typist.keyboard.read().stop
    typist.type(f"{begun}\n")
    assert typist.keyboard.read() == Reading(verdict="success")


def test_a_new_episode_takes_what_waits_in_the_terminal_for_the_last_one_s(typist):
    os.write(typist.keyboard._woken, b".")  # nobody listens
    typist.keyboard._thread.join(60)
    os.write(typist.master, b"w\n")
    assert select.select([typist.slave], [], [], 60)[0]
    typist.keyboard.episode_begins()
    assert not select.select([typist.slave], [], [], 0)[0]
    assert typist.keyboard.read() == Reading()


def test_the_terminal_is_as_before_when_it_is_closed(typist):
    assert termios.tcgetattr(typist.slave) != typist.before
    typist.keyboard.close()
    assert termios.tcgetattr(typist.slave) == typist.before
    typist.keyboard.close()


PROCESS = """
import sys
from pld_ray.config import InterventionConfig
from pld_ray.rollout.keyboard import TerminalKeyboard
keyboard = TerminalKeyboard(InterventionConfig(device="keyboard"), sys.argv[1])
if sys.argv[2] == "raise":
    raise RuntimeError("on purpose")
"""


@pytest.mark.parametrize("how", ["end", "raise"])
def test_a_process_that_ends_without_closing_gives_the_terminal_back(how):
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    subprocess.run([sys.executable, "-c", PROCESS, os.ttyname(slave), how], capture_output=True)
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_a_terminal_that_hangs_up_is_said_once_and_the_episode_goes_on(typist, caplog):
    low, high = np.full(7, -1.0), np.full(7, 1.0)
    person = DevicePerson(typist.keyboard, low, high, lambda s: None)
    typist.type("w")
    observation, stepping = {"base_action": np.full((1, 7), 0.25, np.float32)}, np.ones(1, bool)
    turn = person.intervene(observation, stepping, 0)
    np.testing.assert_allclose(turn.actions[0], [0.5, 0, 0, 0, 0, 0, 0.25])
    os.close(typist.slave)
    os.close(typist.master)
    typist.keyboard._thread.join(60)
    with pytest.raises(DeviceLostError):
        typist.keyboard.read()
    for _ in range(3):
        assert person.intervene(observation, stepping, 0) is NOTHING
    said = [r.message for r in caplog.records]
    assert len(said) == 1
    assert "nobody can intervene any more, training goes on without" in said[0]


def test_a_pause_is_ended_by_whoever_waits(typist):
    person = DevicePerson(typist.keyboard, np.full(7, -1.0), np.full(7, 1.0), lambda s: None)
    looks = []

    def look():
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    person.on_wait = look
    observation, stepping = {"base_action": np.zeros((1, 7))}, np.ones(1, bool)
    assert person.intervene(observation, stepping, 0) is NOTHING
    assert not looks
    typist.type("p")
    with pytest.raises(KeyboardInterrupt):
        person.intervene(observation, stepping, 0)


def test_the_person_sits_at_the_terminal_of_the_actor(monkeypatch):
    master, slave = pty.openpty()
    monkeypatch.setenv(TERMINAL, os.ttyname(slave))
    keyboard = TerminalKeyboard(OPTIONS)
    try:
        assert termios.tcgetattr(slave)[3] & termios.ICANON == 0
        tell_the_person("keys: w")
        assert b"keys: w" in os.read(master, 100)
    finally:
        keyboard.close()
        os.close(master)
        os.close(slave)


def test_without_a_terminal_one_sentence_says_what_to_do(tmp_path):
    with pytest.raises(DeviceError, match="start it in a terminal"):
        open_terminal(str(tmp_path / "none"))


def test_a_device_with_too_few_axes_is_refused_unless_they_are_given_up():
    check_dims("gamepad", [0, 1, 2, 6], [3, 4, 5], 7)
    with pytest.raises(DeviceError, match=r"--intervention.fixed_dims=\[3, 4, 5\]"):
        check_dims("gamepad", [0, 1, 2, 6], [], 7)
    with pytest.raises(DeviceError, match="the action has 3 dimensions"):
        check_dims("keyboard", range(7), [], 3)
