"""Exceptions of ours travel between processes, and the user reads one sentence."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import pathlib
import pickle
import re

import pytest
import torch
from ray.exceptions import RayTaskError

import envs
import pld_ray
from pld_ray import cli
from pld_ray.algorithm.nonfinite import NonFiniteLossError
from pld_ray.errors import UserError, user_error
from pld_ray.tracking.logfile import close_logging, setup_logging

IGNORED = ("args", "kwargs")


def our_exceptions():
    """Every exception class of the two packages."""
    found = set()
    for package in (pld_ray, envs):
        root = pathlib.Path(package.__path__[0])
        for file in root.rglob("*.py"):
            if not re.search(r"^class \w+\(.*(Error|Exception)\b.*\):", file.read_text(), re.M):
                continue
            parts = file.relative_to(root.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts))
            for thing in vars(module).values():
                if isinstance(thing, type) and issubclass(thing, Exception):
                    found |= {thing} if thing.__module__ == module.__name__ else set()
    return found


def test_every_exception_of_ours_can_be_copied_and_a_users_is_made_from_its_message():
    classes = our_exceptions()
    assert {"ConfigError", "NonFiniteLossError", "StateFileError"} <= {c.__name__ for c in classes}
    for cls in classes:
        own = cls.__init__ not in (Exception.__init__, OSError.__init__)
        asked = inspect.signature(cls.__init__).parameters.values() if own else ()
        needed = [p for p in asked if p.default is p.empty and p.name not in ("self", *IGNORED)]
        assert not (issubclass(cls, UserError) and len(needed) > 1), cls
        error = cls(*["what went wrong, and the fix"] * max(1, len(needed)))
        for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert type(twin) is cls
            assert str(twin) == str(error)


def test_a_non_finite_loss_is_copied_whole():
    batch = {"reward": torch.tensor([1.0, torch.nan])}
    error = NonFiniteLossError.of("critic_loss", batch, 7)
    assert str(error) == "critic_loss is not finite at update 7; non-finite in the batch: reward"
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.name, twin.step) == (str(error), "critic_loss", 7)
    # what Ray makes of it: a class of both kinds, made from the message
    remote = RayTaskError("learn", "Traceback ...", error).as_instanceof_cause()
    assert isinstance(remote, NonFiniteLossError)


class AdviceError(UserError, RuntimeError):
    pass


@pytest.mark.parametrize("nested", [0, 1, 2])
def test_the_last_line_is_the_advice_also_from_another_process(nested, monkeypatch, capsys):
    error: Exception = AdviceError("a loss is not finite: lower the learning rate")
    for _ in range(nested):
        error = RayTaskError("learn", "Traceback (most recent call last) ...", error)
        error = error.as_instanceof_cause()

    def fail(args):
        raise error

    module = importlib.import_module("pld_ray.cli.train")
    monkeypatch.setattr(module, "run", fail)
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "pld-ray: a loss is not finite: lower the learning rate\n"


def test_what_is_no_mistake_of_the_user_keeps_its_traceback(monkeypatch):
    def fail(args):
        raise ZeroDivisionError("ours")

    module = importlib.import_module("pld_ray.cli.train")
    monkeypatch.setattr(module, "run", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])
    assert user_error(ZeroDivisionError()) is None
    assert user_error(None) is None


def test_the_traceback_of_a_mistake_is_in_the_log_alone(tmp_path, capsys):
    logger = setup_logging(tmp_path)
    try:
        for error in (AdviceError("lower it"), ZeroDivisionError("a bug")):
            try:
                raise error
            except Exception:
                logger.exception("the run failed")
        logger.log(logging.WARNING, "a warning")
    finally:
        close_logging()
    shown, kept = capsys.readouterr().err, (tmp_path / "train.log").read_text()
    assert "AdviceError: lower it" in kept
    assert "lower it" not in shown
    assert "ZeroDivisionError: a bug" in shown
    assert "WARNING: a warning" in shown
