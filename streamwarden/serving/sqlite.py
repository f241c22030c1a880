"""A serving store in a SQLite file: nothing to install or run, for readers on the driver's machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from typing_extensions import override

from streamwarden.serving.store import Entry, Position, Served, ServingStore, served

__all__ = ["SqliteStore"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS served (
    key TEXT PRIMARY KEY, value TEXT, generation INTEGER NOT NULL, batch INTEGER NOT NULL,
    watermark_ms INTEGER NOT NULL, expires_ms INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), generation INTEGER NOT NULL, batch INTEGER NOT NULL,
    complete INTEGER NOT NULL
);
"""

_UPSERT = """
INSERT INTO served VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    value = excluded.value, generation = excluded.generation, batch = excluded.batch,
    watermark_ms = excluded.watermark_ms, expires_ms = excluded.expires_ms
WHERE (excluded.generation, excluded.batch) >= (served.generation, served.batch)
"""

_WAIT_S = 30.0
"""How long a writer waits for another one's transaction: a driver that lost its lease may be in the midst of one."""


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
        self._expire_ms = None if expire_after is None else expire_after // timedelta(milliseconds=1)
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
        mode = "rwc" if writes else "ro"
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
        row = self._db.execute("SELECT generation, batch, complete FROM position").fetchone()
        return None if row is None else Position(row[0], row[1], bool(row[2]))

    @override
    def begin(self, position: Position) -> None:
        with self._transaction():
            self._put(position)

    @override
    def write(self, entries: Iterable[Entry], position: Position, *, watermark_ms: int, now_ms: int) -> int:
        expires = None if self._expire_ms is None else now_ms + self._expire_ms
        rest = (position.generation, position.batch, watermark_ms, expires)
        with self._transaction():
            found = self.position()
            if found is not None and found.generation > position.generation:
                return 0
            changed = self._db.total_changes
            self._db.executemany(_UPSERT, ((one.key, one.value, *rest) for one in entries))
            accepted = self._db.total_changes - changed
            if found is None or (found.generation, found.batch) <= (position.generation, position.batch):
                self._put(position)
        return accepted

    @override
    def drop_older(self, generation: int) -> int:
        with self._transaction():
            return self._db.execute("DELETE FROM served WHERE generation < ?", (generation,)).rowcount

    @override
    def get(self, key: str, *, now_ms: int) -> Served | None:
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

    def _put(self, position: Position) -> None:
        values = (position.generation, position.batch, int(position.complete))
        self._db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?)", values)

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """A transaction that takes the write lock at its start: a check and its write belong together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
