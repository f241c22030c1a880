"""The landing folder: files appear in it whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamwarden.errors import StreamwardenError
from streamwarden.storage import LocalStorage

__all__ = ["LandingFolder"]

# Spark's file source passes over names that begin with a dot.
_HIDDEN = ".replay"
_MILLISECOND = 1_000_000


class LandingFolder:
    """A local landing folder. Another kind (S3) would be another class with these methods.

    A file comes in two steps, so that a replay that dies between them knows which one it did: :meth:`prepare` writes
    it in a hidden place, :meth:`land` moves it out by one rename.

    Parameters
    ----------
    path
        The folder. Made when needed. What consumers do with landed files, deleting them included, does not matter;
        its hidden ``.replay`` belongs to the replay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = LocalStorage(path / _HIDDEN)
        self._last_modified = 0

    def prepare(self, name: str, trips: pa.Table) -> None:
        """Write a file completely, where no consumer sees it. One that is there already is replaced."""
        hidden = self._hidden(name)
        hidden.parent.mkdir(parents=True, exist_ok=True)
        with hidden.open("wb") as stream:
            pq.write_table(trips, stream)
            stream.flush()
            # Without it a power cut can leave an empty file under the final name.
            os.fsync(stream.fileno())

    def is_prepared(self, name: str) -> bool:
        """Tell whether the file waits for :meth:`land`. Only of a file whose :meth:`prepare` is known to have ended."""
        return self._hidden(name).exists()

    def land(self, name: str) -> None:
        """Let a prepared file appear, with a modification time after those of all files before it."""
        hidden = self._hidden(name)
        # Spark takes files by modification time in milliseconds; two of the same one would have no order.
        modified = max(time.time_ns() // _MILLISECOND, self._last_modified + 1)
        os.utime(hidden, ns=(modified * _MILLISECOND, modified * _MILLISECOND))
        hidden.replace(self.path / name)
        self._last_modified = modified

    def landed(self) -> list[str]:
        """Return the names of the Parquet files that are there now, sorted."""
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.glob("*.parquet") if not path.name.startswith("."))

    def clear_prepared(self) -> None:
        """Remove what was prepared and never landed."""
        for hidden in (self.path / _HIDDEN).glob(".*.parquet"):
            hidden.unlink(missing_ok=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the folder for one replay. The kernel lets go of it when a process dies.

        Raises
        ------
        StreamwardenError
            ``REPLAY_RUNNING``: another replay holds it.
        """
        path = self.path / _HIDDEN / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = path.read_text(encoding="utf-8").strip() or "unknown"
                raise StreamwardenError("REPLAY_RUNNING", f"{self.path} is fed by process {holder}") from error
            stream.truncate(0)
            stream.write(str(os.getpid()).encode())
            stream.flush()
            # Also after the clock was set back, or after a replay that landed files faster than one a millisecond.
            times = [self._modified(name) for name in self.landed()]
            self._last_modified = max([0, *times])
            yield

    def _hidden(self, name: str) -> Path:
        return self.path / _HIDDEN / f".{name}"

    def _modified(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_mtime_ns // _MILLISECOND
        except FileNotFoundError:
            # A consumer took it meanwhile.
            return 0
