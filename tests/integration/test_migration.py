"""State of an earlier version of a job, migrated by a restore: equal to batch, and nothing read twice."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_card_sessions, expected_card_sessions

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.restore import restore
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.spark.job_runs import as_trips, in_order_of_arrival
from tests.spark.test_zone_windows import real_days

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.ci]

JOB = "card_sessions"
PLAIN = {"module": "spark_jobs.card_sessions_plain", "state": {"backend": "rocksdb", "partitions": 2, "ttl": "24h"}}
KEYED = {"module": "spark_jobs.card_sessions", "state": {**PLAIN["state"], "buckets": 64}}  # type: ignore[dict-item]


def _read_all(place: Place, rows: int) -> None:
    """Wait until the checkpoint's drivers have read so many rows. (A job with timers is never idle.)"""

    def done(_: Observation) -> bool:
        totals = place.documents(JOB).current_totals()
        return totals is not None and totals.rows_in == rows

    place.wait(JOB, done, f"{rows} rows read", timeout=90)


def _append(place: Place, parts: list[pa.Table]) -> None:
    address, options = place.workspace.delta_rs("trips")
    for part in parts:
        write_deltalake(address, part, mode="append", storage_options=options)


def test_sessions_of_version_1_go_on_in_version_2(place: Place, real_trips: Path | None, make_trips: TripMaker) -> None:
    trips = real_days(real_trips, datetime(2023, 3, 8), days=1) if real_trips else as_trips(make_trips(1200, cards=60))
    migrate_sessions(place, trips)


def migrate_sessions(place: Place, trips: pa.Table) -> None:
    """Run version 1 on a half of the trips, and version 2 on the other; compare with batch."""
    parts = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=5), batches=6)
    place.job(JOB, **PLAIN)
    _append(place, parts[:3])
    deploy_job(place.workspace, JOB, by=BY)
    _read_all(place, sum(map(len, parts[:3])))
    driver_control.stop(place.workspace, JOB, by=BY)
    made = take(place.workspace, JOB, origin=Origin.MANUAL, by=BY)
    assert made.versions["job"] == "1"

    place.job(JOB, **KEYED)
    with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED") as refused:
        deploy_job(place.workspace, JOB, by=BY)
    assert refused.value.remedy is not None and "restore migrates the state" in refused.value.remedy

    done = restore(place.workspace, JOB, savepoint=made.id, by=BY)
    assert done.state == "done"
    (step,) = [step for step in done.steps if step.name == "fresh checkpoint"]
    assert "state of version 1" in step.detail and " 0 rows" not in step.detail, step.detail
    _append(place, parts[3:])
    _read_all(place, sum(map(len, parts[3:])))
    deadline = time.monotonic() + 60
    while {row["status"] for row in place.rows(JOB)} != {"closed"} and time.monotonic() < deadline:
        time.sleep(0.5)
    difference = compare_card_sessions(expected_card_sessions(trips), place.table(JOB))
    assert difference.equal, str(difference)

    # The new checkpoint is one like any other: it can be saved, and read back.
    driver_control.stop(place.workspace, JOB, by=BY)
    again = take(place.workspace, JOB, origin=Origin.MANUAL, by=BY)
    assert (again.versions["job"], again.generation) == ("2", 2)
    found = verify(place.workspace, [catalog.find(place.workspace, JOB, again.id)], by=BY)
    assert [one.problems for one in found.values()] == [[]]
