"""What a driver will do for its job, done once before with rows of no meaning, when nobody waits for it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NumericType, StringType, StructType, TimestampType

from streamwarden.control.spec import JobSpec, SinkSpec
from streamwarden.driver.repartition import repartition
from streamwarden.driver.sink import DeltaSink
from streamwarden.driver.state_digest import state_digests
from streamwarden.spark.session import BASE

__all__ = ["rehearse"]

_log = logging.getLogger(__name__)
# The first makes the table, the second finds rows in it.
_BATCHES = 2
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def rehearse(session: SparkSession, spec: JobSpec, outputs: Mapping[str, StructType], *, state: bool) -> None:
    """Write to tables like the job's, and work on state like it, in a folder that goes afterwards.

    A JVM's first MERGE takes four times as long as its third: classes are loaded and compiled. A driver that stands by
    has the time for it; its job, once it is stopped, has not. Nothing of the job is read or written. A rehearsal that
    fails is told in the log and hinders nothing. On a cluster there is none.

    Parameters
    ----------
    session
        The driver's.
    spec
        The job's, for its sinks.
    outputs
        Columns of each output, as the job's module declares them.
    state
        Whether to digest and to repartition a state, too.
    """
    if not str(session.sparkContext.master).startswith("local"):
        # A cluster's executors have other folders, and are another driver's until then.
        return
    own = session.newSession()
    # S3's refuses local folders.
    own.conf.set(_FILE_MANAGER, BASE[_FILE_MANAGER])
    try:
        with tempfile.TemporaryDirectory(prefix="streamwarden-rehearsal-") as folder:
            for sink in spec.sinks:
                _write(own, f"{folder}/{sink.output}", sink, outputs[sink.output])
            if state:
                _work_on_state(own, f"{folder}/checkpoint")
    except Exception:
        _log.warning("a rehearsal failed; what comes will take longer", exc_info=True)


def _write(session: SparkSession, path: str, spec: SinkSpec, schema: StructType) -> None:
    sink = DeltaSink(session, path, spec, schema, "rehearsal")
    for batch in range(_BATCHES):
        rows = session.range(3).select(*(_value(column.dataType).alias(column.name) for column in schema.fields))
        sink.write(rows.localCheckpoint(), batch, 1000 * (batch + 1), guard=lambda: None)


def _value(kind: DataType) -> Column:
    if isinstance(kind, NumericType | StringType | TimestampType):
        return F.col("id").cast(kind)
    return F.lit(None).cast(kind)


def _work_on_state(session: SparkSession, checkpoint: str) -> None:
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    query = (
        numbers.groupBy((F.col("value") % 7).alias("key"))
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(once=True)
        .foreachBatch(_count)
        .start()
    )
    query.awaitTermination()
    partitions = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    state_digests(session, checkpoint, 0, partitions)
    repartition(session, checkpoint, partitions + 1)


def _count(batch: DataFrame, _: int) -> None:
    batch.count()
