"""State read out by PreviousState and put into another query: in event time, from plain and from keyed state."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.previous_state import PreviousState
from streamwarden.driver.state_migration import run_without_input
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader, continued_offsets
from streamwarden.keyed_state import with_keyed_state
from streamwarden.keyed_state.processor import STATE_NAME
from streamwarden.model.source_spec import FileSource
from streamwarden.storage import LocalStorage
from tests.conftest import DAY
from tests.spark.job_runs import run
from tests.unit.keyed_state.test_event_time import GAP_MS, LAYOUT, Keyed, Plain

pytestmark = pytest.mark.spark

# The watermark is ten seconds behind, and a key is emitted ten seconds after its newest event.
BATCHES = [
    [("a", 0, 1), ("b", 5, 2)],
    [("a", 3, 10), ("c", 40, 1), ("e", 38, 5)],
    # Here the state is migrated: `c` and `e` have some. The event of `a` is late.
    [("a", 1, 100), ("b", 90, 7), ("e", 45, 6)],
    [("d", 200, 5)],
]
SOURCE = FileSource(kind="files", path="landing")
SCHEMA = "key string, at timestamp, value long"
EMITTED = [("a", 11, 3), ("b", 2, 5), ("b", 7, 90), ("c", 1, 40), ("e", 11, 45)]

Query = Callable[[DataFrame], DataFrame]


def _land(folder: Path, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        rows = [{"key": key, "at": DAY + timedelta(seconds=at), "value": value} for key, at, value in BATCHES[number]]
        schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def _plain(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("at", "10 seconds")
        .groupBy("key")
        .transformWithState(Plain(), "key string, total long, last long", "Update", "EventTime")
    )


def _keyed(rows: DataFrame, initial: DataFrame | None = None) -> DataFrame:
    events = rows.withWatermark("at", "10 seconds")
    given: dict[str, Any] = {"buckets": 8, "ttl": None, "time": "event", "event_time": "at", "initial": initial}
    return with_keyed_state(events, ["key"], Keyed(), **given)


def _of_plain(old: PreviousState) -> DataFrame:
    sums = old.variable("sum").select("key.key", F.col("value.total").alias("total"), F.col("value.last").alias("last"))
    timers = old.timers().select("key.key", F.col("expiration_timestamp_ms").alias("timer_at"))
    return sums.join(timers, "key", "left")


def _of_keyed(old: PreviousState) -> DataFrame:
    rows = old.keyed(LAYOUT.key, LAYOUT.fields)
    assert [row.timer_at - row["last"] for row in rows.collect()] == [GAP_MS] * rows.count()
    return rows


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "migrate"), [(_plain, _of_plain), pytest.param(_keyed, _of_keyed, marks=pytest.mark.ci)]
)
def test_sums_timers_and_the_watermark_go_on(
    spark: SparkSession, tmp_path: Path, before: Query, migrate: Callable[[PreviousState], DataFrame]
) -> None:
    landing, old, new = tmp_path / "landing", tmp_path / "old", tmp_path / "new"
    found: list[tuple[str, int, int]] = []

    def sink(batch: DataFrame, _: int) -> None:
        found.extend((row.key, row.total, row["last"] // 1000 - int(DAY.timestamp())) for row in batch.collect())

    def source() -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(landing))

    _land(landing, range(2))
    run(before(source()), sink, old).awaitTermination()
    storage = LocalStorage(tmp_path)
    batch = CheckpointReader(storage, "old").last_commit()
    assert batch is not None
    initial = migrate(PreviousState(spark, str(old), batch, 1))
    names, state = run_without_input(
        spark,
        {"source": source().schema},
        lambda opener: _keyed(opener("source", SOURCE), initial),
        str(new),
        tmp_path / "empty",
    )
    assert names == ["source"]
    assert [one.operatorName.startswith("transformWithState") and one.numRowsTotal > 0 for one in state] == [True]
    for log in ("offsets", "commits"):
        (new / log / ".0.crc").unlink(missing_ok=True)
    (new / "offsets/0").write_bytes(
        continued_offsets((old / f"offsets/{batch}").read_bytes(), (new / "offsets/0").read_bytes())
    )
    (new / "commits/0").write_bytes((old / f"commits/{batch}").read_bytes())
    for path in (new / "sources/0").iterdir():
        path.unlink()
    for path in (old / "sources/0").iterdir():
        (new / "sources/0" / path.name).write_bytes(path.read_bytes())

    _land(landing, range(2, 4))
    # Without an initial state, as the driver runs it.
    run(_keyed(source()), sink, new).awaitTermination()
    assert sorted(found) == EMITTED


def test_initial_state_in_event_time_must_say_how_long_it_lives(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS key", "timestamp AS at", "value")
    initial = spark.createDataFrame([("a", 1, 2)], "key string, total long, last long")
    given: dict[str, Any] = {"buckets": 8, "ttl": timedelta(hours=1), "time": "event", "event_time": "at"}
    with pytest.raises(StreamwardenError, match="initial lacks expires_at"):
        with_keyed_state(rows.withWatermark("at", "1 second"), ["key"], Keyed(), initial=initial, **given)


def test_a_key_of_another_type_finds_its_state(spark: SparkSession, tmp_path: Path) -> None:
    """The hash of 7 depends on its type."""

    def query(rows: DataFrame, initial: DataFrame | None = None) -> DataFrame:
        keyed = rows.select(F.col("value").alias("key"), "at", "value")
        return with_keyed_state(keyed, ["key"], Keyed(), buckets=8, ttl=timedelta(days=9), initial=initial)

    _land(tmp_path / "landing", range(1))
    source = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "landing"))
    initial = spark.createDataFrame([(7, 100, 0)], "key int, total long, last long")
    run_without_input(
        spark,
        {"source": source.schema},
        lambda opener: query(opener("source", SOURCE), initial),
        str(tmp_path / "new"),
        tmp_path / "empty",
    )
    stored = PreviousState(spark, str(tmp_path / "new"), 0, 1).keyed({"key": pa.int64()}, LAYOUT.fields)
    hashed = spark.createDataFrame([(7,)], "key long").select(F.pmod(F.xxhash64("key"), F.lit(8))).first()
    buckets = PreviousState(spark, str(tmp_path / "new"), 0, 1).variable(STATE_NAME).select("key.bucket")
    assert [row.key for row in stored.collect()] == [7]
    assert [row.bucket for row in buckets.collect()] == [hashed[0] if hashed else None]
