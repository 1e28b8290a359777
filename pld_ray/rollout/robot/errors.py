"""What is said of an arm that cannot be used."""

from __future__ import annotations

from pld_ray.errors import UserError


class ArmError(UserError, RuntimeError):
    """The arm cannot be used; the message says why."""
