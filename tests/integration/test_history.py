"""Jobs that begin with a table of earlier rows, as real drivers: killed in it, between it and the source, and after."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from nyc_taxi.demo.compare import Difference, compare_rows
from nyc_taxi.streams.feed import FeedOptions, disordered
from nyc_taxi.streams.payments import payments_of

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.rescale import rescale
from streamwarden.operations.rescale_plan import plan_rescale
from streamwarden.operations.restore import restore
from streamwarden.operations.spec_diff import plan
from streamwarden.runtime.processes import kill
from streamwarden.savepoints.history import is_on_history, job_is_on_history
from streamwarden.savepoints.take import take
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.spark.test_zone_windows import real_days

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

PIECES, BEFORE = 12, 8
SOURCES = {"zone_windows": "trips", "dedup_events": "payments_delivered"}


@pytest.fixture
def trips(real_trips: Path | None, make_trips: TripMaker) -> pa.Table:
    return real_days(real_trips, datetime(2023, 3, 8), days=1) if real_trips else as_trips(make_trips(1500, cards=80))


@pytest.mark.parametrize("job", SOURCES)
def test_equal_to_batch_after_kills_in_both_parts_a_restore_into_the_history_and_a_rescale(
    place: Place, trips: pa.Table, make_trips: TripMaker, job: str
) -> None:
    run_job(place, job, trips, make_trips)


def run_job(place: Place, job: str, trips: pa.Table, make_trips: TripMaker) -> None:
    """Run a job of :data:`SOURCES` from its history into its source, through kills, a restore and a rescale."""
    if job == "zone_windows":
        pieces = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=1), batches=PIECES)

        def compare() -> Difference:
            return compare_zone_windows(expected_zone_windows(trips), place.table("zone_windows"))
    else:
        payments = payments_of(as_trips(make_trips(1500, cards=80)))
        pieces = list(disordered(payments, FeedOptions(pieces=PIECES, repeated=0.3)))

        def compare() -> Difference:
            found = place.table("payments")
            return compare_rows("payments", payments, found, ["payment_id"], payments.column_names)

    _run(place, job, pieces, compare)


def _run(place: Place, job: str, pieces: list[pa.Table], compare: Callable[[], Difference]) -> None:
    def feed(table: str, *numbers: int) -> None:
        for number in numbers:
            address, options = place.workspace.delta_rs(table)
            write_deltalake(address, pieces[number], mode="append", storage_options=options)

    def killed() -> None:
        seen = place.wait(job, lambda seen: seen.heartbeat is not None, "a driver")
        assert seen.heartbeat is not None and kill(seen.heartbeat.process)
        driver_control.start(place.workspace, job, by=BY)

    source = {"kind": "delta", "table": SOURCES[job]}
    begins = {**source, "history": {"table": "before", "max_files_per_batch": 1}}
    # So slowly that a test meets it in the history.
    place.job(job, source=begins, trigger={"interval": "500ms", "min_pause": "2s"})
    feed("before", *range(BEFORE))
    feed(SOURCES[job], BEFORE)
    deploy_job(place.workspace, job, by=BY)
    _await_batches(place, job, 2)
    seen = observe(place.workspace, job)
    assert seen.heartbeat is not None and "; reading history before: file " in seen.heartbeat.reason
    time.sleep(random.uniform(0, 2))
    killed()

    _await_batches(place, job, 3)
    made = take(place.workspace, job, origin=Origin.MANUAL, by=BY)
    spec = place.workspace.job(job)
    assert is_on_history(place.workspace, spec, made.positions["source"])
    with pytest.raises(StreamwardenError, match="still reading its history"):
        plan_rescale(place.workspace, job, partitions=7)
    place.job(job, source=source)
    assert plan(place.workspace, job).effect is Effect.REFUSED
    place.job(job, source=begins)
    # Right after the move to the source, and at moments around it.
    _await_source(place, job)
    killed()
    time.sleep(random.uniform(0, 4))
    killed()
    _await_read(place, job)

    feed(SOURCES[job], BEFORE + 1)
    _await_read(place, job)
    assert restore(place.workspace, job, savepoint=made.id, by=BY).state == "done"
    assert job_is_on_history(place.workspace, spec)
    _await_source(place, job)
    killed()
    _await_read(place, job)
    place.job(job, source=source, trigger={"interval": "500ms"})
    assert plan(place.workspace, job).effect is Effect.RESTART
    deploy_job(place.workspace, job, by=BY)
    feed(SOURCES[job], BEFORE + 2)
    _await_read(place, job)

    assert rescale(place.workspace, job, partitions=7, by=BY).state == "done"
    feed(SOURCES[job], BEFORE + 3)
    deadline = time.monotonic() + 120
    while not (difference := compare()).equal and time.monotonic() < deadline:
        time.sleep(2)
    assert difference.equal and difference.expected > 100, str(difference)


def _await_batches(place: Place, job: str, number: int) -> None:
    def done(_: object) -> bool:
        totals = place.documents(job).current_totals()
        return totals is not None and totals.batches >= number

    place.wait(job, done, f"{number} batches")


def _await_source(place: Place, job: str) -> None:
    """Wait until the checkpoint's position is in the source."""
    spec = place.workspace.job(job)
    deadline = time.monotonic() + 300
    while job_is_on_history(place.workspace, spec):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _await_read(place: Place, job: str) -> None:
    """Wait until the source has no more rows for the job."""
    _await_source(place, job)
    since = time.time()

    def done(_: object) -> bool:
        seen = observe(place.workspace, job)
        heartbeat = seen.heartbeat
        return (
            heartbeat is not None
            and heartbeat.idle
            and heartbeat.idle_at is not None
            and heartbeat.idle_at.timestamp() > since
        )

    place.wait(job, done, "nothing left to read")
