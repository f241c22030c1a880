"""Results that are computed once for all readers, and kept for some seconds."""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar

__all__ = ["Fresh", "freeze_heap"]

T = TypeVar("T")

_NEW_OBJECTS = 50_000
"""How many more objects than were freed start a pass of the garbage collector: some megabytes."""


class Fresh:
    """Keeps results for a time. A hundred open pages then cost as much as one.

    Parameters
    ----------
    seconds
        How long a result is kept.
    size
        How many results are kept; the oldest one is dropped first.
    """

    def __init__(self, seconds: float = 4.0, *, size: int = 200) -> None:
        self._seconds, self._size = seconds, size
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the kept result of a key, or compute it. Of many callers at once, one computes."""
        with self._lock:
            mine = self._locks.setdefault(key, threading.Lock())
        with mine:
            at, value = self._kept.get(key, (float("-inf"), None))
            if time.monotonic() - at >= self._seconds:
                value = compute()
                with self._lock:
                    self._kept[key] = (time.monotonic(), value)
                    self._kept.move_to_end(key)
                    while len(self._kept) > self._size:
                        self._locks.pop(self._kept.popitem(last=False)[0], None)
            return value  # type: ignore[no-any-return]


@cache
def freeze_heap() -> None:
    """Leave what lives now out of the garbage collector's full passes, and have fewer passes; once in this process.

    With Airflow's modules loaded a full pass takes 0.2 s, and each fourth list of a hundred jobs waited for one. Such a
    list makes some ten thousand objects, which live until the next one. With a pass for each 700, Python's default, the
    passes took a seventh of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(gc.get_threshold()[0], _NEW_OBJECTS), 20, 20)
