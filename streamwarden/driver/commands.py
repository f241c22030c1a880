"""The commands of whoever started this process: one at a time, and their end is seen also while one is performed."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

__all__ = ["Commands"]


class Commands:
    """A JSON object a line, read by a thread.

    The loop over them ends with the stream, if that ends between two of them. They are not answered here.

    Parameters
    ----------
    stream
        Ends when whoever writes to it has gone, however that came about.
    last
        What the last one asks to ``do``. Nothing is read after it, and the stream's end means nothing any more.
    abandoned
        Called, by that thread, when the stream ends before a command is performed: nobody waits for its answer, and it
        may take an hour.
    """

    def __init__(self, stream: IO[str], *, last: str, abandoned: Callable[[], None]) -> None:
        self._stream = stream
        self._last = last
        self._abandoned = abandoned
        self._read: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._open = 0
        """Read, and not performed yet."""
        threading.Thread(target=self._read_all, name="commands", daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return each as it comes."""
        while (command := self._read.get()) is not None:
            yield command

    def performed(self) -> None:
        """Say that one was performed."""
        with self._lock:
            self._open -= 1

    def _read_all(self) -> None:
        for line in self._stream:
            command = json.loads(line)
            with self._lock:
                self._open += 1
            self._read.put(command)
            if command["do"] == self._last:
                return
        with self._lock:
            performs = self._open > 0
        if performs:
            self._abandoned()
        self._read.put(None)
