"""A planned file that is gone, or lost for good, in a real driver."""

from __future__ import annotations

import os

import pytest

from streamwarden.landing.planner import Planner
from streamwarden.model.source_spec import FileSource
from streamwarden.operations.deploy import deploy_job
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from tests.integration.conftest import BY, Place

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HEADER = (
    "VendorID,lpep_pickup_datetime,lpep_dropoff_datetime,PULocationID,DOLocationID,fare_amount,extra,mta_tax,tip_amount,"
    "tolls_amount,total_amount\n"
)


def trip(minute: int) -> str:
    return f"2,2024-01-01 00:{minute:02}:00,2024-01-01 01:00:00,7,8,1,0,0,0,0,1\n"


def _plan(place: Place) -> None:
    """Plan what lies there, as a driver does that is killed right afterwards."""
    spec = place.workspace.job("ingest_trips")
    reference = place.documents("ingest_trips").checkpoint.read()
    assert reference is not None and isinstance(spec.source, FileSource)
    planner = Planner(place.workspace, spec.name, spec.source, reference, lambda: None)
    planner.open()
    assert planner.look() == 1


def _run(place: Place) -> None:
    deploy_job(place.workspace, "ingest_trips", by=BY)


def _minutes(place: Place) -> list[int]:
    return sorted(row["lpep_pickup_datetime"].minute for row in place.rows("trips"))


@pytest.mark.long
def test_a_planned_file_that_is_gone_ends_the_job_by_its_name(place: Place) -> None:
    landing = place.workspace.root / "landing"

    def land(name: str, *minutes: int) -> None:
        landing.mkdir(parents=True, exist_ok=True)
        (landing / name).write_text(HEADER + "".join(map(trip, minutes)))
        # An old time, as `cp -p` and `rsync -a` bring it.
        os.utime(landing / name, (1_000_000_000, 1_000_000_000))

    def wait_for(minutes: list[int], rows: int = 0) -> None:
        def done(_: object) -> bool:
            logs = [place.workspace.root / "tables" / name / "_delta_log" for name in ("trips", "trips_quarantine")]
            there = all((log / f"{0:020}.json").exists() for log in logs)
            return there and _minutes(place) == minutes and len(place.rows("trips_quarantine")) == rows

        place.wait("ingest_trips", done, f"{minutes} and {rows} in quarantine")

    land("first.csv", 1)
    _run(place)
    wait_for([1])
    driver_control.stop(place.workspace, "ingest_trips", by=BY)

    land("lost [b].csv", 2)
    land("c.csv", 3)
    _plan(place)
    kept = (landing / "lost [b].csv").read_text()
    (landing / "lost [b].csv").unlink()
    _run(place)
    ended = place.wait("ingest_trips", lambda seen: not seen.phase.alive, "the failure")
    assert ended.error is not None and ended.error.code == "SOURCE_DATA_GONE"
    assert "lost [b].csv" in ended.error.what
    # The batch is begun, and is repeated whole.
    (landing / "lost [b].csv").write_text(kept)
    os.utime(landing / "lost [b].csv", (1_000_000_000, 1_000_000_000))
    _run(place)
    wait_for([1, 2, 3])
    driver_control.stop(place.workspace, "ingest_trips", by=BY)

    land("for good.csv", 4)
    land("e.csv", 5)
    _plan(place)
    (landing / "for good.csv").write_bytes(b"")
    _run(place)
    wait_for([1, 2, 3, 5], 1)
    (refused,) = place.rows("trips_quarantine")
    assert refused["source_file"] == "for good.csv" and refused["reasons"][0].startswith("FILE_CHANGED")
    # Its driver tells it for as long as the file lies there.
    seen = place.wait(
        "ingest_trips",
        lambda now: bool(now.heartbeat and now.heartbeat.landing and now.heartbeat.landing.told),
        "the word of the file",
    )
    assert seen.heartbeat is not None and seen.heartbeat.landing is not None
    assert "for good.csv" in seen.heartbeat.landing.first[0]
    driver_control.stop(place.workspace, "ingest_trips", by=BY)
    assert observe(place.workspace, "ingest_trips").error is None
