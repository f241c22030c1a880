"""The resident memory of a driver's processes."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from streamwarden.spark.cluster_mode import parent_jvm

__all__ = ["ProcessMemory"]


class ProcessMemory:
    """Adds up the memory of this process, its JVM and its Python workers.

    Executors on other machines are not included. A page that processes share counts once for each.

    Parameters
    ----------
    every
        Seconds for which a value is kept. Each reading looks at all processes of the machine: 5 ms for a hundred. A job
        with small batches has one each second.
    """

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._read_at = float("-inf")
        self._value: int | None = None

    def __call__(self) -> int | None:
        """Return the memory in bytes; None if it can't be read."""
        now = time.monotonic()
        if now - self._read_at >= self._every:
            self._read_at = now
            self._value = _resident()
        return self._value


def _resident() -> int | None:
    try:
        # In cluster mode, the JVM has started this process.
        this = parent_jvm() or psutil.Process()
        total = int(this.memory_info().rss)
        for child in this.children(recursive=True):
            # It may just have ended.
            with suppress(psutil.NoSuchProcess):
                total += int(child.memory_info().rss)
    except (psutil.Error, OSError):
        return None
    return total
