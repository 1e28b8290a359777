"""Passwords do not belong into addresses: those are printed, stored and sent to MLflow."""

from __future__ import annotations

import re

from pld_ray.errors import UserError

PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")


class PasswordError(UserError, ValueError):
    """An address holds a password; the message does not."""


def refuse_password(text: str | None, where: str) -> None:
    """Raise PasswordError if an address holds one.

    Args:
        text: an address, or a flag with one.
        where: the name of the field or the flag.
    """
    if text is not None and PASSWORD.search(text):
        raise PasswordError(
            f"{where} holds a password, which would be printed and stored: take user and password "
            "out of it and set them in the environment, MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD for an MLflow server, PGUSER and PGPASSWORD for PostgreSQL"
        )
