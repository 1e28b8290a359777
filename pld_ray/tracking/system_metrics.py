"""What the machine of the driver does: processor, memory, disk, GPUs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

INTERVAL_S = 10.0


class SystemMetrics:
    """Samples `system/...`, at most once in `interval_s` seconds and once at a step.

    MLflow shows metrics of this prefix on a page of their own. Percentages are of the whole
    machine; `system/process_memory_mb` is the driver's process alone. GPUs need `pynvml`.

    Args:
        folder: of the run, whose disk is measured.
        interval_s: see above.
    """

    def __init__(self, folder: str | os.PathLike[str], interval_s: float = INTERVAL_S) -> None:
        import psutil

        self._folder = os.fspath(folder)
        self._interval_s = interval_s
        self._next = 0.0
        self._step = -1
        self._process = psutil.Process(os.getpid())
        self._gpus = gpu_handles()
        psutil.cpu_percent()  # the share is of the time since the last call

    def sample(self, step: int) -> dict[str, float]:
        """Values by metric; empty when it is too early, or the step was sampled already."""
        now = time.monotonic()
        if now < self._next or step <= self._step:
            return {}
        self._next, self._step = now + self._interval_s, step
        import psutil

        memory = psutil.virtual_memory()
        values = {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_mb": memory.used / 1e6,
            "system/memory_percent": memory.percent,
            "system/process_memory_mb": self._process.memory_info().rss / 1e6,
        }
        with contextlib.suppress(OSError):  # a folder that is gone: no figure
            values["system/disk_percent"] = psutil.disk_usage(self._folder).percent
        for index, handle in enumerate(self._gpus):
            values |= gpu_figures(index, handle)
        return {name: round(float(value), 1) for name, value in values.items()}


def gpu_handles() -> list[Any]:
    """The GPUs that the NVIDIA driver shows; empty without the driver or its Python module."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # no module, no driver, no permission: no figures
        return []


def gpu_figures(index: int, handle: Any) -> dict[str, float]:
    """Load and memory of one GPU; empty when the driver does not answer."""
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        load = pynvml.nvmlDeviceGetUtilizationRates(handle)
    except pynvml.NVMLError:
        return {}
    return {
        f"system/gpu_{index}_percent": load.gpu,
        f"system/gpu_{index}_memory_mb": memory.used / 1e6,
    }
