"""A terminal, and whoever sits at it: reads what is said, and types."""

from __future__ import annotations

import os
import pty
import select
import time

LIMIT_S = 120.0


class Terminal:
    """Its person's end.

    Attributes:
        slave: the programs' end.
        path: of that.
        read: what was said since it was last asked for.
    """

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.path, self.read = os.ttyname(self.slave), ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until_asked(self, what: str) -> None:
        while what not in self.read:
            self.read += os.read(self.master, 4096).decode()
        self.read = self.read.partition(what)[2]

    def asked(self, what: str) -> bool:
        """Whether it has been said by now, since it was last asked for."""
        while select.select([self.master], [], [], 0)[0]:
            self.read += os.read(self.master, 4096).decode()
        said = what in self.read
        if said:
            self.read = self.read.partition(what)[2]
        return said

    def until(self, seen, keys: str = "") -> None:
        """Wait, with a key held down as a terminal shows it: again and again."""
        end = time.monotonic() + LIMIT_S
        while not seen():
            assert time.monotonic() < end, f"nothing came of {keys!r}"
            self.type(keys)
            time.sleep(0.02)

    def close(self) -> None:
        for fd in (self.master, self.slave):
            os.close(fd)
