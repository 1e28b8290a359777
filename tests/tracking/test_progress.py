"""The progress display on a real pseudo-terminal and on a plain stream."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import threading

import pytest

from pld_ray.tracking.progress import TrainProgress


@pytest.fixture
def clock():
    return [1000.0]


def make(clock, stream, **options) -> TrainProgress:
    return TrainProgress(10_000, stream=stream, clock=lambda: clock[0], **options)


class Terminal:
    """A pseudo-terminal: what is written to `stream`, and what was `shown` once it is closed."""

    def __init__(self) -> None:
        self._main, terminal = pty.openpty()
        self.stream = os.fdopen(terminal, "w")
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while part := os.read(self._main, 4096):
                self._parts.append(part)

    def shown(self) -> str:
        self.stream.close()
        self._reader.join()
        os.close(self._main)
        return b"".join(self._parts).decode()


def test_plain_lines_at_intervals_and_at_each_new_phase(clock):
    stream = io.StringIO()
    with make(clock, stream, interval_s=10) as progress:
        for second in range(40):
            clock[0] += 1.0
            phase = "warmup" if second < 20 else "train"
            progress.update(phase=phase, env_steps=50 * (second + 1), updates=10 * second)
        progress.update(train_success=0.5, eval_success=0.75)
    lines = stream.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines[:-1]] == ["[warmup"] * 2 + ["[train"] * 2
    assert "steps 2,000/10,000 (50/s)" in lines[-1]
    assert "updates 390 (10/s)" in lines[-1]
    assert "success train 50%, eval 75%, base -" in lines[-1]
    assert "time 0:00:40 elapsed, 0:02:40 left" in lines[-1]
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_resumed_run_does_not_count_its_past_as_speed(clock):
    stream = io.StringIO()
    with make(clock, stream, env_steps=6000, updates=6000, elapsed_s=3600) as progress:
        assert progress.left_s is None
        clock[0] += 10
        progress.update(phase="train", env_steps=6100, updates=6200)
        assert progress.rates == (10.0, 20.0)
        assert progress.left_s == pytest.approx(390)
        assert progress.elapsed_s == 3610
    clock[0] += 500  # between two uses nothing runs
    with progress:
        clock[0] += 5
        progress.update(env_steps=6200)
        assert progress.elapsed_s == 3615
        assert progress.rates[0] == 20.0


def test_terminal_display(clock):
    terminal = Terminal()
    with make(clock, terminal.stream) as progress:
        clock[0] += 60
        progress.update(phase="train", env_steps=5000, base_success=0.5, eval_success=0.9)
        print("evaluated")  # what others print stands above it
    shown = terminal.shown()
    for text in ("train", "5,000/10,000", "50%", "eval 90%", "base 50%", "0:01:00", "evaluated"):
        assert text in shown
    assert "\x1b[2K" in shown  # it redraws in place
    assert shown.rstrip().endswith("\x1b[?25h")  # and gives the cursor back


def test_the_terminal_is_given_back_after_an_error(clock):
    terminal = Terminal()
    with pytest.raises(ZeroDivisionError), make(clock, terminal.stream):
        raise ZeroDivisionError
    assert terminal.shown().rstrip().endswith("\x1b[?25h")


def test_none_keeps_the_last_known_value(clock):
    with make(clock, io.StringIO()) as progress:
        progress.update(eval_success=0.75)
        progress.update(eval_success=None, train_success=0.5)
        assert progress.state.eval_success == 0.75
        assert progress.state.train_success == 0.5


def test_unknown_field(clock):
    with make(clock, io.StringIO()) as progress, pytest.raises(TypeError, match="sucess"):
        progress.update(sucess=1.0)


def test_no_time_is_left_when_the_last_iteration_overshoots(clock):
    with make(clock, io.StringIO()) as progress:
        clock[0] += 10
        progress.update(env_steps=10_300)
        assert progress.left_s == 0


def test_where_the_end_is_not_known_nothing_is_said_of_it(clock):
    stream = io.StringIO()
    terminal = Terminal()
    for shown_on in (stream, terminal.stream):
        with TrainProgress(None, stream=shown_on, clock=lambda: clock[0]) as progress:
            clock[0] += 10
            progress.update(phase="calql", env_steps=2000, calql_steps="200/1,000")
            assert progress.left_s is None
            progress.update(phase="online")
    calql, online = stream.getvalue().splitlines()[:2]
    assert "steps 2,000 (200/s)" in calql
    assert calql.endswith("elapsed  Cal-QL 200/1,000")
    assert "Cal-QL" not in online
    assert "%" not in terminal.shown()


def test_a_person_is_shown_from_the_first_intervention_on(clock):
    stream = io.StringIO()
    with make(clock, stream) as progress:
        progress.update(phase="online", train_success=0.5)
        assert "person" not in stream.getvalue()
        progress.update(phase="evaluate", intervention_share=0.25, assisted_success=1.0)
    assert "person 25% of the steps, assisted success 100%" in stream.getvalue()


def test_the_base_policy_is_named_with_its_states(clock):
    stream = io.StringIO()
    with make(clock, stream) as progress:
        progress.update(phase="collect", base_states="held")
        progress.update(phase="warmup", base_success=0.5, base_states="held")
        progress.update(phase="online", base_success=0.33, base_states="validation")
    unknown, held, same = stream.getvalue().splitlines()
    assert "base -" in unknown
    assert "eval -, base (held) 50%" in held
    assert "eval -, base (validation) 33%" in same


def test_the_last_line_is_printed_once(clock):
    stream = io.StringIO()
    with make(clock, stream) as progress:
        clock[0] += 1
        progress.update(phase="evaluate", env_steps=9_000)
        clock[0] += 1
        progress.update(phase="online", env_steps=10_000)
    assert [line.split("]")[0] for line in stream.getvalue().splitlines()] == [
        "[evaluate",
        "[online",
    ]
    with progress:  # entered again it says where it is
        clock[0] += 1
    assert stream.getvalue().splitlines()[-1].startswith("[online] steps 10,000")
    assert len(stream.getvalue().splitlines()) == 3
