"""Keyed state in a real query: timestamps, timers and late events of event time; and large bases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from streamwarden.driver.previous_state import PreviousState
from streamwarden.driver.state_entries import state_entries
from streamwarden.driver.state_metadata import state_variables
from streamwarden.driver.state_rows import count_keys, count_state_rows
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import KEY_ID, KeyedBatch, KeyedJob, KeyedResult, StateField, dataframe, with_keyed_state
from streamwarden.keyed_state.bases import BASE_NAME
from streamwarden.keyed_state.chunks import StoredChunk
from streamwarden.keyed_state.dataframe import KEYED_STATE
from streamwarden.keyed_state.layout import StateLayout
from streamwarden.keyed_state.processor import CHUNK_ROW, STATE_NAME, BucketProcessor
from tests.conftest import DAY
from tests.spark.job_runs import run
from tests.unit.keyed_state.test_event_time import Keyed

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_timers_and_late_events_follow_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    # The watermark is ten seconds behind, and a key is emitted ten seconds after its newest event.
    batches = [[("a", 0, 1), ("b", 5, 2)], [("a", 3, 10), ("c", 40, 1)], [("a", 1, 100), ("b", 90, 7)], [("d", 200, 5)]]
    for number, events in enumerate(batches):
        rows = [{"key": key, "at": DAY + timedelta(seconds=at), "value": value} for key, at, value in events]
        path = landing / f"{number}.parquet"
        schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    reader = spark.readStream.schema("key string, at timestamp, value long").option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(landing)).withWatermark("at", "10 seconds")
    keyed = with_keyed_state(events, ["key"], Keyed(), buckets=8, ttl=None, time="event", event_time="at")
    found: list[Any] = []
    query = run(
        keyed, lambda batch, number: found.extend((number, row) for row in batch.collect()), tmp_path / "checkpoint"
    )
    query.awaitTermination()
    start = int(DAY.timestamp())
    assert sorted((number, row.key, row.total, row["last"] // 1000 - start) for number, row in found) == [
        (2, "a", 11, 3),
        (3, "c", 1, 40),
        # In the batch without data that Spark runs for the last watermark. `d` stays.
        (4, "b", 9, 90),
    ]
    observed = [done.observedMetrics[KEYED_STATE] for done in query.recentProgress]
    assert [one["late"] for one in observed] == [0, 0, 1, 0, 0]
    assert [one["added"] for one in observed] == [2, 1, -1, 0, -1]


class Totals(KeyedJob):
    """A sum a key, for ever."""

    fields: ClassVar = {"total": StateField(pa.int64())}
    output: ClassVar = {"total": pa.int64()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        rows = pl.concat([batch.state.select(KEY_ID, "total"), batch.events.select(KEY_ID, total="value")])
        sums = rows.group_by(KEY_ID).agg(pl.col("total").sum())
        return KeyedResult(sums, sums)


LAYOUT = StateLayout({"key": pa.string()}, Totals.fields)


class Inline:
    """Bases as they were stored before they had a variable of their own."""

    def write(self, chunk: StoredChunk, _: bytes | None) -> StoredChunk:
        return chunk

    def clear(self, _: bytes | None) -> None: ...


class Before(BucketProcessor):
    """The processor of then."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._chunks = handle.getListState(STATE_NAME, CHUNK_ROW)
        self._bases = Inline()  # type: ignore[assignment]


@pytest.fixture
def ends_by_itself(spark: SparkSession) -> Iterator[None]:
    """With timers in processing time a query would ask for a batch without data, again and again."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.usefixtures("ends_by_itself")
@pytest.mark.parametrize("first", [BucketProcessor, Before])
def test_large_bases_are_written_and_read(spark: SparkSession, tmp_path: Path, first: type[BucketProcessor]) -> None:
    """By the job, and by the readers of a checkpoint; also in a checkpoint of a release that had them in the list."""
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    landing.mkdir()
    totals = dict.fromkeys(range(40_000), 0)
    found: dict[str, int] = {}

    def sink(batch: DataFrame, _: int) -> None:
        found.update({row.key: row.total for row in batch.collect()})

    def bases() -> int:
        described = spark.read.format("state-metadata").load(str(checkpoint)).first()
        if BASE_NAME not in [one["stateName"] for one in state_variables(described) or ()]:
            return 0
        return spark.read.format("statestore").option("stateVarName", BASE_NAME).load(str(checkpoint)).count()

    for batch, (processor, keys) in enumerate(
        [(first, range(40_000)), (BucketProcessor, range(100)), (BucketProcessor, range(40_000))]
    ):
        path = landing / f"{batch}.parquet"
        pq.write_table(pa.table({"key": [f"{one:06}" for one in keys], "value": list(keys)}), path)
        os.utime(path, (1_700_000_000 + batch,) * 2)
        for key in keys:
            totals[key] += key
        rows = spark.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1).parquet(str(landing))
        with mock.patch.object(dataframe, "BucketProcessor", processor):
            keyed = with_keyed_state(rows, ["key"], Totals(), buckets=8, ttl=None)
        found.clear()
        run(keyed, sink, checkpoint).awaitTermination()
        assert found == {f"{key:06}": totals[key] for key in keys}
        # Old ones move when their chunks are merged; by the last batch some are.
        assert bases() in ([8] if first is BucketProcessor else [0] if batch < 2 else range(1, 8))
        stored = PreviousState(spark, str(checkpoint), batch, 1).keyed(LAYOUT.key, LAYOUT.fields)
        assert {row.key: row.total for row in stored.collect()} == {f"{one:06}": totals[one] for one in totals}
        entries = state_entries(spark, str(checkpoint), batch, lambda: [LAYOUT])
        assert entries.count() == 40_000 and {row.partition for row in entries.collect()} == {0, 1}
        assert count_keys(spark, str(checkpoint), batch) == {0: 40_000}
    # Also as of a batch when the variable was not there.
    assert state_entries(spark, str(checkpoint), 0, lambda: [LAYOUT]).count() == 40_000
    assert count_state_rows(spark, str(checkpoint), 0)
    before = PreviousState(spark, str(checkpoint), 0, 1).keyed(LAYOUT.key, LAYOUT.fields)
    assert before.agg(F.sum("total")).first()[0] == sum(range(40_000))


@pytest.mark.parametrize(
    ("columns", "given", "words"),
    [
        ("key, at", {"time": "event", "event_time": "at"}, "withWatermark"),
        ("key, at", {"event_time": "at"}, 'needs time="event"'),
        ("key, unix_micros(at) AS at", {"time": "event", "event_time": "at", "late": True}, "not bigint"),
        ("key, at", {"time": "event", "late": True, "ttl": timedelta(hours=1)}, "needs event_time"),
    ],
)
def test_what_event_time_lacks_is_named(spark: SparkSession, columns: str, given: dict[str, Any], words: str) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("value AS key", "timestamp AS at")
    if given.pop("late", False):
        rows = rows.withWatermark("at", "10 seconds")
    with pytest.raises(StreamwardenError, match=words) as raised:
        with_keyed_state(rows.selectExpr(*columns.split(", ")), ["key"], Keyed(), buckets=8, **{"ttl": None, **given})
    assert raised.value.code == "CONFIG_INVALID"
