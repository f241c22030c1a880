"""zone_windows on Spark: equal to a batch computation, and late trips counted to the last one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import zone_windows
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.storage import LocalStorage
from tests.conftest import TripMaker
from tests.spark.job_runs import (
    Table,
    as_trips,
    batch_watermark,
    in_order_of_arrival,
    late_by_batch,
    run,
    stream_delta,
    write_table,
)

pytestmark = pytest.mark.spark

WATERMARK = timedelta(hours=2)
KEYS = ("window_start", "zone_id")


def settings(watermark: timedelta | None = WATERMARK, **options: Any) -> JobSettings:
    return JobSettings(watermark=watermark, ttl=None, options=zone_windows.Options.model_validate(options))


def test_late_trips_are_counted_exactly_across_a_restart(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(3000, hours=30))
    parts = in_order_of_arrival(trips, seed=5, late_share=0.2, latest=timedelta(hours=9), batches=10)
    table, checkpoint = Table(KEYS), tmp_path / "checkpoint"
    late: dict[int, int] = {}
    spark_says = 0
    for half in (parts[:5], parts[5:]):
        path = write_table(tmp_path / "trips", half)
        query = run(zone_windows.transform(stream_delta(spark, path), settings()), table, checkpoint)
        query.awaitTermination()
        late |= late_by_batch(query, checkpoint)
        spark_says += sum(
            operator.numRowsDroppedByWatermark for done in query.recentProgress for operator in done.stateOperators
        )
    assert sorted(late) == list(range(12))
    assert sum(late.values()) > 100
    assert sum(row["trips"] for row in table.rows.values()) + sum(late.values()) == trips.num_rows
    assert spark_says < sum(late.values()), "Spark counts groups of rows; if that changed, the observation may go"

    # Spark's rule, applied by hand: a trip is dropped if the watermark of the batch before reached its window's end.
    # Batches 5 and 11, the last of each run, read nothing: they are there to evict state.
    kept = []
    for batch, part in zip([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], parts, strict=True):
        passed = datetime.fromtimestamp(batch_watermark(checkpoint, batch - 1) / 1000, UTC)
        ends = [
            pickup.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
            for pickup in part["lpep_pickup_datetime"].to_pylist()
        ]
        kept.append(part.filter(pa.array([end > passed for end in ends])))
    difference = compare_zone_windows(expected_zone_windows(pa.concat_tables(kept)), table.arrow())
    assert difference.equal, str(difference)


def test_equal_to_batch_with_real_trips_that_come_late(spark: SparkSession, tmp_path: Path, data_dir: Path) -> None:
    trips = real_days(data_dir, datetime(2023, 3, 8), days=2)
    _equal_to_batch(spark, tmp_path, trips)


def test_equal_to_batch_with_generated_trips(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    # Some are without fare or total, all in one window and zone among them.
    landed = make_trips(2000, hours=40)
    fares = landed["fare_amount"].to_pylist()
    totals = landed["total_amount"].to_pylist()
    landed = landed.set_column(9, "fare_amount", pa.array([None if i % 3 == 0 else x for i, x in enumerate(fares)]))
    landed = landed.set_column(16, "total_amount", pa.array([None if i % 5 == 0 else x for i, x in enumerate(totals)]))
    _equal_to_batch(spark, tmp_path, as_trips(landed), window="30m")


def test_the_batch_that_spark_owes_after_a_restart_is_begun_for_it(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(500, hours=20)).sort_by("lpep_pickup_datetime")
    rows = stream_delta(spark, write_table(tmp_path / "trips", [trips]))
    table, checkpoint = Table(KEYS), tmp_path / "checkpoint"
    storage = LocalStorage(tmp_path)
    reader = CheckpointReader(storage, "checkpoint")

    def go_on(**trigger: Any) -> StreamingQuery:
        query = run(zone_windows.transform(rows, settings()), table, checkpoint, **trigger)
        query.awaitTermination()
        return query

    # Of one batch: it ends before the one that is to make windows final.
    assert go_on(once=True).lastProgress.stateOperators[0].numRowsRemoved == 0
    go_on()
    assert reader.last_commit() == 0, "if Spark runs it by itself, begin_no_data_batch may go"
    assert begin_no_data_batch(storage, "checkpoint") == 1
    done = go_on().lastProgress
    assert (reader.last_offset(), reader.last_commit()) == (1, 1)
    assert (done.batchId, done.numInputRows) == (1, 0) and done.stateOperators[0].numRowsRemoved > 50
    assert begin_no_data_batch(storage, "checkpoint") is None


def _equal_to_batch(spark: SparkSession, tmp_path: Path, trips: pa.Table, **options: str) -> None:
    parts = in_order_of_arrival(trips, seed=3, late_share=0.25, latest=timedelta(minutes=110), batches=8)
    path = write_table(tmp_path / "trips", parts)
    table, checkpoint = Table(KEYS, fail_on={3}), tmp_path / "checkpoint"
    given = settings(**options)
    query = run(zone_windows.transform(stream_delta(spark, path), given), table, checkpoint)
    with pytest.raises(Exception, match="the sink fails"):
        query.awaitTermination()
    query = run(zone_windows.transform(stream_delta(spark, path), given), table, checkpoint)
    query.awaitTermination()
    first, again = (rows for batch, rows in table.tries if batch == 3)
    assert first == again
    assert not any(late_by_batch(query, checkpoint).values())
    assert isinstance(given.options, zone_windows.Options)
    difference = compare_zone_windows(expected_zone_windows(trips, window=given.options.window), table.arrow())
    assert difference.equal, str(difference)
    assert difference.expected > 300


def real_days(data_dir: Path, first: datetime, *, days: int) -> pa.Table:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from nyc_taxi.trips.cards import add_card_ids

    path = data_dir / "green_tripdata_2023-03.parquet"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    trips = pq.read_table(path)
    pickup = trips["lpep_pickup_datetime"]
    trips = trips.filter(pc.and_(pc.greater_equal(pickup, first), pc.less(pickup, first + timedelta(days=days))))
    return as_trips(add_card_ids(trips))


def test_columns_are_those_declared(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    path = write_table(tmp_path / "trips", [as_trips(make_trips(1))])
    found = zone_windows.transform(stream_delta(spark, path), settings())
    declared = [(column.name, column.dataType) for column in zone_windows.OUTPUTS["main"] if column.name != "is_final"]
    assert [(column.name, column.dataType) for column in found.schema] == declared


def test_it_needs_a_watermark(spark: SparkSession) -> None:
    with pytest.raises(StreamwardenError, match="watermark") as caught:
        zone_windows.transform(spark.range(1), settings(None))
    assert caught.value.code == "CONFIG_INVALID"


@pytest.mark.parametrize("window", ["0s", "1500ms", "hourly"])
def test_windows_are_whole_seconds(window: str) -> None:
    with pytest.raises(ValueError, match="window"):
        zone_windows.Options.model_validate({"window": window})
