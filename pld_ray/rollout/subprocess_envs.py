"""Environments in processes of their own: they step at the same time, and may crash or hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from pld_ray.rollout.env_group import (
    Command,
    EnvFailedError,
    FailureCount,
    MakeEnv,
    Outcome,
    apply,
    checked_spaces,
)

STOP_TIMEOUT_S = 5.0


class SubprocessEnvs:
    """One process per environment; observations come back through shared memory.

    The processes are forked from a server that has imported the simulator once, so that each costs
    neither the seconds nor most of the memory of the imports. A process that dies, raises, or does
    not answer in time is killed and replaced; its outcome names the failure.

    Args:
        makers: one function per environment; picklable (`functools.partial` of a class).
        step_timeout_s: seconds that a step may take.
        reset_timeout_s: seconds that a reset may take; the first one builds the simulation.
        preload: modules that the server imports before it forks.
    """

    def __init__(
        self,
        makers: Sequence[MakeEnv],
        step_timeout_s: float = 60.0,
        reset_timeout_s: float = 300.0,
        preload: Sequence[str] = ("pld_ray.rollout.env_preload",),
    ) -> None:
        for name, value in (
            ("step_timeout_s", step_timeout_s),
            ("reset_timeout_s", reset_timeout_s),
        ):
            if value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        self._makers = list(makers)
        self.num_envs = len(self._makers)
        self._step_timeout_s = step_timeout_s
        self._reset_timeout_s = reset_timeout_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        example = self._makers[0]()
        self.observation_space, self.action_space = checked_spaces(
            example.observation_space, example.action_space
        )
        example.close()
        self._failures = FailureCount(self.num_envs)
        self._replaced = [False] * self.num_envs
        self._workers = [self._start(i) for i in range(self.num_envs)]

    @property
    def pids(self) -> list[int]:
        """Process ids, in the order of the environments."""
        return [worker.process.pid or 0 for worker in self._workers]

    def run(self, commands: Sequence[Command | None]) -> list[Outcome]:
        sent = {
            i: self._failures.seeded(i, command, self._replaced[i])
            for i, command in enumerate(commands)
            if command is not None
        }
        outcomes = [Outcome() for _ in commands]
        now = time.monotonic()
        due: dict[int, float] = {}  # what has not answered yet, and when it is given up
        for i, command in sent.items():
            if self._workers[i].send(command):
                resets = command.action is None
                due[i] = now + (self._reset_timeout_s if resets else self._step_timeout_s)
            else:
                outcomes[i] = Outcome(failure=self._workers[i].epitaph())
        while due:
            left = max(0.0, min(due.values()) - time.monotonic())
            ready = wait([self._workers[i].connection for i in due], left)
            for i in list(due):
                if self._workers[i].connection in ready:
                    outcomes[i] = self._workers[i].receive()
                    del due[i]
                elif time.monotonic() >= due[i]:
                    outcomes[i] = Outcome(failure=self._too_late(sent[i]))
                    del due[i]
        for i, command in sent.items():
            self._replaced[i] = outcomes[i].failure is not None
            if self._replaced[i]:
                self._workers[i].kill()
            self._failures.note(i, command, outcomes[i])
            if self._replaced[i]:
                self._workers[i] = self._start(i)
        return outcomes

    def _too_late(self, command: Command) -> str:
        if command.action is None:
            return f"a reset did not end within {self._reset_timeout_s} s (reset_timeout_s)"
        return f"a step did not end within {self._step_timeout_s} s (step_timeout_s)"

    def render(self, i: int) -> np.ndarray:
        self._workers[i].connection.send("render")
        picture = self._workers[i].connection.recv()
        if isinstance(picture, Outcome):
            raise EnvFailedError(f"environment {i} cannot be rendered: {picture.failure}")
        return np.asarray(picture)

    def close(self) -> None:
        for worker in self._workers:
            worker.send("close")
        for worker in self._workers:
            worker.process.join(STOP_TIMEOUT_S)
            worker.kill()
        self._workers = []

    def _start(self, i: int) -> _Worker:
        return _Worker(self._context, self._makers[i], self.observation_space, i)


class _Worker:
    """The parent's end of one environment's process."""

    def __init__(self, context: Any, make: MakeEnv, space: gym.spaces.Dict, i: int) -> None:
        self._space = space
        self._memory = create_shared_memory(space, 1, context)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, make, space, self._memory), name=f"env_{i}", daemon=True
        )
        self.process.start()
        theirs.close()  # so that its death is the end of the connection

    def send(self, message: Any) -> bool:
        """Whether the process could be told."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def receive(self) -> Outcome:
        try:
            outcome = self.connection.recv()
        except (EOFError, OSError):
            return Outcome(failure=self.epitaph())
        if outcome.failure is None:
            rows: Any = read_from_shared_memory(self._space, self._memory, 1)
            outcome.observation = {key: rows[key][0] for key in self._space.spaces}
        return outcome

    def epitaph(self) -> str:
        """How the process ended."""
        self.process.join(STOP_TIMEOUT_S)
        return f"its process ended with exit code {self.process.exitcode}"

    def kill(self) -> None:
        self.process.kill()
        self.process.join(STOP_TIMEOUT_S)
        self.connection.close()


def serve(connection: Connection, make: MakeEnv, space: gym.spaces.Dict, memory: Any) -> None:
    """The process of one environment: carry out commands until the parent has gone."""
    threading.Thread(target=exit_with_parent, daemon=True).start()
    env: gym.Env | None = None
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while (message := connection.recv()) != "close":
            try:
                if env is None:
                    env = make()
                if message == "render":
                    connection.send(env.render())
                    continue
                outcome = apply(env, message)
                write_to_shared_memory(space, 0, cast(Any, outcome.observation), memory)
                outcome.observation = {}
            except Exception as error:  # told to the parent, which replaces this process
                where = traceback.extract_tb(error.__traceback__)[-1]
                outcome = Outcome(
                    failure=f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
                )
            connection.send(outcome)
    if env is not None:
        env.close()


def exit_with_parent() -> None:
    """A parent that was killed leaves no simulator behind, not even one that hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)
