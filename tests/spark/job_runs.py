"""Running a job module batch by batch, into a dictionary or a Delta table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from streamwarden.driver.job_api import DELETED, EVENT_ENDS
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.row_rules import output_schemas
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.spec import JobSpec
from streamwarden.storage.local import LocalStorage

BINARY_FILE = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass
class Table:
    """What an upserting sink would hold; refuses two rows with one key in a batch, as MERGE would.

    ``fail_on`` names batches whose first try fails after their rows were computed, as if the driver died in the sink.
    """

    keys: tuple[str, ...]
    fail_on: set[int] = field(default_factory=set)
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    tries: list[tuple[int, list[str]]] = field(default_factory=list)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        self.tries.append((batch_id, sorted(map(str, rows))))
        if batch_id in self.fail_on:
            self.fail_on.discard(batch_id)
            raise RuntimeError("the sink fails, for once")
        named = [tuple(row[key] for key in self.keys) for row in rows]
        assert len(set(named)) == len(named), f"batch {batch_id} names a row twice"
        for key, row in zip(named, rows, strict=True):
            values = row.asDict()
            if values.pop(DELETED, False):
                self.rows.pop(key, None)
            else:
                self.rows[key] = values

    def arrow(self) -> pa.Table:
        return pa.Table.from_pylist(list(self.rows.values()))


def delta_tables(spark: SparkSession, folder: Path, spec: JobSpec, job: Any, checkpoint: Path) -> BatchWriter:
    """Return what writes a job's batches in the driver: its sinks as its YAML declares them."""
    schemas = output_schemas(spec, job)
    sinks = {
        sink.output: DeltaSink(spark, str(folder / sink.table), sink, schemas[sink.output], f"{spec.name}:1")
        for sink in spec.sinks
    }
    return BatchWriter(
        spec, job, sinks, CheckpointReader(LocalStorage(checkpoint.parent), checkpoint.name), guard=lambda: None
    )


def read_table(path: Path) -> pa.Table:
    """Read a Delta table without Spark, as the demo does."""
    return DeltaTable(str(path)).to_pyarrow_table()


def write_table(path: Path, parts: Iterable[pa.Table]) -> str:
    """Write a Delta table, one commit with one file for each given part."""
    for part in parts:
        write_deltalake(str(path), part, mode="append")
    return str(path)


def as_trips(landed: pa.Table) -> pa.Table:
    """Turn landing rows into what the jobs read of the trips table."""
    times = {
        name: landed[name].cast(pa.timestamp("us", "UTC")) for name in ("lpep_pickup_datetime", "lpep_dropoff_datetime")
    }
    zones = {name: landed[name].cast(pa.int32()) for name in ("PULocationID", "DOLocationID")}
    rest = {name: landed[name] for name in ("fare_amount", "total_amount", "card_id")}
    return pa.table({**times, **zones, **rest})


def in_order_of_arrival(
    trips: pa.Table, *, seed: int, late_share: float, latest: timedelta, batches: int
) -> list[pa.Table]:
    """Let a share of trips arrive late by up to `latest`; cut all by arrival into parts of about equal size."""
    random = np.random.default_rng(seed)
    pickup = np.array(trips["lpep_pickup_datetime"].cast(pa.int64()))
    rows = trips.num_rows
    delay = np.where(random.random(rows) < late_share, random.uniform(0, latest / timedelta(microseconds=1), rows), 0)
    order = np.argsort(pickup + delay, kind="stable")
    return [trips.take(pa.array(part)) for part in np.array_split(order, batches)]


def stream_delta(spark: SparkSession, path: str, *, files: int = 1) -> DataFrame:
    """Read so many files a batch; :func:`write_table` writes one a commit."""
    return spark.readStream.format("delta").option("maxFilesPerTrigger", files).load(path)


def stream_files(spark: SparkSession, path: Path, *, files: int) -> DataFrame:
    """Name files, as the driver does."""
    reader = spark.readStream.format("binaryFile").schema(BINARY_FILE)
    found = reader.option("maxFilesPerTrigger", files).load(str(path))
    described = F.struct(
        F.regexp_extract("path", "[^/]+$", 0).alias("name"),
        F.lit(str(path)).alias("folder"),
        "length",
        F.unix_millis("modificationTime").alias("modified_ms"),
    )
    return found.select(F.to_json(described).alias("file"))


def run(rows: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query as the driver does; by default it ends when all that is there is read."""
    return (
        rows.writeStream.foreachBatch(sink)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def run_until(
    rows: DataFrame,
    sink: Callable[[DataFrame, int], None],
    checkpoint: Path,
    condition: Callable[[StreamingQuery], bool],
    *,
    timeout: float = 300,
) -> None:
    """Run a query that never ends by itself (processing-time timers) until `condition` holds."""
    query = run(rows, sink, checkpoint, processingTime="200 milliseconds")
    wait_until(query, condition, timeout=timeout)
    query.stop()


def wait_until(query: StreamingQuery, condition: Callable[[StreamingQuery], bool], *, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not condition(query):
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > end:
            last = query.lastProgress
            query.stop()
            raise AssertionError(f"still waiting; last progress: {last}")
        time.sleep(0.2)


def rows_read(query: StreamingQuery) -> int:
    """Return how many rows this run of the query committed."""
    return sum(progress.numInputRows for progress in query.recentProgress)


def batch_metadata(checkpoint: Path, batch: int) -> dict[str, Any]:
    """Return the second line of a batch's offset log entry: its watermark and its time."""
    path = checkpoint / "offsets" / str(batch)
    metadata: dict[str, Any] = json.loads(path.read_text().splitlines()[1]) if path.exists() else {}
    return metadata


def batch_watermark(checkpoint: Path, batch: int) -> int:
    """Return the watermark that a batch began with; 0 before the first."""
    return int(batch_metadata(checkpoint, batch).get("batchWatermarkMs", 0))


def batch_time(checkpoint: Path, batch: int) -> datetime:
    return datetime.fromtimestamp(batch_metadata(checkpoint, batch)["batchTimestampMs"] / 1000, UTC)


def late_rows(histogram: Iterable[Row], watermark_ms: int) -> int:
    """Count a batch's rows that `watermark_ms` drops: those whose group ends at it or before."""
    return round(sum(bin_["y"] for bin_ in histogram if bin_["x"] * 1000 <= watermark_ms))


def late_by_batch(query: StreamingQuery, checkpoint: Path) -> dict[int, int]:
    """Count the late rows of each batch of this run.

    A batch drops rows by the watermark of the batch before it. Its own watermark evicts state, after the rows came.
    """
    return {
        progress.batchId: late_rows(
            progress.observedMetrics[EVENT_ENDS]["histogram"] or [], batch_watermark(checkpoint, progress.batchId - 1)
        )
        for progress in query.recentProgress
        if EVENT_ENDS in progress.observedMetrics
    }
