"""A Delta table that many processes append to, without Spark: opened, created, repeated and kept small.

Only delta-rs writes it. Appends do not conflict: of two concurrent appends, one commits after the other. On S3 this
requires conditional PUT, as the control documents do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.formats.published_log import NOTHING, PublishedLog
from streamwarden.model.record import utc_now
from streamwarden.store.workspace import Workspace

__all__ = ["AppendedTable", "milliseconds", "schema_of"]

T = TypeVar("T")

_PROPERTIES = {
    # Files are chosen by nothing else, and what a log has to say of thirty columns takes a reader three times as long.
    "delta.dataSkippingStatsColumns": "at",
    # Nobody uses time travel on such a table, and it has thousands of commits a day.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    # Otherwise the table would remember every writer forever.
    "delta.setTransactionRetentionDuration": "interval 30 days",
}
_UPKEEP = "streamwarden/upkeep"
_JOINED = "streamwarden/joined"
_HOUR_BYTES = 1_000_000
"""The size up to which files are joined each hour: a day of a job's batches. Larger ones wait for the day's upkeep, so
that an hour rewrites little."""
_WRITTEN = WriterProperties(max_row_group_size=10_000, compression="ZSTD")
"""A reader of the newest rows leaves older row groups out. 10,000 rows: a week of a job with a batch a minute."""
_TRIES = 10


def schema_of(columns: dict[str, tuple[pa.DataType, str]], required: str) -> pa.Schema:
    """Return the schema of columns that are given with their meaning.

    Parameters
    ----------
    required
        The column that is never null.
    """
    return pa.schema(
        [
            pa.field(name, kind, nullable=name != required, metadata={"comment": text})
            for name, (kind, text) in columns.items()
        ]
    )


class AppendedTable:
    """The table of one place. A subclass says which.

    Parameters
    ----------
    workspace
        The workspace of the place.
    """

    table: ClassVar[str]
    """Its name."""
    schema: ClassVar[pa.Schema]
    partition: ClassVar[str]
    """The column by which it is partitioned."""
    description: ClassVar[str]
    failed: ClassVar[ErrorCode]
    """The code of its errors."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._uri, self._options = workspace.delta_rs(self.table)

    def upkeep(self, keep: timedelta, *, now: datetime | None = None) -> dict[str, int]:
        """Join small files, at most once an hour; once a day (UTC) join all, delete old rows and remove obsolete files.

        A reader opens all files of a job and of a time: a hundred jobs write thousands in an hour. Concurrent calls
        are allowed: a call skips what another has done.

        Parameters
        ----------
        keep
            Rows older than this are deleted, by the column ``at``.
        now
            The current time; default the real time.

        Returns
        -------
        dict
            ``rows_deleted``, ``files_joined`` and ``files_removed``; empty if there was nothing to do.

        Raises
        ------
        StreamwardenError
            The table's code.
        """
        at = now or utc_now()
        return self._tried(lambda: self._upkeep(at, at - keep))

    def _tried(self, work: Callable[[], T]) -> T:
        for number in range(1, _TRIES + 1):
            try:
                return work()
            except StreamwardenError:
                raise
            except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
                if number == _TRIES or not isinstance(error, CommitFailedError):
                    raise StreamwardenError(self.failed, f"{self._uri}: {error}") from error
        raise AssertionError

    def _open(self, *, make: bool) -> DeltaTable | None:
        """Return the table's newest version, or None if there is no table and `make` is false."""
        # Opened anew each time: an instance that is kept and updated grows by megabytes within hours.
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            if not make:
                return None
        # Another process may have just created it; if the cause is another, the next line raises it.
        with suppress(DeltaError):
            DeltaTable.create(
                self._uri,
                self.schema,
                partition_by=[self.partition],
                configuration=_PROPERTIES,
                description=self.description,
                storage_options=self._options,
            )
        return DeltaTable(self._uri, storage_options=self._options)

    def _upkeep(self, now: datetime, before: datetime) -> dict[str, int]:
        table = self._open(make=False)
        day, hour = now.astimezone(UTC).toordinal(), int(now.timestamp()) // 3600
        if table is None:
            return {}
        if (table.transaction_version(_UPKEEP) or 0) >= day:
            if (table.transaction_version(_JOINED) or 0) >= hour:
                return {}
            joined = table.optimize.compact(target_size=_HOUR_BYTES, writer_properties=_WRITTEN)
            self._note(table, {_JOINED: hour}, now)
            return {"files_joined": int(joined["numFilesRemoved"])} if joined["numFilesRemoved"] else {}
        held = self._is_held(table.version())
        old = before.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        deleted = table.delete(f"at < '{old}'")
        joined = table.optimize.compact(writer_properties=_WRITTEN)
        removed = (
            [] if held else table.vacuum(retention_hours=24, enforce_retention_duration=False, dry_run=False, full=True)
        )
        self._note(table, {_UPKEEP: day, _JOINED: hour}, now)
        done = {
            "rows_deleted": int(deleted["num_deleted_rows"] or 0),
            "files_joined": int(joined["numFilesRemoved"]),
            "files_removed": len(removed),
        }
        return done if any(done.values()) else {}

    def _note(self, table: DeltaTable, done: dict[str, int], now: datetime) -> None:
        # Last, so that interrupted work is repeated. A separate commit: delta-rs's own commits accept no transaction.
        transactions = [Transaction(name, version, milliseconds(now)) for name, version in done.items()]
        noted = CommitProperties(app_transactions=transactions)
        table.create_write_transaction([], "append", table.schema(), [self.partition], commit_properties=noted)

    def _is_held(self, version: int) -> bool:
        """Return whether readers of published versions still need files that the table has removed."""
        published = PublishedLog(self._workspace, self.table).at()
        return published != NOTHING and published.content < version


def milliseconds(at: datetime) -> int:
    """Return a moment in milliseconds since the epoch."""
    return round(at.timestamp() * 1000)
