"""Write batches to Delta so that each row is there exactly once, whatever process is killed at any time."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streamwarden.driver.job_api import DELETED
from streamwarden.driver.pipeline.output_table import ensure_table
from streamwarden.driver.pipeline.outputs import AUTHOR
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_writer import DeltaWriter, Finality, UnfitTableError, has_duplicates
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import SinkSpec

__all__ = ["Arrived", "DeltaSink", "Measured", "Written"]

_log = logging.getLogger(__name__)

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"

_FEW_ROWS = 50_000
"""Up to this many keys, a single task counts them: a shuffle takes longer."""

# Convert to an integer and back. PySpark collects a timestamp as a naive datetime in the process's time zone. In the
# repeated hour at the end of daylight saving it is ambiguous, and as a literal it becomes either of the two moments.
_AS_INTEGER: dict[type[DataType], tuple[Callable[[Column], Column], Callable[[Column], Column]]] = {
    TimestampType: (F.unix_micros, F.timestamp_micros),
    DateType: (F.unix_date, F.date_from_unix_date),
}


@dataclass(frozen=True)
class Written:
    """The effect of a batch on a table.

    Parameters
    ----------
    arrived
        Rows from the job.
    rows
        Rows inserted, updated or deleted.
    duplicates
        Rows dropped because the table already had them.
    """

    arrived: int
    rows: int
    duplicates: int = 0


@dataclass(frozen=True)
class Measured:
    """The number of rows, the keys with nulls, and the bounds of the timestamps among the keys.

    Bounds are integers, as :data:`_AS_INTEGER` makes them.
    """

    rows: int
    bounds: Mapping[str, tuple[int | None, int | None]]
    kinds: Mapping[str, type[DataType]]
    nulls: frozenset[str]

    def within(self, prefix: str = "") -> Column:
        """Return a condition on the table that every row of these keys meets, by which Delta can skip files."""
        conditions = [F.lit(True)]
        for key, (low, high) in self.bounds.items():
            column = F.col(f"{prefix}{key}")
            _, back = _AS_INTEGER[self.kinds[key]]
            inside = column.between(back(F.lit(low)), back(F.lit(high))) if low is not None else F.lit(False)
            conditions.append(inside | column.isNull() if key in self.nulls else inside)
        return _all(conditions)


@dataclass(frozen=True)
class Arrived:
    """A batch's rows for one table.

    Parameters
    ----------
    frame
        The rows, from a kept DataFrame, since they may be read more than once.
    rows
        Their number.
    table
        The same rows in this process; None if there are too many, or if only Spark can write them.
    measured
        Their measures, if they are already known.
    """

    frame: DataFrame
    rows: int
    table: pa.Table | None = None
    measured: Measured | None = None


class DeltaSink:
    """One output table of a job.

    A batch that fits into this process is written by delta-rs, a larger one by Spark. The table is the same.

    Each commit carries the transaction id (application, batch): Delta skips a batch that it has seen. The application
    id contains the job's generation, because after a restore the same batch ids hold other rows.

    Parameters
    ----------
    session
        Any session of the JVM, for the preparation.
    path
        The table's folder.
    spec
        The sink's spec.
    schema
        The columns that the job declares for it.
    application
        The transaction's application id.
    place
        The table's address and storage options for delta-rs; default the path.
    committed
        Called after a commit by delta-rs, with its version.
    released
        Whether columns that another version of the job added are nobody's: the job was rolled back from that version.
    guard
        Called before an existing table gets new columns; raises if this driver may not write any more.

    Raises
    ------
    StreamwardenError
        ``SINK_SCHEMA_MISMATCH``.
    """

    def __init__(
        self,
        session: SparkSession,
        path: str,
        spec: SinkSpec,
        schema: StructType,
        application: str,
        *,
        place: tuple[str, Mapping[str, str] | None] | None = None,
        committed: Callable[[int], None] = lambda _: None,
        released: bool = False,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._spec = spec
        self._application = application
        own = [column for column in schema.fields if column.name != IS_FINAL]
        final = [StructField(IS_FINAL, BooleanType())] if spec.final_when_passed else []
        self._columns = StructType([*own, *final])
        kinds = {key: type(self._columns[key].dataType) for key in spec.keys}
        self._timed = {key: kind for key, kind in kinds.items() if kind in _AS_INTEGER}
        self._finalised_ms = -1
        end = spec.final_when_passed
        self._writer = DeltaWriter(
            *(place or (path, None)),
            keys=spec.keys,
            first_by=spec.first_by,
            application=application,
            finality=Finality(end, IS_FINAL) if end else None,
            committed=committed,
        )
        self._by_spark = _needs_spark(self._columns, spec.keys)
        self._columns_of_source: dict[str, str | Column] = {}
        self.notes = ensure_table(
            session,
            path,
            spec.table,
            self._columns,
            partition_by=spec.partition_by,
            upserted=spec.mode == "upsert",
            released=released,
            guard=guard,
        )
        """Notes about the table's columns, for a person."""

    def arrived(self, batch: DataFrame, *, small: bool, found: Mapping[str, Any] | None = None) -> Arrived:
        """Collect a batch's rows for this table, or measure them.

        Reads all rows, even of a batch that turns out empty: its state must be computed to be committed.

        Parameters
        ----------
        batch
            The rows, from a kept DataFrame.
        small
            Whether they fit into this process.
        found
            The values of :meth:`measures` over them, if they are already known.
        """
        measured = self.measured(batch, found) if found is not None else None
        if small and not self._by_spark:
            own = [name for name in self._columns.fieldNames() if name in batch.columns]
            table = batch.select(*own, *_deleted(batch)).toArrow()
            if not (self._spec.mode == "upsert" and any(table[key].null_count for key in self._spec.keys)):
                return Arrived(batch, table.num_rows, table, measured)
        measured = measured or self.measured(batch)
        return Arrived(batch, measured.rows, None, measured)

    def write(self, arrived: Arrived, batch_id: int, watermark_ms: int, *, guard: Callable[[], None]) -> Written:
        """Write one batch.

        Parameters
        ----------
        arrived
            Its rows for this table.
        batch_id
            Its id.
        watermark_ms
            The watermark that it began with, milliseconds since the epoch.
        guard
            Called directly before the commit; raises if this driver may not write any more.
        """
        if arrived.table is not None and not self._by_spark:
            try:
                return self._write_here(arrived.table, arrived.frame, batch_id, watermark_ms, guard)
            except TableNotFoundError as error:
                raise StreamwardenError("OUTPUT_GONE", f"{self._spec.table}: {error}") from error
            except UnfitTableError as reason:
                _log.info("%s: Spark writes the batches of this run: %s", self._spec.table, reason)
                self._by_spark = True
        measured = arrived.measured or self.measured(arrived.frame)
        if self._spec.mode == "append":
            return self._append(arrived.frame, measured, batch_id, guard)
        return self._upsert(arrived.frame, measured, batch_id, watermark_ms, guard)

    def _write_here(
        self, rows: pa.Table, batch: DataFrame, batch_id: int, watermark_ms: int, guard: Callable[[], None]
    ) -> Written:
        passing = bool(self._spec.final_when_passed) and watermark_ms > self._finalised_ms
        if not rows.num_rows and not passing:
            return Written(0, 0)
        author = batch.sparkSession.conf.get(AUTHOR, "") or ""
        if self._spec.mode == "append":
            count = self._writer.append(rows, batch_id, author=author, guard=guard)
            if count is None:
                # A successor repeats the batch of a driver that was killed after this commit.
                count = 0 if self._spec.keys else rows.num_rows
            return Written(rows.num_rows, count, rows.num_rows - count)
        if self._spec.final_when_passed:
            end = rows[self._spec.final_when_passed]
            passed = pc.less_equal(end, pa.scalar(watermark_ms * 1000, pa.int64()).cast(end.type))
            rows = rows.append_column(IS_FINAL, passed)
        touched = self._writer.upsert(
            rows,
            batch_id,
            deleted=DELETED,
            passed=(self._finalised_ms, watermark_ms) if passing else None,
            author=author,
            guard=guard,
        )
        self._finalised_ms = max(self._finalised_ms, watermark_ms)
        return Written(rows.num_rows, rows.num_rows if touched is None else touched)

    def check_keys(self, arrived: Arrived, batch_id: int) -> None:
        """Reject a batch that upserts or deletes a row of this table twice: the result would be ambiguous.

        MERGE would insert both rows, and update both later on. Nulls are equal, as in MERGE.

        Raises
        ------
        StreamwardenError
            ``SINK_KEY_TWICE``, with a key as an example.
        """
        if self._spec.mode != "upsert" or arrived.rows < 2:
            return
        if arrived.table is not None and not has_duplicates(arrived.table, self._spec.keys):
            return
        keys = arrived.frame.select(*self._spec.keys)
        if arrived.rows <= _FEW_ROWS:
            keys = keys.coalesce(1)
        twice = keys.groupBy(*self._spec.keys).agg(F.count(F.lit(1)).alias("_times")).where("_times > 1")
        key = F.to_json(F.struct(*self._spec.keys), {"ignoreNullFields": "false"})
        found = twice.agg(F.count(F.lit(1)).alias("keys"), F.min(key).alias("example")).first()
        if found is not None and found["keys"]:
            raise StreamwardenError(
                "SINK_KEY_TWICE",
                f"{self._spec.table}: batch {batch_id} has several rows for each of {found['keys']:,} keys"
                f" ({', '.join(self._spec.keys)}), such as {found['example']}; nothing of it was written",
            )

    def _append(self, batch: DataFrame, arrived: Measured, batch_id: int, guard: Callable[[], None]) -> Written:
        rows = batch.select(*self._columns.fieldNames())
        if arrived.rows == 0:
            return Written(0, 0)
        fresh = self._without_duplicates(rows, arrived).persist() if self._spec.keys else rows
        try:
            count = fresh.count() if self._spec.keys else arrived.rows
            if count:
                guard()
                (
                    fresh.write.format("delta")
                    .mode("append")
                    .option("txnAppId", self._application)
                    .option("txnVersion", batch_id)
                    .save(self._path)
                )
            return Written(arrived.rows, count, arrived.rows - count)
        finally:
            if self._spec.keys:
                fresh.unpersist()

    def _without_duplicates(self, rows: DataFrame, measured: Measured) -> DataFrame:
        keys = self._spec.keys
        if self._spec.first_by:
            order = Window.partitionBy(*keys).orderBy(*self._spec.first_by)
            rank = F.row_number().over(order)
            rows = rows.withColumn("_rank", rank).where("_rank = 1").drop("_rank")
        else:
            rows = rows.dropDuplicates(list(keys))
        known = rows.sparkSession.read.format("delta").load(self._path)
        known = known.where(measured.within()).select(*(F.col(key).alias(f"_known_{key}") for key in keys))
        return rows.join(known, _all(F.col(k).eqNullSafe(F.col(f"_known_{k}")) for k in keys), "left_anti")

    def _upsert(
        self, batch: DataFrame, arrived: Measured, batch_id: int, watermark_ms: int, guard: Callable[[], None]
    ) -> Written:
        changes = batch
        final = self._spec.final_when_passed
        if final:
            changes = changes.withColumn(IS_FINAL, F.col(final) <= _timestamp(watermark_ms))
        changes = changes.select(*self._columns.fieldNames(), *_deleted(batch))
        if arrived.rows == 0 and not (final and watermark_ms > self._finalised_ms):
            return Written(0, 0)
        guard()
        rows = self._merge(changes, arrived, batch_id, watermark_ms)
        self._finalised_ms = max(self._finalised_ms, watermark_ms)
        return Written(arrived.rows, rows)

    def _merge(self, changes: DataFrame, measured: Measured, batch_id: int, watermark_ms: int) -> int:
        """Upsert the changes and mark rows that became final, in one commit; return how many rows it touched."""
        session = changes.sparkSession
        names = self._columns.fieldNames()
        if not self._columns_of_source:
            # Created once: each costs a call to the JVM.
            self._columns_of_source = {name: F.col(f"s.{name}") for name in names}
        values = self._columns_of_source
        # A null-safe comparison is a join on twice as many columns; without nulls, the result is the same.
        matched = _all(
            F.col(f"t.{key}").eqNullSafe(F.col(f"s.{key}"))
            if key in measured.nulls
            else F.col(f"t.{key}") == F.col(f"s.{key}")
            for key in self._spec.keys
        )
        # MERGE takes its transaction id from the session, which belongs to this query.
        settings = {
            _TXN_APP: self._application,
            _TXN_VERSION: str(batch_id),
            # The rows are already kept; Delta would keep them once more.
            _MATERIALIZE: "none",
        }
        for key, value in settings.items():
            session.conf.set(key, value)
        try:
            merge = (
                DeltaTable.forPath(session, self._path)
                .alias("t")
                .merge(changes.alias("s"), matched & measured.within("t."))
            )
            if DELETED in changes.columns:
                gone = F.col(f"s.{DELETED}")
                merge = merge.whenMatchedDelete(gone).whenMatchedUpdate(set=values)
                merge = merge.whenNotMatchedInsert(~gone, values=values)
            else:
                merge = merge.whenMatchedUpdate(set=values).whenNotMatchedInsert(values=values)
            if self._spec.final_when_passed and watermark_ms > self._finalised_ms:
                end = F.col(f"t.{self._spec.final_when_passed}")
                # A row that is older than the column has a null.
                passed = ~F.coalesce(F.col(f"t.{IS_FINAL}"), F.lit(False)) & (end <= _timestamp(watermark_ms))
                if self._finalised_ms > 0:
                    # Rows that the watermark passed earlier are already final: the bound lets Delta skip old files.
                    passed &= end > _timestamp(self._finalised_ms)
                merge = merge.whenNotMatchedBySourceUpdate(passed, {IS_FINAL: F.lit(True)})
            done = merge.execute().first()
        finally:
            for key in settings:
                session.conf.unset(key)
        # Delta reports nothing for a batch that the table already has.
        return int(done["num_affected_rows"]) if done is not None else measured.rows

    def measures(self) -> list[Column]:
        """Return the aggregates that measure rows of this table: their number, nulls and bounds of keys."""
        return [
            F.count(F.lit(1)).alias("rows"),
            *(_AS_INTEGER[kind][0](F.min(key)).alias(f"min_{key}") for key, kind in self._timed.items()),
            *(_AS_INTEGER[kind][0](F.max(key)).alias(f"max_{key}") for key, kind in self._timed.items()),
            *(F.count(key).alias(f"count_{key}") for key in self._spec.keys),
        ]

    def measured(self, rows: DataFrame, found: Mapping[str, Any] | None = None) -> Measured:
        """Measure a batch's rows for this table.

        Reads all rows, even of a batch that turns out empty: its state must be computed to be committed.

        Parameters
        ----------
        rows
            The rows.
        found
            The values of :meth:`measures` over them, if they are already known.
        """
        if found is None:
            row = rows.agg(*self.measures()).first()
            assert row is not None
            found = row.asDict()
        return Measured(
            rows=found["rows"],
            bounds={key: (found[f"min_{key}"], found[f"max_{key}"]) for key in self._timed},
            kinds=self._timed,
            nulls=frozenset(key for key in self._spec.keys if found[f"count_{key}"] < found["rows"]),
        )


def _deleted(batch: DataFrame) -> list[str]:
    return [name for name in batch.columns if name == DELETED]


def _needs_spark(columns: StructType, keys: Sequence[str]) -> bool:
    """Return whether only Spark can write these columns, or compare these keys as Spark does."""
    if "variant" in columns.json():
        return True
    exact = (IntegralType, TimestampType, DateType, DecimalType, BooleanType)
    kinds = [columns[key].dataType for key in keys]
    # Not a string with a collation: it has equal keys that differ.
    return not all(isinstance(kind, exact) or kind == StringType() for kind in kinds)


def _timestamp(milliseconds: int) -> Column:
    return F.timestamp_millis(F.lit(milliseconds))


def _all(conditions: object) -> Column:
    return functools.reduce(operator.and_, conditions)  # type: ignore[call-overload,no-any-return]
