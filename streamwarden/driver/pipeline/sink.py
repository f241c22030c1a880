"""Write batches to Delta so that each row is there exactly once, whatever process is killed at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streamwarden.driver.job_api import DELETED
from streamwarden.driver.pipeline.key_measures import KeyMeasures, Measured
from streamwarden.driver.pipeline.output_table import ensure_table
from streamwarden.driver.pipeline.outputs import AUTHOR
from streamwarden.driver.pipeline.spark_writer import SparkWriter
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_writer import DeltaWriter, Finality, UnfitTableError, has_duplicates
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import SinkSpec

__all__ = ["Arrived", "DeltaSink", "Written"]

_log = logging.getLogger(__name__)

_FEW_ROWS = 50_000
"""Up to this many keys, a single task counts them: a shuffle takes longer."""


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

    Each commit carries the transaction id (application, batch): a batch that the table has seen is skipped. The
    application id contains the job's generation, because after a restore the same batch ids hold other rows.

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
        own = [column for column in schema.fields if column.name != IS_FINAL]
        final = [StructField(IS_FINAL, BooleanType())] if spec.final_when_passed else []
        self._columns = StructType([*own, *final])
        self._measures = KeyMeasures(self._columns, spec.keys)
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
        self._by_spark = _needs_spark(self._columns, spec)
        self._spark = SparkWriter(path, spec, self._columns.fieldNames(), application)
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
        measured = self._measures.read(found) if found is not None else None
        if small and not self._by_spark:
            own = [name for name in self._columns.fieldNames() if name in batch.columns]
            table = batch.select(*own, *_deleted(batch)).toArrow()
            if not (self._spec.mode == "upsert" and any(table[key].null_count for key in self._spec.keys)):
                return Arrived(batch, table.num_rows, table, measured)
        measured = measured or self._measures.of(batch)
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
        return self._write_by_spark(arrived, batch_id, watermark_ms, guard)

    def measures(self) -> list[Column]:
        """Return the aggregates over a batch's rows that :meth:`arrived` would else compute itself."""
        return self._measures.aggregates()

    def _write_by_spark(self, arrived: Arrived, batch_id: int, watermark_ms: int, guard: Callable[[], None]) -> Written:
        measured = arrived.measured or self._measures.of(arrived.frame)
        passing = bool(self._spec.final_when_passed) and watermark_ms > self._finalised_ms
        if measured.rows == 0 and not passing:
            return Written(0, 0)
        if self._spec.mode == "append":
            count = self._spark.append(arrived.frame, measured, batch_id, guard=guard)
            return Written(measured.rows, count, measured.rows - count)
        touched = self._spark.upsert(
            arrived.frame,
            measured,
            batch_id,
            finalised_ms=self._finalised_ms,
            watermark_ms=watermark_ms,
            guard=guard,
        )
        self._finalised_ms = max(self._finalised_ms, watermark_ms)
        return Written(measured.rows, touched)

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


def _deleted(batch: DataFrame) -> list[str]:
    return [name for name in batch.columns if name == DELETED]


def _needs_spark(columns: StructType, spec: SinkSpec) -> bool:
    """Return whether only Spark can write these columns, or compare these keys as Spark does."""
    if "variant" in columns.json():
        return True
    if spec.final_when_passed and not isinstance(columns[spec.final_when_passed].dataType, TimestampType):
        return True
    exact = (IntegralType, TimestampType, DateType, DecimalType, BooleanType)
    kinds = [columns[key].dataType for key in spec.keys]
    # Not a string with a collation: it has equal keys that differ.
    return not all(isinstance(kind, exact) or kind == StringType() for kind in kinds)
