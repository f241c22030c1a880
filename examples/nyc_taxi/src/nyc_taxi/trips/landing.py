"""The landing folder, in which files appear atomically."""

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

# Spark's file source ignores names that begin with a dot.
_HIDDEN = ".replay"
_MILLISECOND = 1_000_000


class LandingFolder:
    """A local landing folder. Another kind (S3) would be a class with the same methods.

    A file lands in two steps, so that a replay can tell after a crash which step it reached: :meth:`prepare` writes a
    hidden file, :meth:`land` moves it by one rename.

    Parameters
    ----------
    path
        The folder. Created when needed. Consumers may do anything with landed files, even delete them; the hidden
        ``.replay`` belongs to the replay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = LocalStorage(path / _HIDDEN)
        self._last_modified = 0

    def prepare(self, name: str, trips: pa.Table) -> None:
        """Write a complete hidden file. Replaces an existing one."""
        hidden = self._hidden(name)
        hidden.parent.mkdir(parents=True, exist_ok=True)
        with hidden.open("wb") as stream:
            pq.write_table(trips, stream)
            stream.flush()
            # Without the sync a power cut can leave an empty file under the final name.
            os.fsync(stream.fileno())

    def is_prepared(self, name: str) -> bool:
        """Return whether the file waits for :meth:`land`. Valid only after :meth:`prepare` has returned for it."""
        return self._hidden(name).exists()

    def land(self, name: str) -> None:
        """Move a prepared file into the folder, with a later modification time than all earlier files."""
        hidden = self._hidden(name)
        # Spark orders files by modification time in milliseconds; equal times would have no order.
        modified = max(time.time_ns() // _MILLISECOND, self._last_modified + 1)
        os.utime(hidden, ns=(modified * _MILLISECOND, modified * _MILLISECOND))
        hidden.replace(self.path / name)
        self._last_modified = modified

    def landed(self) -> list[str]:
        """Return the names of the current Parquet files, sorted."""
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.glob("*.parquet") if not path.name.startswith("."))

    def clear_prepared(self) -> None:
        """Remove prepared files that never landed."""
        for hidden in (self.path / _HIDDEN).glob(".*.parquet"):
            hidden.unlink(missing_ok=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the folder for one replay. The kernel releases the lock when the process dies.

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
            # Also if the clock was set back, or an earlier replay landed more than one file a millisecond.
            times = [self._modified(name) for name in self.landed()]
            self._last_modified = max([0, *times])
            yield

    def _hidden(self, name: str) -> Path:
        return self.path / _HIDDEN / f".{name}"

    def _modified(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_mtime_ns // _MILLISECOND
        except FileNotFoundError:
            # A consumer removed it.
            return 0
