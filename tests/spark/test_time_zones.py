"""The three jobs in processes of other time zones, over the hours in which clocks change: the zone does not matter.

One JVM serves all zones. What a zone is to a process is switched in each of the three: this one, the JVM and the Python
workers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nyc_taxi.demo.batch import (
    compare_card_sessions,
    compare_trips,
    compare_zone_windows,
    expected_card_sessions,
    expected_zone_windows,
    read_landed,
)
from pyspark.sql import SparkSession

from spark_jobs import card_sessions, ingest_trips, zone_windows
from streamwarden.driver.job_api import JobSettings
from streamwarden.quality import check
from streamwarden.store.config import load_job
from tests.conftest import DAY, REPOSITORY, TripMaker
from tests.spark.job_runs import (
    delta_tables,
    read_table,
    rows_read,
    run,
    run_until,
    stream_delta,
    stream_files,
    write_table,
)

pytestmark = pytest.mark.spark

CONFIG = REPOSITORY / "config"
HOUR = timedelta(hours=1)

# UTC: when daylight saving begins and ends, in order of time. Behind the end lies the hour that clocks show twice; at
# Lord Howe it is half an hour. Where clocks never change, New York's.
NEW_YORK = ("2025-03-09T07:00", "2025-11-02T06:00")
CHANGES = {
    "America/New_York": NEW_YORK,
    "Europe/Berlin": ("2025-03-30T01:00", "2025-10-26T01:00"),
    "Asia/Kolkata": NEW_YORK,
    "Australia/Lord_Howe": ("2025-04-05T15:00", "2025-10-04T15:30"),
    "UTC": NEW_YORK,
}


@contextmanager
def in_zone(spark: SparkSession, name: str) -> Iterator[None]:
    """Let this process, the JVM and its Python workers be in a time zone."""
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    workers = spark.sparkContext.environment
    before, of_jvm, of_workers = os.environ.get("TZ"), zones.getDefault(), workers.get("TZ")

    def switch(process: str | None, jvm: Any, worker: str | None) -> None:
        zones.setDefault(jvm)
        for variables, value in ((os.environ, process), (workers, worker)):
            variables.pop("TZ", None)
            if value is not None:
                variables["TZ"] = value
        time.tzset()

    switch(name, zones.getTimeZone(name), name)
    try:
        yield
    finally:
        switch(before, of_jvm, of_workers)


@pytest.mark.long
def test_equal_to_batch_over_the_hour_that_clocks_show_twice(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker
) -> None:
    _equal_to_batch(spark, tmp_path, make_trips, "America/New_York", NEW_YORK[1:])


@pytest.mark.long
@pytest.mark.parametrize("zone", CHANGES)
def test_equal_to_batch_over_the_hours_in_which_clocks_change(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker, zone: str
) -> None:
    _equal_to_batch(spark, tmp_path, make_trips, zone, CHANGES[zone])


def _equal_to_batch(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker, zone: str, changes: Sequence[str]
) -> None:
    landing, tables, trips = tmp_path / "landing", tmp_path / "tables", tmp_path / "tables" / "trips"
    landing.mkdir()
    files = _files(make_trips, changes)
    for number, file in enumerate(files):
        pq.write_table(file, landing / f"{number:03d}.parquet")
        # Spark takes files by their time.
        os.utime(landing / f"{number:03d}.parquet", (number + 1, number + 1))
    with in_zone(spark, zone):
        _run_jobs(spark, landing, tables, tmp_path, batches=len(files))

    spec = load_job("ingest_trips", config=CONFIG)
    options = ingest_trips.Options.model_validate(spec.options)
    landed = read_landed(landing.iterdir(), earliest=options.earliest, latest=options.latest)
    assert landed.duplicates >= 80 * len(changes)
    windows = read_table(tables / "zone_windows")
    for found in (
        compare_trips(landed.trips, read_table(trips)),
        compare_zone_windows(expected_zone_windows(landed.trips), windows),
        compare_card_sessions(expected_card_sessions(landed.trips), read_table(tables / "card_sessions")),
    ):
        assert found.equal, str(found)
    newest = pc.max(landed.trips["lpep_pickup_datetime"]).as_py()
    passed = newest - (load_job("zone_windows", config=CONFIG).watermark or timedelta(0))
    ends = [end.replace(tzinfo=None) for end in windows["window_end"].to_pylist()]
    assert windows["is_final"].to_pylist() == [end <= passed for end in ends]
    assert len(changes) == 1 or True in windows["is_final"].to_pylist()


def test_a_bound_of_an_expectation_is_utc(spark: SparkSession, tmp_path: Path) -> None:
    # The largest of a column is compared by Great Expectations, in Python, and not by Spark.
    bound = {"column": "at", "min_value": "2025-11-02T06:40:00", "max_value": "2025-11-02T06:40:00"}
    expectation = {
        "type": "expect_column_max_to_be_between",
        "kwargs": bound,
        "severity": "critical",
        "description": "The newest is of 06:40.",
        "meta": {"id": "times.newest"},
    }
    suite = {"name": "times", "meta": {"keys": ["at"]}, "expectations": [expectation]}
    suites = tmp_path / "expectations"
    suites.mkdir()
    (suites / "times.json").write_text(json.dumps(suite))
    at = pa.array([datetime(2025, 11, 2, 6, 40)], pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    write_table(tmp_path / "times", [pa.table({"at": at})])
    with in_zone(spark, "America/New_York"):
        run = check(tables_dir=tmp_path, expectations_dir=suites, results_dir=tmp_path / "quality", spark=spark)
        assert os.environ["TZ"] == "America/New_York", "left as it was"
    (table,) = run.tables
    assert (table.status, table.expectations[0].observed) == ("passed", "2025-11-02T06:40:00Z")


def _files(make_trips: TripMaker, changes: Sequence[str]) -> list[pa.Table]:
    """Make three files for each change: the hour before it, the hour after it, and both once more with new trips."""
    files = []
    for number, text in enumerate(changes):
        start = datetime.fromisoformat(text) - HOUR - DAY.replace(tzinfo=None)
        hours = [
            _moved(make_trips(rows, hours=1, cards=8, seed=10 * number + seed), start + after)
            for seed, (rows, after) in enumerate([(40, timedelta(0)), (40, HOUR), (10, timedelta(0)), (10, HOUR)])
        ]
        files += [hours[0], hours[1], pa.concat_tables(hours)]
    return files


def _moved(trips: pa.Table, by: timedelta) -> pa.Table:
    for name in ("lpep_pickup_datetime", "lpep_dropoff_datetime"):
        moved = pc.add(trips[name], pa.scalar(by, pa.duration("us")))
        trips = trips.set_column(trips.schema.get_field_index(name), name, moved)
    return trips


def _run_jobs(spark: SparkSession, landing: Path, tables: Path, checkpoints: Path, *, batches: int) -> None:
    """Run the jobs one after the other, a file of the first a batch of each."""
    spec = load_job("ingest_trips", config=CONFIG)
    settings = JobSettings(watermark=None, ttl=None, options=ingest_trips.Options.model_validate(spec.options))
    ingest = ingest_trips.transform(stream_files(spark, landing, files=1), settings)
    sink = delta_tables(spark, tables, spec, ingest_trips, checkpoints / "ingest")
    run(ingest, sink, checkpoints / "ingest").awaitTermination()
    assert sink.counts(batches - 1) is not None

    spec = load_job("zone_windows", config=CONFIG)
    settings = JobSettings(
        watermark=spec.watermark, ttl=None, options=zone_windows.Options.model_validate(spec.options)
    )
    # More than the files of one commit.
    source = str(tables / "trips")
    windows = zone_windows.transform(stream_delta(spark, source, files=2), settings)
    sink = delta_tables(spark, tables, spec, zone_windows, checkpoints / "windows")
    run(windows, sink, checkpoints / "windows").awaitTermination()

    spec = load_job("card_sessions", config=CONFIG)
    options = card_sessions.Options.model_validate(spec.options)
    settings = JobSettings(watermark=None, ttl=spec.state.ttl, options=options, buckets=16)
    sessions = card_sessions.transform(stream_delta(spark, source, files=2), settings)
    sink = delta_tables(spark, tables, spec, card_sessions, checkpoints / "sessions")
    all_rows = read_table(tables / "trips").num_rows
    run_until(sessions, sink, checkpoints / "sessions", lambda query: rows_read(query) == all_rows)
