"""Write a batch's rows to a Delta table by Spark, in one commit under a transaction id.

For batches and tables that delta-rs can't take; see :mod:`streamwarden.formats.delta_writer`.
"""

from __future__ import annotations

from collections.abc import Callable

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from streamwarden.driver.job_api import DELETED
from streamwarden.driver.pipeline.key_measures import Measured, all_of
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.spec import SinkSpec

__all__ = ["SparkWriter"]

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


class SparkWriter:
    """Writes one table for one transaction application.

    Parameters
    ----------
    path
        The table's folder.
    spec
        The sink's spec.
    columns
        The names of the job's columns.
    application
        The transaction's application id.
    """

    def __init__(self, path: str, spec: SinkSpec, columns: list[str], application: str) -> None:
        self._path = path
        self._spec = spec
        self._columns = columns
        self._application = application
        self._columns_of_source: dict[str, str | Column] = {}

    def append(self, batch: DataFrame, measured: Measured, batch_id: int, *, guard: Callable[[], None]) -> int:
        """Append those rows whose keys are neither in the table nor repeated; return how many.

        Parameters
        ----------
        batch, measured
            The rows, from a kept DataFrame, and their measures.
        batch_id
            The batch's id, the transaction's version.
        guard
            Called before the commit; raises if this driver may not write any more.
        """
        rows = batch.select(*self._columns)
        fresh = self._without_duplicates(rows, measured).persist() if self._spec.keys else rows
        try:
            count = fresh.count() if self._spec.keys else measured.rows
            if count:
                guard()
                (
                    fresh.write.format("delta")
                    .mode("append")
                    .option("txnAppId", self._application)
                    .option("txnVersion", batch_id)
                    .save(self._path)
                )
            return count
        finally:
            if self._spec.keys:
                fresh.unpersist()

    def upsert(
        self,
        batch: DataFrame,
        measured: Measured,
        batch_id: int,
        *,
        finalised_ms: int,
        watermark_ms: int,
        guard: Callable[[], None],
    ) -> int:
        """Upsert rows and mark rows that became final, in one commit; return how many rows it touched.

        Parameters
        ----------
        batch, measured, batch_id, guard
            See :meth:`append`.
        finalised_ms, watermark_ms
            The watermark up to which rows are marked already (negative: unknown), and the batch's.
        """
        changes = batch
        if self._spec.final_when_passed:
            changes = changes.withColumn(IS_FINAL, F.col(self._spec.final_when_passed) <= _timestamp(watermark_ms))
        changes = changes.select(*self._columns, *(name for name in batch.columns if name == DELETED))
        guard()
        session = changes.sparkSession
        if not self._columns_of_source:
            # Created once: each costs a call to the JVM.
            self._columns_of_source = {name: F.col(f"s.{name}") for name in self._columns}
        values = self._columns_of_source
        # A null-safe comparison is a join on twice as many columns; without nulls, the result is the same.
        matched = all_of(
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
            if self._spec.final_when_passed and watermark_ms > finalised_ms:
                end = F.col(f"t.{self._spec.final_when_passed}")
                # A row that is older than the column has a null.
                passed = ~F.coalesce(F.col(f"t.{IS_FINAL}"), F.lit(False)) & (end <= _timestamp(watermark_ms))
                if finalised_ms > 0:
                    # Rows that the watermark passed earlier are already final: the bound lets Delta skip old files.
                    passed &= end > _timestamp(finalised_ms)
                merge = merge.whenNotMatchedBySourceUpdate(passed, {IS_FINAL: F.lit(True)})
            done = merge.execute().first()
        finally:
            for key in settings:
                session.conf.unset(key)
        # Delta reports nothing for a batch that the table already has.
        return int(done["num_affected_rows"]) if done is not None else measured.rows

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
        return rows.join(known, all_of(F.col(k).eqNullSafe(F.col(f"_known_{k}")) for k in keys), "left_anti")


def _timestamp(milliseconds: int) -> Column:
    return F.timestamp_millis(F.lit(milliseconds))
