"""zone_running_stats and card_statistics in real queries: equal to a batch computation, also after a failed batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nyc_taxi.demo.statistics import (
    compare_card_statistics,
    compare_zone_running_stats,
    expected_card_statistics,
    expected_zone_running_stats,
)
from pyspark.sql import SparkSession

from spark_jobs import card_statistics, zone_running_stats
from streamwarden.driver.job_api import JobSettings
from tests.conftest import TripMaker
from tests.spark.job_runs import (
    Table,
    as_trips,
    in_order_of_arrival,
    rows_read,
    run,
    run_until,
    stream_delta,
    write_table,
)
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

JOBS: dict[str, tuple[Any, tuple[str, ...], Callable[[pa.Table], pa.Table], Callable[..., Any]]] = {
    "zones": (zone_running_stats, ("zone_id",), expected_zone_running_stats, compare_zone_running_stats),
    "cards": (card_statistics, ("card_id",), expected_card_statistics, compare_card_statistics),
}


@pytest.mark.parametrize("name", ["zones", pytest.param("cards", marks=[pytest.mark.long, pytest.mark.ci])])
def test_equal_to_batch_with_trips_in_another_order(
    spark: SparkSession, tmp_path: Path, real_trips: Path | None, make_trips: TripMaker, name: str
) -> None:
    job, keys, expected, compare = JOBS[name]
    trips = real_days(real_trips, datetime(2023, 3, 8), days=1) if real_trips else as_trips(make_trips(1200, cards=60))
    parts = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=5), batches=4)
    source = write_table(tmp_path / "trips", parts)
    table, checkpoint = Table(keys, fail_on={2}), tmp_path / "checkpoint"
    settings = JobSettings(watermark=None, ttl=timedelta(days=1), options=None, buckets=8)
    rows = job.transform(stream_delta(spark, source), settings)
    query = run(rows, table, checkpoint, processingTime="200 milliseconds")
    with pytest.raises(Exception, match="the sink fails"):
        query.awaitTermination(120)
    left = trips.num_rows - rows_read(query)
    run_until(rows, table, checkpoint, lambda query: rows_read(query) == left)
    first, again = (found for batch, found in table.tries if batch == 2)
    assert first == again
    difference = compare(expected(trips), table.arrow())
    assert difference.equal, str(difference)
    # The made trips are of five zones.
    assert difference.expected > (20 if real_trips else 4)
