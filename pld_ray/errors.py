"""What a user can mend: an error whose message says all, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """One sentence that names the file or the field, what is wrong with it, and the fix.

    It and every class derived from it can be made from the message alone: Ray, pickle and copy make
    an exception anew from its `args`.
    """


def user_error(error: BaseException | None) -> UserError | None:
    """The `UserError` in an exception: itself, or what a remote process raised (Ray's `cause`)."""
    found = None
    while error is not None:
        if isinstance(error, UserError):
            found = error
        error = getattr(error, "cause", None)
    return found
