"""What another user keeps to himself, in words."""

from __future__ import annotations

import pathlib
import stat


def who_may_read(path: pathlib.Path) -> str:
    """Whose the file is that may not be read, or the folder that hides it, and who can open it."""
    for found in (path, *path.parents):
        try:
            about = found.stat()
        except OSError:  # within a folder that may not be entered
            continue
        try:
            owner = found.owner()
        except KeyError:  # of another machine
            owner = f"user {about.st_uid}"
        return (
            f"{found} is {owner}'s ({stat.filemode(about.st_mode)}); let {owner} run "
            f"`chmod -R a+rX {found}`"
        )
    return f"{path} is another user's"
