"""Writing batches to Delta so that each row is there once, whatever is killed when."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, StructField, StructType, TimestampType

from streamwarden.control.spec import SinkSpec
from streamwarden.driver.job_api import DELETED
from streamwarden.errors import StreamwardenError

__all__ = ["IS_FINAL", "DeltaSink", "Written"]

IS_FINAL = "is_final"
"""Column that says that a row can't change any more; kept by the sink, see ``final_when_passed``."""

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class Written:
    """What one batch did to one table: rows inserted, updated or deleted, and rows dropped as duplicates."""

    rows: int
    duplicates: int = 0


class DeltaSink:
    """One output table of a job.

    Each commit carries the transaction id (application, batch): Delta passes over a batch that it has seen. The
    application id contains the job's generation, because after a restore the same batch ids hold other rows.

    Parameters
    ----------
    session
        Any session of the JVM, for setting up.
    path
        The table's folder.
    spec
        How it is written.
    schema
        The columns that the job declares for it.
    application
        The transaction's application id.
    """

    def __init__(self, session: SparkSession, path: str, spec: SinkSpec, schema: StructType, application: str) -> None:
        self._path = path
        self._spec = spec
        self._application = application
        self._columns = schema
        if spec.final_when_passed and IS_FINAL not in schema.fieldNames():
            self._columns = StructType([*schema.fields, StructField(IS_FINAL, BooleanType())])
        self._finalised_ms = -1
        self._ensure_table(session)

    def write(self, batch: DataFrame, batch_id: int, watermark_ms: int, *, guard: Callable[[], None]) -> Written:
        """Write one batch.

        Parameters
        ----------
        batch
            Its rows for this table; already computed and kept, since they are read more than once.
        batch_id
            Its id.
        watermark_ms
            The watermark that it began with, milliseconds since the epoch.
        guard
            Called right before the commit; raises if this driver may not write any more.
        """
        if self._spec.mode == "append":
            return self._append(batch, batch_id, guard)
        return self._upsert(batch, batch_id, watermark_ms, guard)

    def _append(self, batch: DataFrame, batch_id: int, guard: Callable[[], None]) -> Written:
        rows = batch.select(*self._columns.fieldNames())
        arrived = rows.count()
        if arrived == 0:
            return Written(0)
        fresh = self._without_duplicates(rows).persist() if self._spec.keys else rows
        try:
            count = fresh.count() if self._spec.keys else arrived
            if count:
                guard()
                (
                    fresh.write.format("delta")
                    .mode("append")
                    .option("txnAppId", self._application)
                    .option("txnVersion", batch_id)
                    .save(self._path)
                )
            return Written(count, arrived - count)
        finally:
            if self._spec.keys:
                fresh.unpersist()

    def _without_duplicates(self, rows: DataFrame) -> DataFrame:
        keys = self._spec.keys
        if self._spec.first_by:
            order = Window.partitionBy(*keys).orderBy(*self._spec.first_by)
            rank = F.row_number().over(order)
            rows = rows.withColumn("_rank", rank).where("_rank = 1").drop("_rank")
        else:
            rows = rows.dropDuplicates(list(keys))
        known = rows.sparkSession.read.format("delta").load(self._path)
        known = known.where(self._range(rows, keys)).select(*(F.col(key).alias(f"_known_{key}") for key in keys))
        return rows.join(known, _all(F.col(k).eqNullSafe(F.col(f"_known_{k}")) for k in keys), "left_anti")

    def _upsert(self, batch: DataFrame, batch_id: int, watermark_ms: int, guard: Callable[[], None]) -> Written:
        final = self._spec.final_when_passed
        extended = False
        changes = batch if DELETED in batch.columns else batch.withColumn(DELETED, F.lit(False))
        if final:
            passed = datetime.fromtimestamp(watermark_ms / 1000, UTC)
            changes = changes.withColumn(IS_FINAL, F.col(final) <= F.lit(passed))
            if watermark_ms > self._finalised_ms:
                changes = changes.unionByName(self._newly_final(changes, passed))
                extended = True
        changes = changes.select(*self._columns.fieldNames(), DELETED)
        if extended:
            changes.persist()
        try:
            count = changes.count()
            if count:
                guard()
                self._merge(changes, batch_id)
            self._finalised_ms = max(self._finalised_ms, watermark_ms)
            return Written(count)
        finally:
            if extended:
                changes.unpersist()

    def _newly_final(self, changes: DataFrame, passed: datetime) -> DataFrame:
        keys = list(self._spec.keys)
        table = changes.sparkSession.read.format("delta").load(self._path)
        final = self._spec.final_when_passed
        assert final is not None
        open_rows = table.where(~F.col(IS_FINAL) & (F.col(final) <= F.lit(passed)))
        return (
            open_rows.join(changes.select(*keys), keys, "left_anti")
            .withColumn(IS_FINAL, F.lit(True))
            .withColumn(DELETED, F.lit(False))
        )

    def _merge(self, changes: DataFrame, batch_id: int) -> None:
        session = changes.sparkSession
        names = self._columns.fieldNames()
        values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in names}
        keys = self._spec.keys
        matched = _all(F.col(f"t.{key}").eqNullSafe(F.col(f"s.{key}")) for key in keys)
        # MERGE takes its transaction id from the session; this session is the query's own.
        session.conf.set(_TXN_APP, self._application)
        session.conf.set(_TXN_VERSION, str(batch_id))
        try:
            (
                DeltaTable.forPath(session, self._path)
                .alias("t")
                .merge(changes.alias("s"), matched & self._range(changes, keys, "t."))
                .whenMatchedDelete(F.col(f"s.{DELETED}"))
                .whenMatchedUpdate(set=values)
                .whenNotMatchedInsert(~F.col(f"s.{DELETED}"), values=values)
                .execute()
            )
        finally:
            session.conf.unset(_TXN_APP)
            session.conf.unset(_TXN_VERSION)

    def _range(self, rows: DataFrame, keys: Sequence[str], prefix: str = "") -> Column:
        """Return a condition on the table that no row of these keys fails, by which Delta can leave files out."""
        timed = [key for key in keys if isinstance(self._columns[key].dataType, TimestampType | DateType)]
        if not timed:
            return F.lit(True)
        bounds = rows.agg(
            *(F.min(key).alias(f"min_{key}") for key in timed),
            *(F.max(key).alias(f"max_{key}") for key in timed),
            *(F.bool_or(F.col(key).isNull()).alias(f"null_{key}") for key in timed),
        ).first()
        assert bounds is not None
        conditions = []
        for key in timed:
            low, high = bounds[f"min_{key}"], bounds[f"max_{key}"]
            inside = F.col(f"{prefix}{key}").between(F.lit(low), F.lit(high)) if low is not None else F.lit(False)
            conditions.append(inside | F.col(f"{prefix}{key}").isNull() if bounds[f"null_{key}"] else inside)
        return _all(conditions)

    def _ensure_table(self, session: SparkSession) -> None:
        if not DeltaTable.isDeltaTable(session, self._path):
            builder = DeltaTable.createIfNotExists(session).location(self._path)
            # Nullable throughout: a constraint belongs to the expectations, where breaking it does not stop the job.
            for column in self._columns.fields:
                builder = builder.addColumn(column.name, column.dataType)
            if self._spec.partition_by:
                builder = builder.partitionedBy(*self._spec.partition_by)
            builder.execute()
            return
        found = session.read.format("delta").load(self._path).schema
        have = {column.name: column.dataType.simpleString() for column in found.fields}
        want = {column.name: column.dataType.simpleString() for column in self._columns.fields}
        if have != want:
            missing = sorted(f"{name} {kind}" for name, kind in want.items() if have.get(name) != kind)
            extra = sorted(f"{name} {kind}" for name, kind in have.items() if want.get(name) != kind)
            raise StreamwardenError(
                "SINK_SCHEMA_MISMATCH",
                f"{self._spec.table}: the job writes {', '.join(missing) or 'nothing else'};"
                f" the table has {', '.join(extra) or 'nothing else'}",
            )


def _all(conditions: object) -> Column:
    return functools.reduce(operator.and_, conditions)  # type: ignore[call-overload,no-any-return]
