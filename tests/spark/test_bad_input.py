"""Faulty events stop no job, change no result, and are in the quarantine with a reason, each once."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from nyc_taxi.streams.payments import payments_of
from nyc_taxi.streams.series import trades
from pyspark.sql import SparkSession

from spark_jobs import card_velocity, dedup_events, rolling_metrics, zone_features
from streamwarden.driver.job_api import JobSettings
from tests.conftest import TripMaker
from tests.spark.job_runs import as_trips, run, stream_delta, write_table
from tests.spark.test_patterns import Outputs

pytestmark = pytest.mark.spark

NAN, INFINITY = float("nan"), float("inf")
FUTURE, PAST = datetime(2399, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)
LONG = "x" * 2**20


def changed(rows: pa.Table, changes: list[dict[str, Any]]) -> pa.Table:
    """Return one row for each set of changes."""
    first = rows.slice(0, 1).to_pylist()[0]
    return pa.Table.from_pylist([{**first, **one} for one in changes], rows.schema)


EVENTS: dict[str, tuple[ModuleType, JobSettings, dict[str, tuple[str, ...]], dict[str, list[dict[str, Any]]]]] = {
    "payments": (
        dedup_events,
        JobSettings(watermark=timedelta(hours=3), ttl=None, options=None),
        {"main": ("payment_id",), "quarantine": ("raw",)},
        {
            "payment_id is missing": [{"payment_id": None}],
            "payment_id is longer than 1024 characters": [{"payment_id": LONG}],
            "settled_at is missing": [{"settled_at": None}],
            "settled_at is not plausible": [{"settled_at": FUTURE}, {"settled_at": PAST}],
            "amount is no number below 1e+09": [
                {"amount": NAN},
                {"amount": INFINITY},
                {"amount": -INFINITY},
                {"amount": None},
                {"amount": -1e12},
            ],
        },
    ),
    "trades": (
        rolling_metrics,
        JobSettings(
            watermark=timedelta(seconds=6),
            ttl=None,
            buckets=8,
            options=rolling_metrics.Options(
                key="symbol", time="at", value="price", weight="size", window="60s", every="5s"
            ),
        ),
        {"main": ("key", "window_start"), "alerts": ("key", "at"), "quarantine": ("raw",)},
        {
            "symbol is missing": [{"symbol": None}],
            "symbol is longer than 1024 characters": [{"symbol": LONG}],
            "at is missing": [{"at": None}],
            "at is not plausible": [{"at": FUTURE}, {"at": PAST}],
            "price is no number below 1e+09', 'price times size is no number below 1e+09": [
                {"price": NAN},
                {"price": INFINITY},
                {"price": None},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", ["payments", pytest.param("trades", marks=pytest.mark.long)])
def test_faulty_events_are_quarantined_and_change_no_result(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker, name: str
) -> None:
    job, settings, keys, faults = EVENTS[name]
    good = payments_of(as_trips(make_trips(60, cards=5))) if name == "payments" else trades(600, seed=3)
    bad = changed(good, [one for changes in faults.values() for one in changes])
    half = good.num_rows // 2
    found = {}
    for place, parts in {
        "clean": [good.slice(0, half), good.slice(half)],
        # A batch of faults alone, and an empty one.
        "faulty": [pa.concat_tables([good.slice(0, half), bad]), bad, good.slice(0, 0), good.slice(half)],
    }.items():
        source = write_table(tmp_path / place, parts)
        sink = Outputs(job.outputs, **keys)
        sink._fail_on.clear()
        run(job.transform(stream_delta(spark, source), settings), sink, tmp_path / f"{place}-c").awaitTermination()
        found[place] = sink
    assert found["clean"].tables["main"].rows
    assert found["faulty"].tables["main"].rows == found["clean"].tables["main"].rows
    # Two batches have the faults.
    tries = found["faulty"].tables["quarantine"].tries
    refused = Counter(match for _, rows in tries for row in rows for match in re.findall(r"reasons=\['(.*?)'\]", row))
    assert refused == {reason: 2 * len(changes) for reason, changes in faults.items()}
    assert all(len(row["raw"]) < 10_000 for row in found["faulty"].tables["quarantine"].rows.values())


TRIPS: dict[str, tuple[ModuleType, JobSettings, tuple[str, ...]]] = {
    "zone_features": (
        zone_features,
        JobSettings(watermark=timedelta(hours=2), ttl=None, options=None, buckets=8),
        ("zone_id",),
    ),
    "card_velocity": (
        card_velocity,
        JobSettings(watermark=timedelta(hours=2), ttl=None, options=None, buckets=8),
        ("card_id", "window_start"),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["zone_features", "card_velocity"])
def test_trips_without_key_or_time_are_left_out_and_stop_nothing(
    spark: SparkSession, tmp_path: Path, make_trips: TripMaker, name: str
) -> None:
    """`ingest_trips` quarantines such trips, so only a table of another origin has them."""
    job, settings, keys = TRIPS[name]
    good = as_trips(make_trips(200, cards=10))
    bad = changed(
        good,
        [
            {"PULocationID": None, "card_id": None},
            {"lpep_pickup_datetime": None, "PULocationID": None, "card_id": None},
        ],
    )
    output = "windows" if name == "card_velocity" else "main"
    found = []
    for place, parts in {"clean": [good], "faulty": [pa.concat_tables([bad, good])]}.items():
        source = write_table(tmp_path / place, parts)
        sink = Outputs(getattr(job, "outputs", lambda batch: {"main": batch}), **{output: keys})
        sink._fail_on.clear()
        run(job.transform(stream_delta(spark, source), settings), sink, tmp_path / f"{place}-c").awaitTermination()
        found.append(sink.tables[output].rows)
    assert found[0] and found[0] == found[1]
