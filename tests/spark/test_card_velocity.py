"""card_velocity in real queries: windows and alerts equal to a batch computation, late trips counted."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import card_velocity
from spark_jobs.card_velocity import Options
from streamwarden.driver.job_api import JobSettings
from streamwarden.keyed_state.dataframe import KEYED_STATE
from tests.conftest import TripMaker
from tests.spark.job_runs import Table, as_trips, batch_watermark, in_order_of_arrival, run, stream_delta, write_table
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

# Bursts that a day of trips on some dozens of cards has.
OPTIONS = Options(trips=3, within="15m", window="20m", every="5m")  # type: ignore[arg-type]
LATEST = timedelta(hours=2)


class Tables:
    """Both outputs of the job."""

    def __init__(self, fail_on: set[int]) -> None:
        self.alerts = Table(("card_id", "alert_at"), fail_on=fail_on)
        self.windows = Table(("card_id", "window_start"))

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        # As the driver does: a second computation would count again what is observed.
        split = card_velocity.outputs(batch.localCheckpoint())
        self.windows(split["windows"], batch_id)
        self.alerts(split["main"], batch_id)


@pytest.mark.long
def test_equal_to_batch_with_real_trips_that_come_late(spark: SparkSession, tmp_path: Path, data_dir: Path) -> None:
    _equal_to_batch(spark, tmp_path, real_days(data_dir, datetime(2023, 3, 8), days=1), 3 * LATEST)


@pytest.mark.long
@pytest.mark.ci
def test_equal_to_batch_with_generated_trips_but_for_late_ones(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker
) -> None:
    assert _equal_to_batch(spark, tmp_path, as_trips(make_trips(1500, cards=30)), LATEST / 4)


def _equal_to_batch(spark: SparkSession, tmp_path: Path, trips: pa.Table, watermark: timedelta) -> int:
    """Compare the outputs with a batch computation over the trips that were not late; return how many were."""
    parts = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=LATEST, batches=4)
    source = write_table(tmp_path / "trips", parts)
    tables, checkpoint = Tables(fail_on={2}), tmp_path / "checkpoint"
    settings = JobSettings(watermark=watermark, ttl=None, options=OPTIONS, buckets=8)
    job = card_velocity.transform(stream_delta(spark, source), settings)
    with pytest.raises(Exception, match="the sink fails"):
        run(job, tables, checkpoint).awaitTermination()
    query = run(job, tables, checkpoint)
    query.awaitTermination()
    first, again = (rows for batch, rows in tables.alerts.tries if batch == 2)
    assert first == again

    in_time = [part.filter(_after(part, batch_watermark(checkpoint, batch))) for batch, part in enumerate(parts)]
    counted: dict[int, Any] = {done.batchId: done.observedMetrics[KEYED_STATE] for done in query.recentProgress}
    with_cards = [len(part) - part["card_id"].null_count for part in parts]
    late = [all_ - len(some) + some["card_id"].null_count for all_, some in zip(with_cards, in_time, strict=True)]
    assert [counted[batch]["late"] for batch in (2, 3)] == late[2:]

    kept = pa.concat_tables(in_time)
    expected = expected_card_velocity(kept, window=OPTIONS.window, every=OPTIONS.every)
    assert expected.num_rows > 100
    difference = compare_card_velocity(expected, tables.windows.arrow())
    assert difference.equal, str(difference)
    difference = compare_card_alerts(kept, tables.alerts.arrow(), burst=OPTIONS.trips, within=OPTIONS.within)
    assert difference.equal, str(difference)
    assert difference.expected > 5
    return sum(late)


def _after(part: pa.Table, watermark_ms: int) -> pa.Array:
    pickup_ms = part["lpep_pickup_datetime"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return pc.greater(pickup_ms, watermark_ms)


def test_columns_are_those_declared(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    path = write_table(tmp_path / "trips", [as_trips(make_trips(5))])
    settings = JobSettings(watermark=LATEST, ttl=None, options=None, buckets=8)
    found = card_velocity.outputs(card_velocity.transform(stream_delta(spark, path), settings))
    for name, declared in card_velocity.OUTPUTS.items():
        columns = [(one.name, one.dataType) for one in declared if one.name != "is_final"]
        assert [(one.name, one.dataType) for one in found[name].schema] == columns
