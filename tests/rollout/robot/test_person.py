"""The person at a terminal: only what follows a question answers it."""

from __future__ import annotations

import select

import pytest
from at_the_terminal import Terminal

from pld_ray.config import InterventionConfig
from pld_ray.rollout.device import Reading
from pld_ray.rollout.keyboard import TERMINAL, TerminalKeyboard
from pld_ray.rollout.robot.person import Person

PATIENCE = 3
"""Looks at the person before they answer."""


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv(TERMINAL, terminal.path)
    yield terminal
    terminal.close()


class Asked:
    """Somebody who is asked, and answers by two Enters after a while."""

    def __init__(self, terminal, waited_for=True):
        self.terminal, self.looks, self.stops = terminal, 0, []
        self.person = Person(waited_for, self.stops.append)
        self.person.on_wait = self.look

    def look(self):
        self.looks += 1
        if self.looks == PATIENCE:
            self.terminal.type("\n\n")

    def waited(self, what, stopped=False):
        """Whether they had to answer."""
        self.looks = 0
        self.person.confirm(what, stopped)
        return self.looks >= PATIENCE


def test_what_was_typed_before_the_question_does_not_answer_it(terminal):
    asked = Asked(terminal)
    for question in ("arrange the scene", "arrange the next one", "and the next"):
        terminal.type("\n\n")
        assert select.select([terminal.slave], [], [], 60)[0]  # it has arrived
        assert asked.waited(question)
        terminal.until_asked(question)


@pytest.fixture
def keyboard(terminal):
    keyboard = TerminalKeyboard(InterventionConfig(device="keyboard"))
    yield keyboard
    keyboard.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_verdict_from_before_the_question_does_not_answer_it(terminal, keyboard, stopped):
    asked = Asked(terminal, waited_for=not stopped)
    asked.person.device = keyboard
    terminal.type("\n")
    terminal.until(lambda: keyboard._verdict == "success")
    assert asked.waited("press Enter if it may move on", stopped)


def test_a_stop_from_before_the_question_counts_and_the_enter_after_it_does_not(terminal, keyboard):
    asked = Asked(terminal)
    asked.person.device = keyboard
    terminal.type(" \n")
    terminal.until(lambda: keyboard._verdict == "success")
    assert asked.waited("arrange the scene")
    assert asked.stops == ["the person said so"]


def test_what_a_driver_kept_from_before_the_question_does_not_answer_it():
    class Gamepad:
        """Tells what was pressed when it is read, however long ago that was."""

        kept = Reading(verdict="success")

        def read(self):
            reading, self.kept = self.kept, Reading()
            return reading

        def episode_begins(self):
            pass

    def press():
        looks.append(1)
        gamepad.kept = Reading(verdict="success")

    looks, gamepad, person = [], Gamepad(), Person(True, str)
    person.device, person.on_wait = gamepad, press
    person.confirm("arrange the scene")
    assert len(looks) == 1


def test_a_keyboard_that_goes_while_the_arm_is_stopped_is_no_answer(terminal):
    other = Terminal()
    keyboard = TerminalKeyboard(InterventionConfig(device="keyboard"), other.path)
    asked = Asked(terminal)
    asked.person.device = keyboard
    other.close()
    terminal.until(lambda: keyboard._lost)
    assert asked.waited("press Enter if it may move on", stopped=True)
    assert asked.person.device is None


def test_a_device_that_is_gone_takes_no_keys_of_the_terminal(terminal, keyboard):
    """A SpaceMouse that was pulled out has keys beside it."""
    keyboard._lost = True
    person = Person(True, str)
    person.device = keyboard
    person.poll()
    assert not keyboard._thread.is_alive()
