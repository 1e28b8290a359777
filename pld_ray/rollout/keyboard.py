"""The keyboard of a terminal, over SSH too: a thread that reads it, and what its keys mean."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import termios
import threading
import time
import tty
from collections.abc import Callable

from pld_ray.config.intervention import InterventionConfig
from pld_ray.rollout.device import DeviceError, DeviceLostError, Reading
from pld_ray.rollout.intervention import Verdict

GRIPPER = 6
MOTIONS = {
    "w": (0, 1.0),
    "s": (0, -1.0),
    "a": (1, 1.0),
    "d": (1, -1.0),
    "r": (2, 1.0),
    "f": (2, -1.0),
    "u": (3, 1.0),
    "o": (3, -1.0),
    "i": (4, 1.0),
    "k": (4, -1.0),
    "j": (5, 1.0),
    "l": (5, -1.0),
}
"""Key -> (dimension of LIBERO's action, sign)."""
GRIPS = {"c": 1.0, "v": -1.0}
"""Close, open; the command stays until the person lets go."""
LET_GO = "x"
VERDICTS: dict[str, Verdict] = {
    "\r": "success",
    "\n": "success",
    "0": "failure",
    "\x7f": "discard",
    "\b": "discard",
}
PAUSE = "p"
STOP = " "
"""Of a robot; nothing in a simulation."""
RELEASE_S = 1.0
"""Seconds without a key after which the policy acts again; until then the arm holds still."""
ESCAPE_S = 0.5
"""Seconds within which the rest of an escape sequence comes, or Esc was pressed alone."""
ESCAPE = re.compile(r"\x1b(?:\[\[?+|O)[!-?]*+[@-~]?")
"""What a terminal sends for an arrow or a function key, `ESC [ [ A` for F1 in a Linux console among
it. Space, Enter and Backspace are never part of one."""
OPEN_ESCAPE = re.compile(r"\x1b(?:(?:\[\[?+|O)[!-?]*+)?\Z")
"""The beginning of one, at the end of what was read."""
HELP = (
    "keys: w/s a/d r/f move, u/o i/k j/l turn, c/v close/open the gripper, x hands off, "
    "Enter success, 0 failure, Backspace record again, p pause, space stops a robot"
)


TERMINAL = "PLD_RAY_TERMINAL"
"""Environment variable in which `pld-ray actor` tells the processes of its machine where the person
sits: they have no terminal of their own."""


class TerminalKeyboard:
    """A `Device` of seven dimensions.

    The terminal gives keys at once and without echo while it is open (Ctrl-C still interrupts), and
    is as before after `close`, at the end of the process at the latest.

    Args:
        options: `speed` and `key_hold_s`.
        path: of the terminal; None is that of `pld-ray actor` on this machine, or the process's.
        clock: monotonic seconds.

    Raises:
        DeviceError: the process has no terminal.
    """

    dims = tuple(range(7))

    def __init__(
        self,
        options: InterventionConfig,
        path: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._clock = options, clock
        self._fd = open_terminal(path)
        os.set_blocking(self._fd, False)  # whoever reads it has the lock
        self._before = termios.tcgetattr(self._fd)
        self._lock = threading.Lock()
        self._pressed: dict[str, float] = {}
        self._open_escape, self._opened = "", -float("inf")
        self._last_key = -float("inf")
        self._verdict: Verdict | None = None
        self._grip: float | None = None
        self._paused = self._lost = self._stop = False
        self._wake, self._woken = os.pipe()
        atexit.register(self.close)
        tty.setcbreak(self._fd)
        self._thread = threading.Thread(target=self._listen, name="keyboard", daemon=True)
        self._thread.start()

    def read(self) -> Reading:
        now = self._clock()
        with self._lock:
            if self._lost:
                raise DeviceLostError("the terminal of the keyboard is gone")
            if self._stop:
                self._stop = False
                return Reading(stop=True)
            if self._paused:
                return Reading(paused=True)
            verdict, self._verdict = self._verdict, None
            if now - self._last_key > RELEASE_S:
                self._grip = None
                return Reading(verdict=verdict)
            hold_s = self._options.key_hold_s
            held = [key for key, at in self._pressed.items() if now - at <= hold_s]
        action = dict.fromkeys(range(GRIPPER), 0.0)
        for key in held:
            dim, sign = MOTIONS[key]
            action[dim] += sign * self._options.speed
        if self._grip is not None:
            action[GRIPPER] = self._grip
        return Reading(action, verdict)

    def episode_begins(self) -> None:
        with self._lock:
            self._take_in()  # what was typed by now is of the last one; a stop and a pause stay
            self._pressed, self._verdict, self._grip = {}, None, None
            self._last_key = -float("inf")

    def close(self) -> None:
        if self._thread.is_alive():
            os.write(self._woken, b".")
            self._thread.join()
        if self._fd < 0:
            return
        with contextlib.suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        for fd in (self._fd, self._wake, self._woken):
            os.close(fd)
        self._fd = -1
        atexit.unregister(self.close)

    def _listen(self) -> None:
        """Note keys until `close`."""
        while True:
            ready, _, _ = select.select([self._fd, self._wake], [], [])
            if self._wake in ready:
                return
            with self._lock:
                self._take_in()
                if self._lost:
                    return

    def _take_in(self) -> None:
        """Note the keys that wait in the terminal."""
        if self._lost or self._fd < 0:
            return
        try:
            read = os.read(self._fd, 4096)
        except BlockingIOError:  # none
            return
        except OSError:
            read = b""
        self._lost = not read  # hung up
        for key in self._keys(read.decode(errors="ignore")):
            self._note(key)

    def _keys(self, text: str) -> str:
        """Without the keys that come as escape sequences: their letters are nobody's command."""
        now = self._clock()
        if now - self._opened <= ESCAPE_S:
            text = self._open_escape + text
        unfinished = OPEN_ESCAPE.search(text)
        self._open_escape, self._opened = unfinished.group() if unfinished else "", now
        return ESCAPE.sub("", text)

    def _note(self, key: str) -> None:
        now, key = self._clock(), key.lower()
        if key in MOTIONS:
            self._pressed[key] = self._last_key = now
        elif key in GRIPS:
            self._grip, self._last_key = GRIPS[key], now
        elif key == LET_GO:
            self._pressed, self._last_key = {}, -float("inf")
        elif key in VERDICTS:
            self._verdict = VERDICTS[key]
        elif key == STOP:
            self._stop, self._paused = True, False
            self._pressed, self._verdict = {}, None
        elif key == PAUSE:
            self._paused = not self._paused


def tell_the_person(text: str) -> None:
    """Print where the person sits."""
    terminal = os.environ.get(TERMINAL)
    if terminal is None:
        print(text, flush=True)
        return
    with contextlib.suppress(OSError), open(terminal, "w") as screen:
        print(text, file=screen)


def open_terminal(path: str | None = None) -> int:
    """A descriptor of the terminal.

    Raises:
        DeviceError: there is none.
    """
    try:
        fd = os.open(path or os.environ.get(TERMINAL, "/dev/tty"), os.O_RDONLY | os.O_NOCTTY)
    except OSError as error:
        raise DeviceError(
            "intervention.device=keyboard reads the terminal of this command, or of pld-ray actor, "
            "and there is none: start it in a terminal (with ssh -t, or docker run -it), or choose "
            "another device"
        ) from error
    return fd
