"""A run whose terminal goes: it saves, and what it prints goes nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pld_ray.jobs.stop_request import StopRequest

RUN = """
import contextlib, fcntl, os, pathlib, signal, sys, termios
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.tracking.progress import TrainProgress
handler, trains, saved = sys.argv[1:]
signal.signal(signal.SIGHUP, getattr(signal, handler))
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with TrainProgress(None) as progress, StopRequest() as stop:
    os.write(int(trains), b"yes")
    with contextlib.suppress(OSError):
        os.read(0, 1)  # nothing comes, until the terminal goes
    progress.update(phase="train")
print("saved", flush=True)
os.kill(os.getpid(), signal.SIGHUP)  # of the kernel, after that of the shell
pathlib.Path(saved).write_text(str(stop.requested))
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_run_that_loses_its_terminal_saves_or_goes_on(handler, tmp_path):
    """The latter under `nohup`."""
    (master, terminal), (told, trains) = os.openpty(), os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, handler, str(trains), str(tmp_path / "saved")],
        stdin=terminal, stdout=terminal, stderr=terminal, pass_fds=[trains], start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    os.close(trains)
    assert os.read(told, 3) == b"yes"
    os.close(master)
    assert process.wait(timeout=60) == 0
    os.close(told)
    assert (tmp_path / "saved").read_text() == str(handler == "SIG_DFL")


def test_a_terminal_that_goes_after_ctrl_c_aborts_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGHUP)
        assert stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)
