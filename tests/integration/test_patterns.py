"""Every pattern as a real driver: equal to a batch computation after a kill, a restore and a rescale from 2 to 7.

The native ones also on the memory backend, which Spark cannot repartition.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
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
from nyc_taxi.demo.payments import compare_trip_payments, expected_trip_payments
from nyc_taxi.demo.statistics import (
    compare_card_statistics,
    compare_zone_running_stats,
    expected_card_statistics,
    expected_zone_running_stats,
)
from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity
from nyc_taxi.streams.feed import FeedOptions, disordered
from nyc_taxi.streams.payments import payments_of
from nyc_taxi.streams.series import sensor_readings, trades

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import rescale
from streamwarden.operations.restore import restore
from streamwarden.operations.state_view import StateView
from streamwarden.runtime.processes import kill
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.serving import FeatureReader
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.spark.test_trip_payments import AFTER, last_ones, settled

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

PIECES = 6
LATEST = timedelta(hours=2)


@dataclass
class Case:
    """What a job reads, piece by piece, and how its tables are compared."""

    job: str
    sources: dict[str, list[pa.Table]]
    compare: Callable[[Place], list[Difference]]
    options: dict[str, Any] = field(default_factory=dict)


def _payments(trips: pa.Table) -> Case:
    payments = payments_of(trips)
    trip, payment = last_ones(trips, payments)
    sources = {
        "trips": [*_arriving(trips, PIECES - 1), trip],
        "payments": [*settled(payments, seed=5, batches=PIECES - 1), payment],
    }

    def compare(place: Place) -> list[Difference]:
        found = place.table("trip_payments")
        before = pa.scalar(AFTER, pa.timestamp("us", "UTC"))
        found = found.filter(pc.less(found["lpep_pickup_datetime"], before))
        return [compare_trip_payments(expected_trip_payments(trips, payments), found)]

    return Case("trip_payments", sources, compare)


def _dedup(trips: pa.Table) -> Case:
    payments = payments_of(trips)
    pieces = list(disordered(payments, FeedOptions(pieces=PIECES, repeated=0.3)))

    def compare(place: Place) -> list[Difference]:
        found = place.table("payments")
        return [compare_rows("payments", payments, found, ["payment_id"], payments.column_names)]

    return Case("dedup_events", {"payments_delivered": pieces}, compare)


def _leaderboard(trips: pa.Table) -> Case:
    def compare(place: Place) -> list[Difference]:
        return [compare_zone_leaderboard(expected_zone_leaderboard(trips), place.table("zone_leaderboard"))]

    return Case("zone_leaderboard", {"trips": _arriving(trips, PIECES)}, compare)


def _features(trips: pa.Table) -> Case:
    def compare(place: Place) -> list[Difference]:
        found = place.table("zone_features")
        differences = [compare_zone_features(expected_zone_features(trips, found), found)]
        zones = set(pc.unique(trips["PULocationID"]).to_pylist())
        assert set(found["zone_id"].to_pylist()) == zones
        reader = FeatureReader(place.workspace, "zone_features")
        for row in found.to_pylist():
            served = reader.get(zone_id=row["zone_id"])
            assert served is not None, row
            assert served.value["trips_24h"] == row["trips_24h"]
            assert served.value["as_of"] == row["as_of"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        reader.close()
        return differences

    return Case("zone_features", {"trips": _arriving(trips, PIECES)}, compare)


def _zone_statistics(trips: pa.Table) -> Case:
    def compare(place: Place) -> list[Difference]:
        return [compare_zone_running_stats(expected_zone_running_stats(trips), place.table("zone_running_stats"))]

    return Case("zone_running_stats", {"trips": _arriving(trips, PIECES)}, compare)


def _windows(trips: pa.Table) -> Case:
    def compare(place: Place) -> list[Difference]:
        return [compare_zone_windows(expected_zone_windows(trips), place.table("zone_windows"))]

    return Case("zone_windows", {"trips": _arriving(trips, PIECES)}, compare)


def _card_statistics(trips: pa.Table) -> Case:
    def compare(place: Place) -> list[Difference]:
        return [compare_card_statistics(expected_card_statistics(trips), place.table("card_statistics"))]

    return Case("card_statistics", {"trips": _arriving(trips, PIECES)}, compare)


def _velocity(trips: pa.Table) -> Case:
    # Bursts that a day of trips on some dozens of cards has.
    burst, within, window, every = 3, timedelta(minutes=15), timedelta(minutes=20), timedelta(minutes=5)

    def compare(place: Place) -> list[Difference]:
        windows = expected_card_velocity(trips, window=window, every=every)
        return [
            compare_card_velocity(windows, place.table("card_velocity")),
            compare_card_alerts(trips, place.table("card_alerts"), burst=burst, within=within),
        ]

    options = {"trips": burst, "within": "15m", "window": "20m", "every": "5m"}
    return Case("card_velocity", {"trips": _arriving(trips, PIECES)}, compare, options)


def _series(job: str, table: str, events: pa.Table, **given: Any) -> Case:
    high, low = given.pop("high"), given.pop("low")
    columns = {name: given.get(name) for name in ("key", "value", "weight")}
    periods = {"window": given["window"], "every": given["every"]}
    at = np.array(events["at"].cast(pa.int64()))
    order = np.argsort(at + np.random.default_rng(1).uniform(0, 8e6, len(at)), kind="stable")
    pieces = [events.take(pa.array(part)) for part in np.array_split(order, PIECES)]
    prefix = job.removesuffix("_metrics")

    def compare(place: Place) -> list[Difference]:
        windows = expected_rolling_windows(events, **columns, **periods)
        found = place.table(job)
        final = found.filter(found["is_final"])
        last = pc.max(final["window_end"]).as_py() if len(final) else datetime(1970, 1, 1, tzinfo=UTC)
        naive = pa.scalar(last.astimezone(UTC).replace(tzinfo=None), pa.timestamp("us"))
        ended = windows.filter(pc.less_equal(windows["window_end"], naive))
        alerts = expected_rolling_alerts(ended, high=high, low=low)
        assert alerts.num_rows > 3
        return [
            compare_rolling_windows(windows, found),
            compare_rolling_alerts(alerts, place.table(f"{prefix}_alerts")),
        ]

    return Case(job, {table: pieces}, compare, {"high": high, "low": low})


def _arriving(trips: pa.Table, pieces: int) -> list[pa.Table]:
    return in_order_of_arrival(trips, seed=4, late_share=0.3, latest=LATEST * 0.9, batches=pieces)


CASES: dict[str, Callable[[pa.Table], Case]] = {
    "trip_payments": _payments,
    "dedup_events": _dedup,
    "zone_leaderboard": _leaderboard,
    "zone_features": _features,
    "zone_running_stats": _zone_statistics,
    "card_statistics": _card_statistics,
    "card_velocity": _velocity,
    "sensor_metrics": lambda _: _series(
        "sensor_metrics",
        "sensor_readings",
        sensor_readings(9_000, seed=3, every=timedelta(seconds=1)),
        key="sensor_id",
        value="celsius",
        window=timedelta(seconds=10),
        every=timedelta(seconds=1),
        high=80,
        low=75,
    ),
    "trade_metrics": lambda _: _series(
        "trade_metrics",
        "trades",
        trades(6_000, seed=3, every=timedelta(seconds=1)),
        key="symbol",
        value="price",
        weight="size",
        window=timedelta(seconds=60),
        every=timedelta(seconds=5),
        high=101,
        low=100,
    ),
}


NATIVE = {
    "trip_payments": _payments,
    "dedup_events": _dedup,
    "zone_running_stats": _zone_statistics,
    "zone_windows": _windows,
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_jobs_on_the_memory_backend(place: Place, make_trips: TripMaker, name: str) -> None:
    case = NATIVE[name](as_trips(make_trips(1500, cards=80)))
    place.job(case.job, state={"backend": "memory", "partitions": 2})
    made = run_case(place, case, rescalable=False)
    assert made.settings["spark.sql.streaming.stateStore.providerClass"].endswith("HDFSBackedStateStoreProvider")


@pytest.mark.parametrize("name", CASES)
def test_equal_to_batch_after_a_kill_a_restore_and_a_rescale(place: Place, make_trips: TripMaker, name: str) -> None:
    run_case(place, CASES[name](as_trips(make_trips(1500, cards=80))))


def run_case(place: Place, case: Case, *, rescalable: bool = True) -> Manifest:
    """Feed a job through a kill, a restore and a rescale, compare its tables, and return the restored savepoint."""
    place.job(case.job, **({"options": {**_options(place, case.job), **case.options}} if case.options else {}))
    _feed(place, case, 0)
    deploy_job(place.workspace, case.job, by=BY)
    _await_batches(place, case, 1)
    _feed(place, case, 1)
    time.sleep(random.uniform(0, 3))
    seen = observe(place.workspace, case.job)
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    driver_control.start(place.workspace, case.job, by=BY)
    _await_idle(place, case)

    made = take(place.workspace, case.job, origin=Origin.MANUAL, by=BY)
    assert made.source_names == list(case.sources) or made.source_names == ["source"]
    (verdict,) = verify(place.workspace, [catalog.find(place.workspace, case.job, made.id)], by=BY).values()
    assert verdict.problems == []
    _look_into_the_state(place, case, made.id)
    _feed(place, case, 2)
    _await_idle(place, case)
    assert restore(place.workspace, case.job, savepoint=made.id, by=BY).state == "done"
    _feed(place, case, 3)
    _await_idle(place, case)

    if rescalable:
        done = rescale(place.workspace, case.job, partitions=7, by=BY)
        assert done.state == "done", done
    else:
        with pytest.raises(StreamwardenError, match="RESCALE_UNSUPPORTED"):
            rescale(place.workspace, case.job, partitions=7, by=BY)
    for piece in range(4, PIECES):
        _feed(place, case, piece)
    _await_idle(place, case)
    deadline = time.monotonic() + 120
    differences = case.compare(place)
    while not all(one.equal for one in differences) and time.monotonic() < deadline:
        time.sleep(2)
        differences = case.compare(place)
    assert all(one.equal for one in differences), "\n".join(map(str, differences))
    assert all(one.expected >= 5 for one in differences), differences
    return made


def _look_into_the_state(place: Place, case: Case, savepoint: str) -> None:
    view = StateView(place.workspace, case.job)
    stats = view.stats(at=savepoint)
    entries = sum(one["entries"] for one in stats["variables"])
    assert entries > 0 and entries == sum(one["entries"] for one in stats["partitions"])
    assert stats["heaviest"] and all(size > 0 for size in stats["file_bytes"].values())
    key = stats["heaviest"][0]["key"]
    # Of a key with a window, the part that is no struct.
    value = next(part for part in json.loads(key).values() if not isinstance(part, dict))
    shown = view.show(at=savepoint, key=str(value), limit=5)
    assert shown["entries"] and all(str(value) in one["key"] for one in shown["entries"])
    # The newest batch is the savepoint's, or one without input after it.
    same = view.diff(savepoint, "latest")
    assert (same["added"], same["removed"], same["changed"]) == (0, 0, 0)


def _options(place: Place, job: str) -> dict[str, Any]:
    return dict(place.workspace.job(job).options)


def _feed(place: Place, case: Case, piece: int) -> None:
    for table, pieces in case.sources.items():
        address, options = place.workspace.delta_rs(table)
        write_deltalake(address, pieces[piece], mode="append", storage_options=options)


def _await_batches(place: Place, case: Case, number: int) -> None:
    def done(_: object) -> bool:
        totals = place.documents(case.job).current_totals()
        return totals is not None and totals.batches >= number

    place.wait(case.job, done, f"{number} batches")


def _await_idle(place: Place, case: Case) -> None:
    """Wait until all that was fed is read."""
    since = datetime.now(UTC)

    def done(_: object) -> bool:
        seen = observe(place.workspace, case.job)
        heartbeat, last = seen.heartbeat, seen.progress.last if seen.progress else None
        if heartbeat is not None and heartbeat.idle and heartbeat.idle_at is not None and heartbeat.idle_at > since:
            return True
        return last is not None and last.at > since and last.source is not None and last.source.pending == 0

    place.wait(case.job, done, "nothing left to read")
