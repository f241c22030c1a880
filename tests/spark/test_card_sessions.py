"""card_sessions in real queries: equal to a batch computation, expired by its ttl, closed by its timers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nyc_taxi.demo.batch import compare_card_sessions, expected_card_sessions
from pyspark.sql import SparkSession

from spark_jobs import card_sessions
from spark_jobs.card_sessions import Options
from streamwarden.driver.job_api import DELETED, JobSettings
from streamwarden.driver.state_rows import count_keys
from tests.conftest import DAY, TripMaker
from tests.spark.job_runs import (
    Table,
    as_trips,
    batch_time,
    in_order_of_arrival,
    rows_read,
    run,
    run_until,
    stream_delta,
    wait_until,
    write_table,
)
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

KEYS = ("card_id", "session_start")


def settings(ttl: timedelta = timedelta(hours=24), **options: str) -> JobSettings:
    return JobSettings(watermark=None, ttl=ttl, options=Options.model_validate(options), buckets=16)


def trip(card: str | None, minutes: float, *, total: float | None = 1.0, zones: tuple[int, int] = (7, 8)) -> pa.Table:
    pickup = DAY + timedelta(minutes=minutes)
    return pa.table(
        {
            "lpep_pickup_datetime": pa.array([pickup], pa.timestamp("us", "UTC")),
            "lpep_dropoff_datetime": pa.array([pickup], pa.timestamp("us", "UTC")),
            "PULocationID": pa.array([zones[0]], pa.int32()),
            "DOLocationID": pa.array([zones[1]], pa.int32()),
            "fare_amount": pa.array([1.0]),
            "total_amount": pa.array([total], pa.float64()),
            "card_id": pa.array([card], pa.string()),
        }
    )


def test_equal_to_batch_with_trips_that_come_late(
    spark: SparkSession, tmp_path: Path, real_trips: Path | None, make_trips: TripMaker
) -> None:
    trips = real_days(real_trips, datetime(2023, 3, 8), days=1) if real_trips else as_trips(make_trips(1200, cards=60))
    parts = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=5), batches=6)
    source = write_table(tmp_path / "trips", parts)
    table, checkpoint = Table(KEYS, fail_on={3}), tmp_path / "checkpoint"
    job = card_sessions.transform(stream_delta(spark, source), settings(close_after="1s"))
    query = run(job, table, checkpoint, processingTime="200 milliseconds")
    with pytest.raises(Exception, match="the sink fails"):
        query.awaitTermination(300)
    left = trips.num_rows - rows_read(query)

    def done(query: object) -> bool:
        return rows_read(query) == left and {row["status"] for row in table.rows.values()} == {"closed"}  # type: ignore[arg-type]

    run_until(job, table, checkpoint, done)
    first, again = (rows for batch, rows in table.tries if batch == 3)
    assert first == again, "a replayed batch says the same, its timers too"
    difference = compare_card_sessions(expected_card_sessions(trips), table.arrow())
    assert difference.equal, str(difference)
    assert max(row["trips"] for row in table.rows.values()) > 1
    assert any(DELETED + "=True" in row for _, rows in table.tries for row in rows), "sessions did join"
    last = max(batch for batch, _ in table.tries)
    cards = pc.count_distinct(trips["card_id"]).as_py()
    assert count_keys(spark, str(checkpoint), last) == {0: cards}


@pytest.mark.long
def test_expired_state_is_never_returned(spark: SparkSession, tmp_path: Path) -> None:
    # On a machine whose batches take longer than the time to live, all expires, whatever one does.
    for seconds in (8, 24, 72):
        if _expires(spark, tmp_path / str(seconds), timedelta(seconds=seconds)):
            return
    pytest.fail("no batch was quick enough to renew state before it expired")


def _expires(spark: SparkSession, folder: Path, ttl: timedelta) -> bool:
    """Return whether batches were quick enough to see it.

    Two cards start together; one is touched again before the ttl ends. The third trip, within the gap of both, finds
    the state of that one only.
    """
    checkpoint, path, table = folder / "checkpoint", folder / "trips", Table(KEYS)
    source = write_table(path, [pa.concat_tables([trip("untouched", 0), trip("touched", 0, zones=(1, 2))])])
    job = card_sessions.transform(stream_delta(spark, source), settings(ttl, close_after="1s"))
    query = run(job, table, checkpoint, processingTime="200 milliseconds")

    def took(rows: int) -> datetime:
        """Return the time of the batch that brought the rows read to this number."""
        wait_until(query, lambda query: rows_read(query) == rows)
        batch = next(done.batchId for done in reversed(query.recentProgress) if done.numInputRows)
        return batch_time(checkpoint, batch)

    try:
        first = took(2)
        _sleep_until(first + ttl / 2)
        write_table(path, [trip("touched", 5, zones=(2, 3))])
        second = took(3)
        _sleep_until(first + ttl + timedelta(milliseconds=500))
        write_table(path, [pa.concat_tables([trip("untouched", 10), trip("touched", 10, zones=(4, 4))])])
        third = took(5)
        if second - first >= ttl or third - second >= ttl:
            return False
        assert third - first > ttl
        sessions = {(card, start): row["trips"] for (card, start), row in table.rows.items()}
        start, late, later = (DAY.replace(tzinfo=None) + timedelta(minutes=minutes) for minutes in (0, 5, 10))
        assert sessions["untouched", start] == sessions["untouched", later] == 1
        # All of its state was renewed by the touch, zones too.
        assert sessions["touched", start] == 3
        assert table.rows["touched", start]["zones"] == [1, 2, 3, 4]
        assert ("touched", late) not in sessions
        # And it goes from the store: nothing is left of cards that nobody uses.
        wait_until(
            query, lambda query: query.lastProgress.stateOperators[0].numRowsTotal == 0, timeout=60 + ttl.seconds
        )
        return True
    finally:
        query.stop()


def _sleep_until(moment: datetime) -> None:
    time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


def test_timers_close_sessions_and_a_late_trip_opens_one_again(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, path, table = tmp_path / "checkpoint", tmp_path / "trips", Table(KEYS)
    parts = [trip("a", 0, total=0.1), trip(None, 0), trip("b", 0, total=None, zones=(9, 9))]
    source = write_table(path, [pa.concat_tables(parts)])
    job = card_sessions.transform(stream_delta(spark, source), settings(close_after="3s"))
    query = run(job, table, checkpoint, processingTime="200 milliseconds")

    def told(card: str) -> list[str]:
        # Of every batch: an open session may be there for a moment only.
        rows = [row for _, rows in table.tries for row in rows if f"card_id='{card}'" in row]
        return ["open" if "'open'" in row else "closed" for row in rows]

    wait_until(query, lambda _: told("a") == told("b") == ["open", "closed"])
    write_table(path, [trip("a", 29, total=0.2)])
    wait_until(query, lambda _: told("a") == ["open", "closed"] * 2)
    assert told("b") == ["open", "closed"]
    query.stop()
    (row,) = (row for (card, _), row in table.rows.items() if card == "a")
    assert (row["trips"], str(row["total_amount"])) == (2, "0.30")
    (row,) = (row for (card, _), row in table.rows.items() if card == "b")
    assert (row["trips"], str(row["total_amount"]), row["zones"]) == (1, "0.00", [9])
    # Closing took no more rows than there were sessions to close: once each.
    closings = [row for _, rows in table.tries for row in rows if "'closed'" in row]
    assert len(closings) == 3


def test_columns_are_those_declared(spark: SparkSession, tmp_path: Path) -> None:
    path = write_table(tmp_path / "trips", [trip("a", 0)])
    found = card_sessions.transform(stream_delta(spark, path), settings())
    declared = [(column.name, column.dataType) for column in card_sessions.OUTPUTS["main"]]
    assert [(column.name, column.dataType) for column in found.schema if column.name != DELETED] == declared
