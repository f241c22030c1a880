"""Keyed state in event time in a real query: timestamps, timers, and late events."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import with_keyed_state
from streamwarden.keyed_state.dataframe import KEYED_STATE
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
