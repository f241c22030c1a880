"""A serving store in a SQLite file: nothing to install or run, for readers on the driver's machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.serving.store import Entry, Position, Served, ServingStore, StoreMoved, served

__all__ = ["SqliteStore"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS served (
    key TEXT PRIMARY KEY, value TEXT, epoch INTEGER NOT NULL, generation INTEGER NOT NULL, batch INTEGER NOT NULL,
    watermark_ms INTEGER NOT NULL, expires_ms INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, generation INTEGER NOT NULL,
    batch INTEGER NOT NULL, complete INTEGER NOT NULL
);
"""

_UPSERT = """
INSERT INTO served VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    value = excluded.value, epoch = excluded.epoch, generation = excluded.generation, batch = excluded.batch,
    watermark_ms = excluded.watermark_ms, expires_ms = excluded.expires_ms
WHERE (excluded.epoch, excluded.batch) >= (served.epoch, served.batch)
"""

_WAIT_S = 30.0
"""How long a writer waits for another one's transaction: a driver that lost its lease may be within one."""


class SqliteStore(ServingStore):
    """A file in write-ahead mode: readers never wait for the writer.

    Parameters
    ----------
    path
        The file. Made by a writer if it does not exist.
    expire_after
        How long a value can be read; None for ever.
    writes
        False to read only; then the file must exist.
    """

    def __init__(self, path: Path, expire_after: timedelta | None, *, writes: bool) -> None:
        self._path = path
        self._expire_ms = None if expire_after is None else expire_after // timedelta(milliseconds=1)
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
        mode = "rwc" if writes else "ro"
        with self._errors():
            # The driver opens it in one thread and writes in Spark's; it never does both at once.
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            if writes:
                self._db.execute("PRAGMA journal_mode = WAL")
                # A power failure may lose the newest batches, and never harms the file. The position shows the loss.
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.executescript(_SCHEMA)

    @override
    def position(self) -> Position | None:
        with self._errors():
            return self._position()

    @override
    def begin(self, position: Position) -> None:
        with self._transaction():
            found = self._position()
            if found is not None and found.epoch > position.epoch:
                raise StoreMoved(f"it has epoch {found.epoch}")
            self._put(position)

    @override
    def write(
        self, entries: Iterable[Entry], after: Position, position: Position, *, watermark_ms: int, now_ms: int
    ) -> int:
        expires = None if self._expire_ms is None else now_ms + self._expire_ms
        rest = (position.epoch, position.generation, position.batch, watermark_ms, expires)
        with self._transaction():
            found = self._position()
            if found != after:
                raise StoreMoved(f"it is at {found}, not at {after}")
            changed = self._db.total_changes
            self._db.executemany(_UPSERT, ((one.key, one.value, *rest) for one in entries))
            accepted = self._db.total_changes - changed
            self._put(position)
        return accepted

    @override
    def drop_older(self, position: Position) -> int:
        with self._transaction():
            older = (position.epoch, position.batch)
            return self._db.execute("DELETE FROM served WHERE (epoch, batch) < (?, ?)", older).rowcount

    @override
    def get(self, key: str, *, now_ms: int) -> Served | None:
        with self._errors():
            row = self._db.execute(
                "SELECT value, generation, batch, watermark_ms FROM served WHERE key = ? AND value IS NOT NULL"
                " AND (expires_ms IS NULL OR expires_ms > ?)",
                (key, now_ms),
            ).fetchone()
        return None if row is None else served(*row)

    @override
    def clear(self) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM served")
            self._db.execute("DELETE FROM position")

    @override
    def close(self) -> None:
        self._db.close()

    def _position(self) -> Position | None:
        row = self._db.execute("SELECT epoch, generation, batch, complete FROM position").fetchone()
        return None if row is None else Position(row[0], row[1], row[2], bool(row[3]))

    def _put(self, position: Position) -> None:
        values = (position.epoch, position.generation, position.batch, int(position.complete))
        self._db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?, ?)", values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Take the write lock at the start: a check and its write belong together."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # On a full disk, SQLite has rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StreamwardenError("SERVING_UNREACHABLE", f"{self._path}: {error}") from error
