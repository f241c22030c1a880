"""Write a batch's rows to a Delta table without Spark, in one commit under a transaction id.

delta-rs upserts 100,000 rows in a quarter of a second. Delta's MERGE takes three Spark jobs and about three seconds.
See docs/decisions/0039-batches-are-written-by-delta-rs.md.

Does not write every table. Constraints, defaults, generated or mapped columns and change feeds are Spark's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from streamwarden.errors import StreamwardenError

__all__ = ["DeltaWriter", "Finality", "UnfitTableError", "has_duplicates", "hindrance"]

_TRIES = 20
"""Maximum lost races. Each is another commit, such as by OPTIMIZE."""

_CHECKPOINT_EVERY = 10
"""Commits from one checkpoint of the log to the next, as by Spark; each batch opens the table anew."""

_FEATURES = frozenset({"appendOnly", "invariants"})
"""Features of tables that Spark creates by default. Both concern properties that a table of a job does not have."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnfitTableError(Exception):
    """delta-rs can't write this table as Spark would. Nothing was written."""


@dataclass(frozen=True)
class Finality:
    """Marks rows as final once the watermark has passed.

    Parameters
    ----------
    end
        The column with the time that must have passed.
    mark
        The boolean column that is set.
    """

    end: str
    mark: str


@dataclass
class DeltaWriter:
    """Writes one table for one transaction application.

    Parameters
    ----------
    address, options
        As delta-rs takes them; see :meth:`~streamwarden.store.workspace.Workspace.delta_rs`.
    keys
        The columns that identify a row; empty for a table that takes every row.
    application
        The transaction's application id.
    first_by
        Of an append's rows with equal keys, the first in this order stays. Empty: any.
    finality
        Which rows an upsert marks as final; None for a table without such a column.
    committed
        Called after a commit, with its version.
    """

    address: str
    options: Mapping[str, str] | None
    keys: Sequence[str]
    application: str
    first_by: Sequence[str] = ()
    finality: Finality | None = None
    committed: Callable[[int], None] = lambda _: None

    def append(self, rows: pa.Table, batch: int, *, author: str, guard: Callable[[], None]) -> int | None:
        """Append those rows whose keys are neither in the table nor repeated; return how many.

        Parameters
        ----------
        rows
            The rows, with the job's columns.
        batch
            The batch's id, the transaction's version.
        author
            ``userMetadata`` of the commit.
        guard
            Called before the commit, which only succeeds on top of the version that was read; raises if this driver
            may not write any more.

        Returns
        -------
        int or None
            None if the table already has this batch, or admits none of this application any more.

        Raises
        ------
        StreamwardenError
            ``DOCUMENT_CONFLICT`` if others commit all the time.
        UnfitTableError
            If the table needs Spark.
        """

        def commit(table: DeltaTable, properties: CommitProperties) -> int:
            new = self._new(table, rows) if self.keys else rows
            if new.num_rows:
                guard()
                write_deltalake(table, _aligned(new, table), mode="append", commit_properties=properties)
            return int(new.num_rows)

        return self._committed(commit, batch, author)

    def upsert(
        self,
        rows: pa.Table,
        batch: int,
        *,
        deleted: str,
        passed: tuple[int, int] | None,
        author: str,
        guard: Callable[[], None],
    ) -> int | None:
        """Update, insert and delete rows by their keys, and mark rows as final, in one commit; return how many.

        Parameters
        ----------
        rows
            The changed rows, at most one for a key, none with a null in a key.
        deleted
            The name of a boolean column of `rows` that marks rows to be deleted; it may be absent.
        passed
            Watermarks before and after, milliseconds since the epoch: rows whose end lies between are marked as final.
            The first is negative if the earlier one is unknown. None: mark no other rows.
        batch, author, guard
            See :meth:`append`.

        Returns
        -------
        int or None
            Rows inserted, updated or deleted; None as in :meth:`append`.

        Raises
        ------
        StreamwardenError
            ``DOCUMENT_CONFLICT`` if others commit all the time.
        UnfitTableError
            If the table needs Spark.
        """

        def commit(table: DeltaTable, properties: CommitProperties) -> int:
            changes = rows
            if passed is not None and self.finality is not None:
                changes = self._with_passed(table, rows, deleted, self.finality, *passed)
            if not changes.num_rows:
                return 0
            guard()
            return self._merge(table, changes, deleted, properties)

        return self._committed(commit, batch, author)

    def _open(self) -> DeltaTable:
        # Opened anew each time: an instance that is kept and updated grows by megabytes within hours.
        return DeltaTable(self.address, storage_options=dict(self.options) if self.options else None)

    def _committed(self, commit: Callable[[DeltaTable, CommitProperties], int], batch: int, author: str) -> int | None:
        for _ in range(_TRIES):
            table = self._open()
            reason = hindrance(table)
            if reason:
                raise UnfitTableError(reason)
            last = table.transaction_version(self.application)
            if last is not None and last >= batch:
                return None
            properties = CommitProperties(
                app_transactions=[Transaction(self.application, batch, round(time.time() * 1000))],
                custom_metadata={"userMetadata": author},
                # A commit on top of another version might be behind a fence; see formats/delta_fence.py.
                max_commit_retries=0,
            )
            version = table.version()
            try:
                done = commit(table, properties)
            except CommitFailedError:
                if self._open().version() == version:
                    raise
                continue
            if table.version() > version:
                self.committed(version + 1)
                if (version + 1) % _CHECKPOINT_EVERY == 0:
                    table.create_checkpoint()
            return done
        raise StreamwardenError("DOCUMENT_CONFLICT", f"{self.address}: {_TRIES} commits were lost to other writers")

    def _new(self, table: DeltaTable, rows: pa.Table) -> pa.Table:
        """Return the rows that the table does not have, the first of those with equal keys, in their order."""
        keys = list(self.keys)
        named = [*dict.fromkeys((*keys, *self.first_by))]
        frame = _frame(rows, named).with_row_index("_row")
        if self.first_by:
            # As in Spark's ascending order: nulls come first.
            frame = frame.sort([*self.first_by, "_row"], nulls_last=False)
        frame = frame.unique(keys, keep="first", maintain_order=True)
        known = _read(table, keys, _within(_bounds(rows, keys), nulls=rows))
        if len(known):
            frame = frame.join(known.unique(keys), on=keys, how="anti", nulls_equal=True)
        return rows.take(frame["_row"].sort().to_arrow())

    def _with_passed(
        self, table: DeltaTable, rows: pa.Table, deleted: str, final: Finality, before: int, after: int
    ) -> pa.Table:
        """Add the table's rows that the watermark has passed meanwhile, marked as final; changed rows stay."""
        conditions = [f'"{final.end}" <= {_timestamp(_moment(after))}']
        if before > 0:
            # Rows that the watermark passed earlier are already final: the bound lets delta-rs skip old files.
            conditions.append(f'"{final.end}" > {_timestamp(_moment(before))}')
        # A row that is older than the column has a null.
        conditions.append(f'("{final.mark}" IS NULL OR NOT "{final.mark}")')
        columns = [name for name in rows.column_names if name != deleted]
        reader = table.scan(columns=columns, predicate=" AND ".join(conditions))
        found = pa.table(reader).cast(rows.select(columns).schema)
        if found.num_rows and rows.num_rows:
            keys = list(self.keys)
            left = _frame(found, keys).with_row_index("_row")
            left = left.join(_frame(rows, keys), on=keys, how="anti", nulls_equal=True)
            found = found.take(left["_row"].to_arrow())
        if not found.num_rows:
            return rows
        at = found.schema.get_field_index(final.mark)
        found = found.set_column(at, found.schema.field(at), pa.repeat(pa.scalar(True), found.num_rows))
        if deleted in rows.column_names:
            found = found.append_column(rows.schema.field(deleted), pa.repeat(pa.scalar(False), found.num_rows))
        return pa.concat_tables([rows, found.select(rows.column_names)])

    def _merge(self, table: DeltaTable, changes: pa.Table, deleted: str, properties: CommitProperties) -> int:
        conditions = [f't."{key}" = s."{key}"' for key in self.keys]
        bounds = _within(_bounds(changes, self.keys), prefix="t.")
        values = {f'"{name}"': f's."{name}"' for name in changes.column_names if name != deleted}
        merge = table.merge(
            changes,
            " AND ".join([*conditions, *bounds]),
            source_alias="s",
            target_alias="t",
            # The rows are in memory; with streaming, delta-rs would not use their bounds to skip files.
            streamed_exec=False,
            commit_properties=properties,
        )
        if deleted in changes.column_names:
            merge = merge.when_matched_delete(f's."{deleted}"').when_matched_update(values)
            merge = merge.when_not_matched_insert(values, predicate=f'NOT s."{deleted}"')
        else:
            merge = merge.when_matched_update(values).when_not_matched_insert(values)
        done = merge.execute()
        return sum(int(done[f"num_target_rows_{what}"]) for what in ("inserted", "updated", "deleted"))


def has_duplicates(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Return whether two rows have equal keys; nulls are equal."""
    return bool(_frame(rows, keys).is_duplicated().any())


def _bounds(rows: pa.Table, keys: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of each key that is a moment, a date or an integer, unless all are null."""
    found = {}
    for key in keys:
        kind = rows.schema.field(key).type
        if not ((pa.types.is_timestamp(kind) and kind.tz) or pa.types.is_date(kind) or pa.types.is_integer(kind)):
            continue
        least = pc.min_max(rows[key]).as_py()
        if least["min"] is not None:
            found[key] = (least["min"], least["max"])
    return found


def hindrance(table: DeltaTable) -> str | None:
    """Return why delta-rs can't write a table as Spark would; None if it can."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    foreign = sorted(features - _FEATURES)
    if foreign:
        return f"it has {', '.join(foreign)}"
    if not features and protocol.min_writer_version > 2:
        return f"its protocol is version {protocol.min_writer_version}"
    schema = table.schema().to_json()
    if '"nullable":false' in schema.replace(" ", "") or "delta.invariants" in schema:
        return "it has a column that takes no nulls, or an invariant"
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        return "it is append-only"
    return None


def _within(bounds: Mapping[str, tuple[Any, Any]], *, prefix: str = "", nulls: pa.Table | None = None) -> list[str]:
    """Return conditions that every row with keys within the bounds meets, by which delta-rs skips files."""
    conditions = []
    for key, (least, greatest) in bounds.items():
        column = f'{prefix}"{key}"'
        condition = f"{column} >= {_literal(least)} AND {column} <= {_literal(greatest)}"
        if nulls is not None and nulls[key].null_count:
            condition = f"({condition} OR {column} IS NULL)"
        conditions.append(condition)
    return conditions


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return f"CAST('{value.isoformat()}' AS DATE)"
    return str(value)


def _timestamp(moment: datetime) -> str:
    # Not as text: delta-rs parses it to nanoseconds, which begin in 1677 and end in 2262.
    return f"arrow_cast({(moment - _EPOCH) // timedelta(microseconds=1)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _read(table: DeltaTable, columns: Sequence[str], conditions: Sequence[str]) -> pl.DataFrame:
    reader = table.scan(columns=list(columns), predicate=" AND ".join(conditions) or None)
    found = pl.from_arrow(pa.table(reader))
    assert isinstance(found, pl.DataFrame)
    return found


def _frame(rows: pa.Table, columns: Sequence[str]) -> pl.DataFrame:
    found = pl.from_arrow(rows.select(list(columns)))
    assert isinstance(found, pl.DataFrame)
    return found


def _aligned(rows: pa.Table, table: DeltaTable) -> pa.Table:
    """Return the rows with the table's columns and types; columns that are not the job's are null."""
    schema = pa.schema(table.schema())
    there = set(rows.column_names)
    columns = [
        rows[one.name].cast(one.type) if one.name in there else pa.nulls(rows.num_rows, one.type) for one in schema
    ]
    return pa.table(columns, schema=schema)
