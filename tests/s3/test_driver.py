"""Drivers whose documents, checkpoints and tables are on S3: real processes, a real server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from nyc_taxi.demo.verify import read_table

from streamwarden.model.savepoint import Origin
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.diagnosis import diagnose
from streamwarden.operations.restore import restore
from streamwarden.runtime.processes import is_alive
from streamwarden.savepoints.catalog import find
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Observation, Phase, observe
from tests.conftest import TripMaker
from tests.integration.conftest import BY, Place
from tests.s3.conftest import Place as S3Place
from tests.s3.server import S3Server
from tests.spark.job_runs import as_trips

pytestmark = [pytest.mark.s3, pytest.mark.integration, pytest.mark.slow]


def reached(batch: int) -> Callable[[Observation], bool]:
    def condition(seen: Observation) -> bool:
        return seen.heartbeat is not None and seen.heartbeat.batch is not None and seen.heartbeat.batch >= batch

    return condition


def log_of(place: Place, seen: Observation) -> str:
    assert seen.incarnation is not None
    return (place.workspace.log_dir("numbers", seen.incarnation) / "driver.log").read_text()


def files(place: Place) -> list[str]:
    return sorted(row["file"] for row in place.rows("numbers"))


@pytest.mark.long
@pytest.mark.ci
def test_a_driver_on_s3_survives_its_own_death_and_the_servers(place: Place, server: S3Server) -> None:
    place.numbers(failures={"tolerable_consecutive": 0, "backoff": "1s"})
    place.land("0.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    seen = place.wait("numbers", reached(0), "batch 0")
    assert files(place) == ["0.txt"]

    # Killed, it is started again by whoever supervises it, and goes on.
    assert seen.heartbeat is not None
    os.kill(seen.heartbeat.process.pid, signal.SIGKILL)
    ended = place.wait("numbers", lambda now: not now.phase.alive, "the end")
    supervision = place.documents("numbers").supervision.read() or Supervision()
    assert decide(ended, supervision).action is Action.RESTART
    place.land("1.txt")
    assert restart(place.workspace, ended, by=BY) is not None
    place.wait("numbers", reached(1), "batch 1")

    # The server is away while a batch is due, for so long that it fails twice, and comes back. The job may have no
    # failure of its own.
    before = observe(place.workspace, "numbers")
    server.kill()
    place.land("2.txt")
    deadline = time.monotonic() + 240
    while "try 2 failed" not in log_of(place, before) and time.monotonic() < deadline:
        time.sleep(0.2)
    server.start()
    place.land("3.txt")
    # Not batch 3: the file source may have noted a file for a batch that was not begun, and then takes two.
    seen = place.wait("numbers", lambda _: len(files(place)) == 4, "all files")
    assert seen.incarnation == before.incarnation, "the driver lives on"
    assert "try 2 failed" in log_of(place, before)
    assert files(place) == [f"{number}.txt" for number in range(4)]

    ended = driver_control.stop(place.workspace, "numbers", by=BY)
    assert ended.phase is Phase.STOPPED
    # Nothing but logs, the landing folder and what a driver has while it runs is on this machine's disk.
    assert sorted(path.name for path in place.workspace.root.iterdir()) == ["landing", "logs", "scratch"]
    assert read_table(place.workspace, "numbers").num_rows == 4


@pytest.mark.long
def test_what_is_left_of_files_in_a_bucket_is_counted(place: Place, s3: S3Place) -> None:
    client, bucket = s3.client(), s3.location.bucket
    place.numbers()
    place.job("numbers", source={"kind": "files", "path": f"s3a://{bucket}/landed here", "max_files_per_batch": 1})
    for name in ("0.txt", "with blank.txt", "2.txt", "deep/5.txt", "_hidden.txt", "_hidden/3.txt", ".hidden"):
        client.put_object(Bucket=bucket, Key=f"landed here/{name}", Body=b"x")
    for name in ("empty.txt", "folder/"):
        client.put_object(Bucket=bucket, Key=f"landed here/{name}", Body=b"")
    client.put_object(Bucket=bucket, Key="landed here too/4.txt", Body=b"x")
    deploy_job(place.workspace, "numbers", by=BY)

    def is_told(seen: Observation) -> bool:
        return seen.progress is not None and len(seen.progress.recent) >= 4

    seen = place.wait("numbers", is_told, "the progress of four batches")
    assert seen.progress is not None
    sources = [one.source for one in seen.progress.recent]
    assert [(one.unit, one.taken, one.pending) for one in sources if one] == [
        ("files", 1, left) for left in (3, 2, 1, 0)
    ]
    assert files(place) == ["0.txt", "2.txt", "empty.txt", "with blank.txt"]


@pytest.mark.long
def test_credentials_that_are_taken_away_are_named(place: Place, server: S3Server) -> None:
    place.numbers(failures={"tolerable_consecutive": 0})
    place.land("0.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    seen = place.wait("numbers", reached(0), "batch 0")
    assert seen.heartbeat is not None
    right = server.secret_key
    server.kill()
    server.secret_key = "another"
    server.start()
    try:
        place.land("1.txt")
        deadline = time.monotonic() + 240
        while is_alive(seen.heartbeat.process):
            assert time.monotonic() < deadline, log_of(place, seen)
            time.sleep(0.2)
    finally:
        server.kill()
        server.secret_key = right
        server.start()
    # It could not even write down how it ended: its log on this machine says so.
    ended = observe(place.workspace, "numbers")
    assert not ended.phase.alive
    found = diagnose(place.workspace, ended)
    assert found is not None and found.code == "S3_REFUSED", (ended.phase, ended.error, found)
    assert restart(place.workspace, ended, by=BY) is not None
    place.wait("numbers", lambda _: len(files(place)) == 2, "both files")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_state_on_s3_outlives_its_driver_and_is_saved_and_restored(place: Place, make_trips: TripMaker) -> None:
    place.job("zone_windows", source={"kind": "delta", "table": "trips", "max_files_per_batch": 1})
    uri, options = place.workspace.delta_rs("trips")
    trips = as_trips(make_trips(2_000, hours=24))
    for start in range(0, 2_000, 500):
        write_deltalake(uri, trips.slice(start, 500), mode="append", storage_options=options)
    deploy_job(place.workspace, "zone_windows", by=BY)
    seen = place.wait("zone_windows", reached(1), "batch 1", timeout=240)
    # With its JVM, as when the machine goes: state is then read back from the bucket.
    lease = place.documents("zone_windows").lease.read()
    assert lease is not None and lease.jvm is not None and seen.heartbeat is not None
    for process in (seen.heartbeat.process, lease.jvm):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)

    # Saved, checked by reading its state back, and restored: all without a byte of it on this machine.
    saved = take(place.workspace, "zone_windows", origin=Origin.MANUAL, by=BY)
    assert {operator.name for operator in saved.operators} and any("state/" in file.path for file in saved.files)
    folder = savepoint_checkpoint_key("zone_windows", saved.id)
    hashed = place.workspace.files.hash_many(f"{folder}/{file.path}" for file in saved.files)
    assert {key: (one.size, one.sha256) for key, one in hashed.items()} == {
        f"{folder}/{file.path}": (file.size, file.sha256) for file in saved.files
    }

    found = find(place.workspace, "zone_windows", saved.id)
    verdict = verify(place.workspace, [found], by=BY)[saved.id]
    assert (verdict.verdict, verdict.problems) == ("verified", [])
    assert sum(verdict.rows.values()) > 0
    assert restore(place.workspace, "zone_windows", savepoint=saved.id, by=BY).state == "done"
    place.wait("zone_windows", reached(3), "batch 3", timeout=240)

    assert driver_control.stop(place.workspace, "zone_windows", by=BY).phase is Phase.STOPPED
    expected = expected_zone_windows(read_table(place.workspace, "trips"))
    assert compare_zone_windows(expected, read_table(place.workspace, "zone_windows")).equal
