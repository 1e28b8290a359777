"""What `pld-ray train` says while it starts, and how it ends when it is stopped there."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from pld_ray.jobs.start_up import StartUp

POINT = [
    "--env.entry_point=envs.point:PointEnv",
    "--env.suite=point",
    "--env.task=reach_the_goal",
    "--policy.type=none",
    "--algorithm.offline_episodes=0",
    "--tracking.enabled=false",
]
END_S = 120.0
"""Two seconds on an idle machine; the tests share theirs."""


def start_until(line, folder):
    """`pld-ray train` in a session of its own, when it has printed a line that begins so."""
    command = [sys.executable, "-u", "-m", "pld_ray.cli", "train", *POINT]
    command.append(f"--output_dir={folder / 'run'}")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    shown = []
    for text in process.stdout:
        shown.append(text.rstrip())
        if text.startswith(line):
            return process, shown
    raise AssertionError(f"{line!r} was not printed: {shown} {process.stderr.read()}")


@pytest.mark.parametrize(
    "line",
    [
        "[starting] imports",
        pytest.param("[starting] learner and env runners", marks=pytest.mark.chaos),
    ],
)
def test_ctrl_c_while_starting_ends_it_with_a_sentence_and_leaves_nothing(line, tmp_path):
    process, shown = start_until(line, tmp_path)
    try:
        assert shown[0] == "[starting] configuration"
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, error = process.communicate(timeout=END_S)
        step = line.removeprefix("[starting] ")
        assert error.splitlines() == [
            f"pld-ray: stopped while starting ({step}): nothing was trained, and no run is left "
            "behind"
        ]
        assert process.returncode == 130
        _, alive = psutil.wait_procs(started, timeout=END_S)
        assert [child.name() for child in alive] == []
        assert not (tmp_path / "run").exists()
    finally:
        process.kill()


def swallowed_while_importing(went_on):
    with StartUp() as start:
        start.step("imports")
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        start.step("Ray")
        went_on.append("next step")


def swallowed_in_the_last_step(went_on):
    with StartUp() as start:
        start.step("imports")
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        start.over()
        went_on.append("training")


def turned_into_another_error(went_on):
    with StartUp() as start:
        start.step("imports")
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("cannot import") from None


def without_a_terminal(went_on):
    with StartUp() as start:
        start.step("imports")
        signal.raise_signal(signal.SIGHUP)


def answered_by_ray(went_on):
    """Which takes SIGTERM in the step that starts it."""
    with StartUp() as start:
        start.step("imports")
        sys.exit(signal.SIGTERM)


@pytest.fixture
def hangs_up():
    """Under `nohup` too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize(
    "start",
    [
        swallowed_while_importing,
        swallowed_in_the_last_step,
        turned_into_another_error,
        without_a_terminal,
        answered_by_ray,
    ],
)
def test_a_stop_is_the_sentence_whatever_a_library_makes_of_it(start):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    went_on = []
    with pytest.raises(KeyboardInterrupt, match=r"^stopped while starting \(imports\): nothing"):
        start(went_on)
    assert went_on == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_stop_within_logging_waits_until_its_lock_is_free():
    """The end of the process would wait for that lock."""
    logged = []

    class Stopped(logging.Handler):
        def emit(self, record):
            signal.raise_signal(signal.SIGTERM)
            logged.append(record.getMessage())

    log = logging.getLogger("stopped")
    log.addHandler(Stopped())

    def begin():
        with StartUp() as start:
            start.step("imports")
            log.error("whole")
            assert logged == ["whole"]
            threading.Event().wait(END_S)
            logged.append("not stopped")

    with pytest.raises(KeyboardInterrupt, match=r"^stopped while starting \(imports\)"):
        begin()
    assert logged == ["whole"]


class Goes:
    """Stops the start when it goes."""

    def __init__(self, gone):
        self.gone = gone

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        self.gone.append(1)


def test_a_stop_where_python_hears_no_error_is_not_printed_and_comes_after_it(monkeypatch):
    printed, gone = [], []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    def begin():
        with StartUp() as start:
            start.step("imports")
            Goes(gone)
            assert (gone, printed) == ([1], [])
            threading.Event().wait(END_S)
            gone.append("not stopped")

    with pytest.raises(KeyboardInterrupt, match=r"^stopped while starting \(imports\)"):
        begin()
    assert gone == [1]


def test_who_ends_the_process_is_not_taken_for_a_stop():
    """An environment may; what Ray makes of SIGTERM has that signal's number."""
    with pytest.raises(SystemExit, match=r"^1$"), StartUp():
        sys.exit(1)


def test_handlers_that_a_library_sets_meanwhile_are_taken_over_and_given_back():
    def theirs(number, frame):
        raise AssertionError("the start would not end with a sentence")

    before = signal.getsignal(signal.SIGTERM)
    try:
        with StartUp() as start:
            start.step("Ray")
            signal.signal(signal.SIGTERM, theirs)
            start.step("learner and env runners")
            assert signal.getsignal(signal.SIGTERM) != theirs
            start.over()
            assert signal.getsignal(signal.SIGTERM) is theirs  # Ray's own, while it trains
    finally:
        signal.signal(signal.SIGTERM, before)
