"""The leaderboard, feature vectors, rolling metrics and deduplication in real queries, equal to a batch computation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.compare import Difference, compare_rows
from nyc_taxi.demo.patterns import (
    compare_rolling_alerts,
    compare_rolling_windows,
    compare_zone_features,
    compare_zone_leaderboard,
    expected_rolling_alerts,
    expected_rolling_windows,
    expected_zone_features,
    expected_zone_leaderboard,
)
from nyc_taxi.streams.payments import payments_of
from nyc_taxi.streams.series import sensor_readings, trades
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import dedup_events, rolling_metrics, zone_features, zone_leaderboard
from streamwarden.driver.job_api import JobSettings
from streamwarden.driver.pipeline.source import job_rows, missing_source
from streamwarden.model.spec import LookupSpec
from streamwarden.store.workspace import open_workspace
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import (
    Table,
    as_trips,
    batch_watermark,
    in_order_of_arrival,
    rows_read,
    run,
    stream_delta,
    wait_until,
    write_table,
)
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

LATEST = timedelta(hours=2)
WATERMARK = timedelta(hours=3)


class Outputs:
    """The outputs of a job, each as an upserting or an appending table."""

    def __init__(self, split: Callable[[DataFrame], Any], **keys: tuple[str, ...]) -> None:
        self._split = split
        self.tables = {name: Table(some) for name, some in keys.items()}
        self._fail_on = {1}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        split = self._split(batch.localCheckpoint())
        for name, table in self.tables.items():
            table(split[name], batch_id)
        if batch_id in self._fail_on:
            self._fail_on.discard(batch_id)
            raise RuntimeError("the sink fails, for once")


def run_twice(rows: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Run a query whose batch 1 fails once."""
    with pytest.raises(Exception, match="the sink fails"):
        run(rows, sink, checkpoint).awaitTermination()
    run(rows, sink, checkpoint).awaitTermination()


@pytest.fixture
def trips(real_trips: Path | None, make_trips: TripMaker) -> pa.Table:
    return real_days(real_trips, datetime(2023, 3, 8), days=1) if real_trips else as_trips(make_trips(1200))


@pytest.fixture
def source(tmp_path: Path, trips: pa.Table) -> str:
    parts = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=LATEST, batches=4)
    return write_table(tmp_path / "trips", parts)


def _trip_settings(**given: Any) -> JobSettings:
    return JobSettings(watermark=WATERMARK, ttl=None, options=None, **given)


def test_leaderboard_is_that_of_a_batch_and_closes(
    spark: SparkSession, tmp_path: Path, trips: pa.Table, source: str
) -> None:
    table = Table(("window_start", "rank"), fail_on={1})
    run_twice(zone_leaderboard.transform(stream_delta(spark, source), _trip_settings()), table, tmp_path / "c")
    difference = compare_zone_leaderboard(expected_zone_leaderboard(trips), table.arrow())
    assert difference.equal, str(difference)
    watermark = _last_watermark(tmp_path / "c")
    for row in table.rows.values():
        end = row["window_start"].replace(tzinfo=UTC) + timedelta(hours=1)
        assert row["is_closed"] == (end <= watermark)
    assert {row["is_closed"] for row in table.rows.values()} == {True, False}


def test_feature_vectors_are_those_of_a_batch_at_their_moment(
    spark: SparkSession, tmp_path: Path, trips: pa.Table, source: str, real_trips: Path | None
) -> None:
    table = Table(("zone_id",), fail_on={1})
    query = zone_features.transform(stream_delta(spark, source), _trip_settings(buckets=8))
    run_twice(query, table, tmp_path / "c")
    found = table.arrow()
    difference = compare_zone_features(expected_zone_features(trips, found), found)
    assert difference.equal, str(difference)
    assert difference.expected > 4
    # No vector counts what is too old by the watermark.
    watermark = _last_watermark(tmp_path / "c")
    stale = expected_zone_features(trips, _as_of(found, watermark))
    now = {row["zone_id"]: row for row in stale.to_pylist()}
    for row in found.to_pylist():
        if row["as_of"].replace(tzinfo=UTC) < watermark:
            assert row["trips_1h"] == now[row["zone_id"]]["trips_1h"]
            assert row["trips_24h"] == now[row["zone_id"]]["trips_24h"]
    # The made trips come as often in each zone.
    assert real_trips is None or pc.sum(pc.equal(found["trips_1h"], 0)).as_py() > 0


def _as_of(found: pa.Table, watermark: datetime) -> pa.Table:
    moment = watermark.replace(minute=watermark.minute // 10 * 10, second=0, microsecond=0)
    rows = found.num_rows
    return pa.table({"zone_id": found["zone_id"], "as_of": pa.array([moment] * rows, pa.timestamp("us", "UTC"))})


def _last_watermark(checkpoint: Path) -> datetime:
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    return datetime.fromtimestamp(batch_watermark(checkpoint, last) / 1000, UTC)


SERIES: dict[str, tuple[Callable[..., pa.Table], dict[str, Any]]] = {
    "sensors": (
        sensor_readings,
        {"key": "sensor_id", "value": "celsius", "window": "10s", "every": "1s", "high": 80, "low": 75},
    ),
    "trades": (
        trades,
        {"key": "symbol", "value": "price", "weight": "size", "window": "60s", "every": "5s", "high": 101, "low": 100},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("trades", marks=pytest.mark.ci), "sensors"])
def test_rolling_metrics_are_those_of_a_batch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    make, given = SERIES[name]
    events = make(6000, seed=3, every=timedelta(seconds=1))
    random = np.random.default_rng(1)
    at = np.array(events["at"].cast(pa.int64()))
    order = np.argsort(at + random.uniform(0, 5e6, len(at)), kind="stable")
    parts = [events.take(pa.array(part)) for part in np.array_split(order, 4)]
    bad = parts[0].slice(0, 1).set_column(2, events.column_names[2], pa.array([float("inf")]))
    source = write_table(tmp_path / "events", [pa.concat_tables([parts[0], bad]), *parts[1:]])
    options = rolling_metrics.Options(time="at", **given)
    settings = JobSettings(watermark=timedelta(seconds=6), ttl=None, options=options, buckets=8)
    sink = Outputs(rolling_metrics.outputs, main=("key", "window_start"), alerts=("key", "at"), quarantine=("raw",))
    run_twice(rolling_metrics.transform(stream_delta(spark, source), settings), sink, tmp_path / "c")
    columns = {one: given.get(one) for one in ("key", "value", "weight")}
    periods = {"window": options.window, "every": options.every}
    windows = expected_rolling_windows(events, **columns, **periods)  # type: ignore[arg-type]
    difference = compare_rolling_windows(windows, sink.tables["main"].arrow())
    assert difference.equal, str(difference)
    watermark = pa.scalar(_last_watermark(tmp_path / "c").replace(tzinfo=None), pa.timestamp("us"))
    ended = windows.filter(pc.less_equal(windows["window_end"], watermark))
    alerts = expected_rolling_alerts(ended, high=given["high"], low=given["low"])
    difference = compare_rolling_alerts(alerts, sink.tables["alerts"].arrow())
    assert difference.equal, str(difference)
    assert {"raised", "ended"} == set(alerts["change"].to_pylist())
    (refused,) = sink.tables["quarantine"].rows.values()
    # By the names of the source, which the options give.
    assert refused["reasons"][0] == f"{given['value']} is no number below 1e+09"


def test_each_payment_comes_once(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    payments = payments_of(as_trips(make_trips(600, cards=40)))
    random = np.random.default_rng(2)
    at = np.array(payments["settled_at"].cast(pa.int64()))
    again = random.choice(len(at), 300)
    rows = np.concatenate([np.arange(len(at)), again])
    # Repeats come up to two hours later.
    arrival = at[rows] + np.where(np.arange(len(rows)) < len(at), 0, random.uniform(0, 7.2e9, len(rows)))
    parts = [payments.take(pa.array(rows[part])) for part in np.array_split(np.argsort(arrival, kind="stable"), 4)]
    nameless = parts[1].slice(0, 2).set_column(0, "payment_id", pa.nulls(2, pa.string()))
    source = write_table(tmp_path / "delivered", [parts[0], pa.concat_tables([parts[1], nameless]), *parts[2:]])
    settings = JobSettings(watermark=WATERMARK, ttl=None, options=None)
    sink = Outputs(dedup_events.outputs, main=("payment_id",), quarantine=("raw",))
    run_twice(dedup_events.transform(stream_delta(spark, source), settings), sink, tmp_path / "c")
    # Of each batch the last try counts: an id must not come in two batches.
    written = [row for _, rows in dict(sink.tables["main"].tries).items() for row in rows]
    assert len(written) == payments.num_rows
    difference: Difference = compare_rows(
        "payments", payments, sink.tables["main"].arrow(), ["payment_id"], payments.column_names
    )
    assert difference.equal, str(difference)
    assert {tuple(row["reasons"]) for row in sink.tables["quarantine"].rows.values()} == {("payment_id is missing",)}


@pytest.mark.parametrize("job", [zone_leaderboard, zone_features])
def test_columns_are_those_declared(spark: SparkSession, source: str, job: Any) -> None:
    found = job.transform(stream_delta(spark, source), _trip_settings(buckets=8)).schema
    declared = [(one.name, one.dataType) for one in job.OUTPUTS["main"] if one.name != "is_final"]
    assert [(one.name, one.dataType) for one in found] == declared


@pytest.mark.long
@pytest.mark.ci
def test_a_lookup_table_is_read_anew_by_each_batch(spark: SparkSession, tmp_path: Path, make_trips: TripMaker) -> None:
    workspace = open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")
    spec = workspace.job("zone_leaderboard")
    spec = spec.model_copy(update={"lookups": {"zones": LookupSpec(table="zones")}})
    trips = as_trips(make_trips(400))
    write_table(Path(workspace.table("trips")), [trips.slice(0, 200)])
    assert missing_source(spark, workspace, spec) == "lookup table zones does not exist yet"

    def name(word: str) -> None:
        zones = sorted(set(trips["PULocationID"].to_pylist()))
        rows = [{"LocationID": zone, "Borough": "Queens", "Zone": f"{word} {zone}"} for zone in zones[1:]]
        write_deltalake(workspace.table("zones"), pa.Table.from_pylist(rows), mode="overwrite")

    table = Table(("window_start", "rank"))
    name("old")
    assert missing_source(spark, workspace, spec) is None
    rows = job_rows(spark, workspace, spec, zone_leaderboard)
    query = run(rows, table, tmp_path / "c", processingTime="200 milliseconds")
    wait_until(query, lambda query: rows_read(query) == 200)
    first = {row["zone"] for row in table.rows.values()}
    assert {one.split()[0] for one in first if one} == {"old"} and None in first
    name("new")
    write_table(Path(workspace.table("trips")), [trips.slice(200)])
    wait_until(query, lambda query: rows_read(query) == 400)
    query.stop()
    newest = max(row["window_start"] for row in table.rows.values())
    words = {row["zone"].split()[0] for row in table.rows.values() if row["window_start"] == newest and row["zone"]}
    assert words == {"new"}
