"""Imported once by the fork server, so that the environments' processes need not."""

import contextlib
import sys

with contextlib.suppress(ImportError):  # without the simulator other environments still work
    from envs.bootstrap import import_libero

    import_libero()
    import envs.fast_step
    import envs.libero  # noqa: F401

if "ray" not in sys.modules:  # what a Ray worker's main module would import in every process
    with contextlib.suppress(ImportError):
        import ray._private.workers.default_worker  # noqa: F401
