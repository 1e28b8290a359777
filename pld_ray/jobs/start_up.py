"""What a run does before it trains: shown step by step, and ended by Ctrl-C at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from pld_ray.jobs.stop_request import hung_up, stop_signals

LATER_S = 0.02
UNHEARD = ("cb", "remove", "_remove", "__del__")
"""Names of what is called when objects go: by importlib's locks, by weak collections."""


class StartUp:
    """The steps of a start, each in a line as it begins, in the form of the progress display.

    As a context, until `over` is called, `stop_signals` raise KeyboardInterrupt with a sentence for
    the user; where a library swallows that or makes another error of it, the next step, `over`
    or the end of the context raises it again.

    Attributes:
        left: what is left of a run that is stopped here, in words.
    """

    def __init__(self) -> None:
        self.left = "nothing was trained, and no run is left behind"
        self._current = "configuration"
        self._ended = self._told = False
        self._armed = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StartUp:
        self._armed = True
        self._arm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Ray makes SystemExit of a SIGTERM that comes once it runs, before the next step
        code = error.code if isinstance(error, SystemExit) else None
        by_ray = self._armed and code == signal.SIGTERM
        self._disarm()
        if self._ended or by_ray:  # whatever a library has made of the interrupt
            self._raise()

    def step(self, name: str) -> None:
        """Say what is being started now.

        Raises:
            KeyboardInterrupt: the start was to end during the last step.
        """
        if self._ended:
            self._raise()
        self._current = name
        if self._armed:
            self._arm()
        print(f"[starting] {name}", flush=True)

    def over(self) -> None:
        """It trains from here on; signals mean what they meant before.

        Raises:
            KeyboardInterrupt: the start was to end during the last step.
        """
        self._disarm()
        if self._ended:
            self._raise()

    def _disarm(self) -> None:
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._previous, self._armed = {}, False

    def _arm(self) -> None:
        """Take the signals, again where a library took them meanwhile (Ray takes SIGTERM)."""
        for number in stop_signals():
            present = signal.getsignal(number)
            if present != self._handle:
                self._previous[number] = present
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        hung_up(number)
        self._ended = True
        if not is_held(frame):
            self._raise()
        again = threading.Timer(LATER_S, self._interrupt)
        again.daemon = True
        again.start()

    def _interrupt(self) -> None:
        """From another thread: ask once more, unless the start has been ended meanwhile."""
        if self._armed and not self._told:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _raise(self) -> None:
        self._told = True
        raise KeyboardInterrupt(f"stopped while starting ({self._current}): {self.left}")


def is_held(frame: FrameType | None) -> bool:
    """Whether an interrupt has to wait.

    The module `logging` is at work, whose lock it may leave taken: the end of the process would
    wait for that for ever. Or the interpreter itself calls what runs, and would only print what is
    raised there: importing calls such functions all the time.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") == "logging" or frame.f_code.co_name in UNHEARD:
            return True
        frame = frame.f_back
    return False
