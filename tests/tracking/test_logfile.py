"""The log file of a run."""

from __future__ import annotations

import logging
import re

import pytest

from pld_ray.tracking.logfile import close_logging, setup_logging


@pytest.fixture(autouse=True)
def restore():
    yield
    close_logging()


def test_everything_to_the_file_and_warnings_to_the_console(tmp_path, capsys):
    logger = setup_logging(tmp_path / "run")
    assert logger is logging.getLogger("pld_ray")
    logging.getLogger("pld_ray.rollout").info("runner started")
    logger.warning("runner lost")
    lines = (tmp_path / "run" / "train.log").read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    assert re.fullmatch(stamp + r"INFO    pld_ray\.rollout: runner started", lines[0])
    assert re.fullmatch(stamp + r"WARNING pld_ray: runner lost", lines[1])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "WARNING: runner lost\n"


def test_a_full_disk_is_told_by_the_run_alone(tmp_path, capsys):
    (tmp_path / "train.log").symlink_to("/dev/full")
    setup_logging(tmp_path).info("runner started")
    close_logging()
    assert capsys.readouterr().err == ""


def test_resume_appends_and_lines_are_not_doubled(tmp_path):
    for line in ("first", "second"):
        setup_logging(tmp_path).info(line)
    text = (tmp_path / "train.log").read_text()
    assert [line.split(": ")[1] for line in text.splitlines()] == ["first", "second"]


def test_another_run_of_the_process_has_its_own_file(tmp_path):
    setup_logging(tmp_path / "a").info("of a")
    setup_logging(tmp_path / "b").info("of b")
    assert "of b" not in (tmp_path / "a" / "train.log").read_text()
    assert "of b" in (tmp_path / "b" / "train.log").read_text()


def test_closing_gives_the_logger_back(tmp_path, caplog):
    logger = setup_logging(tmp_path)
    close_logging()
    assert logger.handlers == []
    assert logger.propagate
    logger.warning("seen by the root logger")
    assert "seen by the root logger" in caplog.text
