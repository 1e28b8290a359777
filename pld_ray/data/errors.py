"""What is wrong with data that a user handed in."""

from __future__ import annotations

from pld_ray.errors import UserError


class DataError(UserError, ValueError):
    """A file, a dataset or an option cannot be used; the message names it and the fix."""


class BadEpisode(DataError):
    """One source file cannot be converted; others may."""
