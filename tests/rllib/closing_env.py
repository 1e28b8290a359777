"""An environment that writes down when it is opened and closed, in whichever process it lives."""

from __future__ import annotations

import os
import pathlib
import threading

from envs.point import PointEnv


class ClosingEnv(PointEnv):
    """Args:
    book: file that gets a line `open ID` or `close ID`.
    """

    def __init__(self, book: str) -> None:
        super().__init__(episode_length=10)
        self.book, self.name = pathlib.Path(book), f"{os.getpid()}-{id(self)}"
        self._write("open")

    def step(self, action):
        closed = f"close {self.name}" in self.book.read_text().splitlines()
        assert not closed, "it was closed before"
        return super().step(action)

    def close(self):
        self._write("close")

    def _write(self, what: str) -> None:
        with self.book.open("a") as book:
            book.write(f"{what} {self.name}\n")


class WaitingEnv(ClosingEnv):
    """As a robot whose person does not come."""

    def reset(self, **kwargs):
        pathlib.Path(f"{self.book}.waits").touch()
        threading.Event().wait()
