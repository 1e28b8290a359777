"""`pld-ray`: one file a command, imported when it is called."""

from pld_ray.cli.entry import main

__all__ = ["main"]
