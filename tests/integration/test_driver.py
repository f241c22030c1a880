"""One driver, as a real process: what it refuses, how it stops, how it survives."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from nyc_taxi.demo.verify import read_table
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.replay import Replay, ReplayOptions

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.progress import Progress, Totals
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.runtime.processes import current_process, is_alive
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Phase, observe
from tests.chaos.audit import audit, commits_of
from tests.integration.conftest import BY, Place, log_of

pytestmark = pytest.mark.integration


def _checkpoint(place: Place, job: str) -> CheckpointReader:
    reference = place.documents(job).checkpoint.read()
    assert reference is not None
    return CheckpointReader(place.workspace.storage, reference.path)


@pytest.mark.long
@pytest.mark.ci
def test_a_stop_under_backlog_finishes_the_batch_in_flight(place: Place) -> None:
    files = 12
    place.numbers(options={"slow": 0.3})
    for number in range(files):
        place.land(f"{number:03d}.txt", b"x")
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: (seen.heartbeat.batch or 0) >= 2 if seen.heartbeat else False, "batch 2")
    ended = driver_control.stop(place.workspace, "numbers", by=BY)
    assert ended.phase is Phase.STOPPED, log_of(place, "numbers")
    checkpoint = _checkpoint(place, "numbers")
    last = checkpoint.last_commit()
    assert last is not None and last < files - 4, "the backlog was to be larger than what was done"
    assert checkpoint.last_offset() == last
    # One file a batch: the table holds exactly the batches that the log calls committed.
    assert len({row["file"] for row in place.rows("numbers")}) == len(place.rows("numbers")) == last + 1

    # Suspended, and deployed again, it goes on where it stopped.
    place.numbers(options={"slow": 0.0})
    deploy_job(place.workspace, "numbers", by=BY)
    documents = place.documents("numbers")
    progress = place.wait("numbers", lambda seen: _nothing_pending(seen.progress), "the end of the backlog").progress
    assert progress is not None and progress.last is not None
    assert sorted(row["file"] for row in place.rows("numbers")) == [f"{n:03d}.txt" for n in range(files)]
    # A stop may come when Spark's file source has written its log for a batch that is not begun yet. The next
    # driver's first batch then takes those files with its own, so that there is a batch less.
    batches = progress.last.batch + 1
    assert batches in (files - 1, files)
    # Totals are written after the progress.
    place.wait("numbers", lambda _: _through(documents.current_totals(), batches - 1), "the totals")
    totals = documents.current_totals()
    assert totals is not None and (totals.rows_in, totals.rows_out) == (files, files) and totals.batches == batches

    sources = [done.source for done in progress.recent if done.source]
    assert [source.pending for source in sources][-3:] == [2, 1, 0]
    assert [(source.unit, source.taken) for source in sources[-3:]] == [("files", 1)] * 3

    # Each version of the table says which of the two drivers wrote it, and under which lease.
    commits = commits_of(place.workspace.files, "numbers")
    assert audit(commits) == [] and [commit.batch for commit in commits] == list(range(batches))
    first, second = documents.incarnations()
    assert {(commit.incarnation, commit.epoch) for commit in commits} == {(first, 1), (second, 2)}

    # SIGTERM, as an operating system's shutdown sends it, is a stop between batches too.
    seen = observe(place.workspace, "numbers")
    assert seen.heartbeat is not None
    scratch = place.workspace.scratch / "numbers"
    assert [folder.name for folder in scratch.iterdir()] == [second]
    assert any(scratch.glob("*/spark-*")), "the JVM puts what is temporary elsewhere"
    os.kill(seen.heartbeat.process.pid, signal.SIGTERM)
    ended = place.wait("numbers", lambda now: not now.phase.alive, "the driver to stop")
    assert ended.phase is Phase.STOPPED
    place.wait("numbers", lambda _: not any(scratch.iterdir()), "the scratch folder to go")
    lease = place.released("numbers")
    assert lease.jvm is not None
    assert is_alive(lease.jvm) is False


def _nothing_pending(progress: Progress | None) -> bool:
    last = progress.last if progress else None
    return last is not None and last.source is not None and last.source.pending == 0


def _through(totals: Totals | None, batch: int) -> bool:
    return totals is not None and totals.through_batch >= batch


def test_of_two_drivers_started_at_once_one_runs(place: Place) -> None:
    place.numbers()
    place.land("a.txt")
    first = deploy_job(place.workspace, "numbers", by=BY)
    desired = place.documents("numbers").desired.read()
    assert desired is not None
    second = launch_driver(place.workspace, desired, by=BY, reason="a second one, by mistake")
    documents = place.documents("numbers")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        exits = [documents.exit(name).read() for name in (first.incarnation, second)]
        if any(exits):
            break
        time.sleep(0.1)
    (refused,) = [found for found in exits if found is not None]
    assert refused.error is not None and refused.error.code == "LEASE_HELD"
    assert "pid" in refused.error.what
    running = place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    assert running.incarnation != refused.incarnation
    assert [row["file"] for row in place.rows("numbers")] == ["a.txt"]


@pytest.mark.long
def test_a_failing_batch_is_tried_again_then_reported(place: Place) -> None:
    marker = place.config / "fail"
    marker.touch()
    failures = {"tolerable_consecutive": 2, "backoff": "1s"}
    place.numbers(options={"fail_while": str(marker)}, failures=failures)
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    ended = place.wait("numbers", lambda seen: not seen.phase.alive, "the failure")
    assert ended.phase is Phase.FAILED
    assert ended.error is not None and ended.error.code == "JOB_CODE_FAILED" and ended.error.retryable
    assert "3 failed tries" in ended.error.what and "the marker file is there" in ended.error.what
    assert place.rows("numbers") == []

    # So many that one is seen, and that there is one left when the marker goes.
    place.job("numbers", failures={"tolerable_consecutive": 20, "backoff": "1s"})
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait(
        "numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.state is DriverState.RETRYING), "a failed try"
    )
    marker.unlink()
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    assert [row["file"] for row in place.rows("numbers")] == ["a.txt"]


@pytest.mark.long
def test_a_driver_that_lost_its_lease_stops_before_its_next_commit(place: Place) -> None:
    place.numbers(options={"slow": 15.0})
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    place.land("b.txt")
    checkpoint = _checkpoint(place, "numbers")
    while checkpoint.last_offset() != 1:
        time.sleep(0.05)
    documents = place.documents("numbers")
    taken = documents.lease.read()
    assert taken is not None
    stolen = taken.model_copy(
        update={
            "incarnation": "20991231T000000000zffff",
            "process": current_process(),
            "jvm": None,
            "expires_at": utc_now(),
        }
    )
    documents.lease.write(stolen)
    deadline = time.monotonic() + 180
    while (ended := documents.exit(taken.incarnation).read()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ended is not None and ended.error is not None and ended.error.code == "LEASE_LOST"
    assert [row["file"] for row in place.rows("numbers")] == ["a.txt"]
    assert documents.lease.read() == stolen, "it must not give back what another holds"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"module": "tests.integration.jobs.nowhere"}, "JOB_MODULE_INVALID", "nowhere"),
        ({"options": {"slwo": 1}}, "CONFIG_INVALID", "slwo: unknown key"),
    ],
)
def test_what_cannot_run_is_refused_before_a_driver_starts(
    place: Place, fields: dict[str, object], code: str, words: str
) -> None:
    place.numbers()
    place.job("numbers", **fields)
    with pytest.raises(StreamwardenError) as refused:
        deploy_job(place.workspace, "numbers", by=BY)
    assert refused.value.code == code and not refused.value.retryable
    assert words in refused.value.what and "config/jobs/numbers.yaml" in refused.value.what
    assert place.workspace.storage.list("control") == []


@pytest.mark.long
def test_a_driver_whose_jvm_is_killed_says_so_and_is_started_again(place: Place) -> None:
    place.numbers()
    place.land("a.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    documents = place.documents("numbers")
    lease = documents.lease.read()
    assert lease is not None and lease.jvm is not None
    # It has it from the driver's own process, and Python workers have it from there.
    assert b"TZ=UTC" in Path(f"/proc/{lease.jvm.pid}/environ").read_bytes().split(b"\0")
    # As the kernel does it to the largest process when memory is short.
    os.kill(lease.jvm.pid, signal.SIGKILL)
    ended = place.wait("numbers", lambda seen: not seen.phase.alive, "the end")
    assert ended.phase is Phase.FAILED, log_of(place, "numbers")
    assert ended.error is not None and ended.error.retryable
    place.released("numbers")
    verdict = decide(ended, documents.supervision.read() or Supervision())
    assert verdict.action is Action.RESTART
    place.land("b.txt")
    assert restart(place.workspace, ended, by=BY) is not None
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 1), "batch 1")
    assert sorted(row["file"] for row in place.rows("numbers")) == ["a.txt", "b.txt"]


@pytest.mark.long
def test_a_table_whose_making_was_killed_is_made_anew(place: Place) -> None:
    place.numbers()
    place.land("a.txt")
    log = place.workspace.root / "tables" / "numbers" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.72d980b7.tmp").write_bytes(b"{")
    deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    assert [row["file"] for row in place.rows("numbers")] == ["a.txt"]


@pytest.mark.long
def test_logs_are_rotated_also_what_a_job_prints(place: Place) -> None:
    place.profile(logs={"max_bytes": 10_000, "backups": 2}, jobs={"interval": "200ms"})
    place.numbers(options={"chatter": 200})
    for number in range(6):
        place.land(f"{number}.txt")
    deployed = deploy_job(place.workspace, "numbers", by=BY)
    place.wait("numbers", lambda seen: (seen.heartbeat.batch or 0) >= 5 if seen.heartbeat else False, "batch 5")
    driver_control.stop(place.workspace, "numbers", by=BY)
    folder = place.workspace.log_dir("numbers", deployed.incarnation)
    consoles = sorted(path.name for path in folder.glob("console.log*"))
    assert consoles == ["console.log", "console.log.1", "console.log.2"]
    for path in folder.glob("*.log*"):
        assert path.stat().st_size <= 11_000, path


@pytest.mark.long
def test_what_a_checkpoint_has_fixed_cannot_be_changed_by_a_restart(place: Place) -> None:
    place.job("zone_windows", state={"backend": "memory"})
    place.job("ingest_trips")
    trips = generate(GeneratorOptions(start=datetime(2023, 3, 6), end=datetime(2023, 3, 7)))
    Replay(trips, place.workspace.root / "landing", ReplayOptions(speed="max", file_every=timedelta(hours=6))).run()
    deploy_job(place.workspace, "ingest_trips", by=BY)
    place.wait("ingest_trips", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    driver_control.stop(place.workspace, "ingest_trips", by=BY)
    # The next batch is years away, as Spark's triggers are at whole multiples of their interval: what the stop leaves
    # owed is not done before it.
    place.profile(jobs={"interval": "3650d", "partitions": 2})
    # On the memory backend, which no job of ours uses by default, it does the same.
    deploy_job(place.workspace, "zone_windows", by=BY)
    place.wait("zone_windows", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 0), "batch 0")
    assert driver_control.stop(place.workspace, "zone_windows", by=BY).phase is Phase.STOPPED
    assert not any(row["is_final"] for row in place.rows("zone_windows"))
    # Without a new trip, it makes windows final.
    driver_control.start(place.workspace, "zone_windows", by=BY)
    place.wait("zone_windows", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch == 1), "batch 1")
    assert driver_control.stop(place.workspace, "zone_windows", by=BY).phase is Phase.STOPPED
    assert any(row["is_final"] for row in place.rows("zone_windows"))
    expected = expected_zone_windows(read_table(place.workspace, "trips"))
    assert compare_zone_windows(expected, read_table(place.workspace, "zone_windows")).equal

    for state, code in (
        ({"backend": "rocksdb"}, "STATE_BACKEND_FIXED"),
        ({"backend": "memory"}, "STATE_PARTITIONS_FIXED"),
    ):
        place.job("zone_windows", state=state)
        if code == "STATE_PARTITIONS_FIXED":
            place.profile(jobs={"interval": "500ms", "partitions": 5})
        with pytest.raises(StreamwardenError, match="ROLLOUT_REFUSED"):
            deploy_job(place.workspace, "zone_windows", by=BY)
        # Nor does a driver run that gets this spec all the same.
        spec = place.workspace.job("zone_windows")
        wanted = {"spec": spec, "digest": spec.digest()}
        place.documents("zone_windows").desired.update(lambda was, wanted=wanted: was.model_copy(update=wanted))
        launched = driver_control.start(place.workspace, "zone_windows", by=BY)
        ended = place.wait(
            "zone_windows", lambda seen, mine=launched: seen.incarnation == mine and not seen.phase.alive, "the refusal"
        )
        assert ended.error is not None and ended.error.code == code and not ended.error.retryable
