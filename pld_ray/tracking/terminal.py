"""A terminal that goes while a command runs."""

from __future__ import annotations

import errno
import os
import termios


def leave_dead_terminal() -> None:
    """Let what is printed go nowhere once the terminal is gone, where writing is an error (EIO)."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:  # of a file, too
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
