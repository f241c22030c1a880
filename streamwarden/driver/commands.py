"""Commands from the parent process: performed one at a time, while the end of their stream is still detected."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

__all__ = ["Commands"]


class Commands:
    """An iterator over commands, one JSON object per line, read by a thread.

    The loop ends with the stream, if the stream ends between two commands. The caller sends the answers.

    Parameters
    ----------
    stream
        It ends when its writer is gone, for whatever reason.
    last
        The ``do`` of the last command. Nothing is read after it, and the stream's end is then ignored.
    abandoned
        Called by the thread if the stream ends while a command is performed: nobody waits for its answer, and it
        may take an hour.
    """

    def __init__(self, stream: IO[str], *, last: str, abandoned: Callable[[], None]) -> None:
        self._stream = stream
        self._last = last
        self._abandoned = abandoned
        self._read: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._open = 0
        """Number of commands that were read and are not yet performed."""
        threading.Thread(target=self._read_all, name="commands", daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each command as it arrives."""
        while (command := self._read.get()) is not None:
            yield command

    def performed(self) -> None:
        """Record that a command was performed."""
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
