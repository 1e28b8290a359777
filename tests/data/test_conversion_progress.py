"""What a long command says of itself where there is no terminal."""

import io

import pytest
from rich.console import Console

from pld_ray.data.conversion_progress import TerminalSteps, speed


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def lines_of(clock, seconds, amounts, total, **options) -> list[str]:
    """What is printed where each amount takes so many seconds."""
    file = io.StringIO()
    console = Console(file=file, get_time=clock, width=40)
    with TerminalSteps(console).phase("recording", total, "episodes", **options) as advance:
        for amount in amounts:
            clock.now += seconds
            advance(amount)
    return file.getvalue().splitlines()


def test_a_plain_line_every_half_minute_says_how_far_it_is(clock):
    lines = lines_of(clock, 12.0, [1] * 8, 16)
    assert lines == [
        "recording: 3 of 16 episodes (19%), 12.0 s per episode, 0:00:36 elapsed, 0:02:36 left",
        "recording: 6 of 16 episodes (38%), 12.0 s per episode, 0:01:12 elapsed, 0:02:00 left",
        "recording: 8 episodes in 96.0 s, 12.0 s per episode",
    ]


def test_what_was_done_before_is_no_speed(clock):
    first, _ = lines_of(clock, 40.0, [100], 1000, done=500)
    assert first == (
        "recording: 600 of 1000 episodes (60%), 2 episodes/s, 0:00:40 elapsed, 0:02:40 left"
    )


def test_nothing_kept_yet_is_said_and_where_the_end_is_not_known_nothing_of_it(clock):
    assert lines_of(clock, 31.0, [0], 20)[0] == (
        "recording: 0 of 20 episodes (0%), 0 episodes/s, 0:00:31 elapsed"
    )
    assert lines_of(clock, 31.0, [1], 0)[0] == (
        "recording: 1 episodes, 31.0 s per episode, 0:00:31 elapsed"
    )


def test_quick_work_is_one_line(clock):
    assert lines_of(clock, 0.01, [1] * 50, 50) == [
        "recording: 50 episodes in 0.5 s, 100 episodes/s"
    ]


@pytest.mark.parametrize(
    ("count", "seconds", "words"),
    [
        (3, 97.8, "32.6 s per episode"),
        (0, 97.8, "0 episodes/s"),
        (97, 97.0, "1 episodes/s"),
        (1200, 100.0, "12 episodes/s"),
    ],
)
def test_less_than_one_a_second_is_seconds_for_each(count, seconds, words):
    assert speed(count, seconds, "episodes") == words


def test_a_terminal_has_a_bar_with_the_same_speed(clock):
    file = io.StringIO()
    console = Console(file=file, get_time=clock, force_terminal=True, width=120)
    with TerminalSteps(console).phase("recording", 4, "episodes") as advance:
        clock.now += 65.2
        advance(2)
    assert "32.6 s per episode" in file.getvalue()
    assert "in 65.2 s" not in file.getvalue()
