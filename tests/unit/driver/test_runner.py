"""What a driver does before and between its query's batches. With Spark: tests/integration/test_driver.py."""

from __future__ import annotations

import pickle
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from streamwarden.driver import heartbeat, runner, tries
from streamwarden.driver.causes import Failure
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.queries import Queries, report_executors
from streamwarden.driver.runner import Driver
from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.progress import BatchProgress, SourceProgress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import CheckpointRef, DriverState, Exit
from streamwarden.runtime.polling import Deadline
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.workspace import Workspace
from tests.unit.savepoints import test_catalog
from tests.unit.supervision.test_supervision import JOB, desired

pytestmark = pytest.mark.unit


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    opened = test_catalog.opened(tmp_path)
    JobDocuments(opened.storage, JOB).desired.write(desired())
    return opened


@pytest.fixture
def driver(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Driver(workspace, JOB, "i1", RecordContext(JOB, "i1"))


def test_the_wait_for_a_source_table_is_no_time_without_a_batch(driver: Driver, workspace: Workspace) -> None:
    looks = iter(["no table yet", None])
    heartbeat = JobDocuments(workspace.storage, JOB).heartbeat("i1")
    driver._await(lambda: next(looks))
    waited = heartbeat.read()
    assert waited is not None and waited.state is DriverState.WAITING and waited.idle_at is None
    driver._heart.say(DriverState.RUNNING, "batches every trigger interval")
    runs = heartbeat.read()
    assert runs is not None and runs.idle_at is not None and runs.idle_at > waited.at and not runs.idle


def test_a_job_that_loses_its_executors_waits_and_is_not_late_afterwards(driver: Driver) -> None:
    driver._heart.say(DriverState.RUNNING, "batches every trigger interval")
    report_executors(driver._heart, None)
    assert driver._heart.state is DriverState.RUNNING
    report_executors(driver._heart, "no executor")
    report_executors(driver._heart, "no executor")
    assert (driver._heart.state, driver._heart.reason) == (DriverState.WAITING, "no executor")
    assert driver._heart.idle_at is None
    report_executors(driver._heart, None)
    assert driver._heart.state is DriverState.RUNNING and driver._heart.idle_at is not None


def test_a_source_that_is_there_leaves_no_trace(driver: Driver) -> None:
    driver._await(lambda: None)
    assert driver._heart.idle_at is None


def test_a_driver_that_gets_the_lease_of_a_suspended_job_ends_in_order(driver: Driver, workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    path = f"checkpoints/{JOB}/g000001"
    begun = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":7}'
    workspace.files.write(f"{path}/offsets/7", begun)
    workspace.files.write(f"{path}/commits/7", b"v1\n{}")
    documents.desired.write(desired("suspended"))
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=path, since=utc_now(), reason="first start"))
    # It goes no further: the module of this job can't be loaded.
    assert driver.run() == 0
    ended, lease = documents.exit("i1").read(), documents.lease.read()
    assert ended is not None and (ended.outcome, ended.batch) == ("stopped", 7)
    assert lease is not None and lease.released


def test_a_job_whose_checkpoint_nothing_names_is_not_begun_anew(driver: Driver, workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    workspace.files.write(f"checkpoints/{JOB}/g000002/offsets/0", b"v1")
    assert driver.run() == 1
    ended = documents.exit("i1").read()
    assert ended is not None and ended.error is not None
    assert (ended.error.code, ended.error.retryable) == ("DOCUMENT_INVALID", False)
    assert f"streamwarden repair {JOB}" in ended.error.remedy and documents.checkpoint.read() is None


def test_what_is_wanted_counts_when_the_lease_is_there(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    acquire = driver._heart.lease.acquire

    def stopped_meanwhile(**kwargs: Any) -> Any:
        documents.desired.write(desired("suspended"))
        return acquire(**kwargs)

    monkeypatch.setattr(driver._heart.lease, "acquire", stopped_meanwhile)
    assert driver.run() == 0


def test_a_driver_that_was_given_up_before_it_ran_leaves_its_lease_and_its_end(
    driver: Driver, workspace: Workspace
) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    error = ErrorInfo.of(StreamwardenError("S3_THROTTLED", "its launch"))
    given_up = Exit(incarnation="i1", at=utc_now(), outcome="failed", error=error)
    documents.exit("i1").write(given_up)
    assert driver.run() == 0
    lease = documents.lease.read()
    assert documents.exit("i1").read() == given_up and documents.heartbeat("i1").read() is None
    assert lease is not None and lease.released


def test_a_driver_of_a_job_that_is_to_run_goes_on(driver: Driver, workspace: Workspace) -> None:
    assert driver.run() == 1
    ended = JobDocuments(workspace.storage, JOB).exit("i1").read()
    assert ended is not None and ended.error is not None and ended.error.code == "JOB_MODULE_INVALID"


@pytest.mark.parametrize("query_ended", [True, False])
def test_a_jvm_that_hangs_is_killed_after_the_record_only_if_its_query_has_ended(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, query_ended: bool
) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    released: list[bool] = []

    def kill(_: object) -> None:
        lease = documents.lease.read()
        assert lease is not None
        released.append(lease.released)
        assert (documents.exit("i1").read() is not None) is lease.released

    driver._claim()
    driver._session = object()  # type: ignore[assignment]
    driver._heart.query_ended = query_ended
    monkeypatch.setattr(runner, "stop_jvm", lambda _: False)
    monkeypatch.setattr(runner, "kill_jvm", kill)
    driver._finish(None)
    assert released[0] is query_ended
    ended = documents.exit("i1").read()
    assert ended is not None and ended.outcome == "stopped"


def test_a_signal_after_the_jvms_end_is_no_stop(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = JobDocuments(workspace.storage, JOB)

    def signalled() -> None:
        driver._claim()
        driver._session = object()  # type: ignore[assignment]
        driver._heart.request_stop("signal 15")

    def stop(_: object) -> bool:
        ended, lease = documents.exit("i1").read(), documents.lease.read()
        # There may be no time for anything else.
        assert ended is not None and ended.error is not None and ended.error.code == "OUT_OF_MEMORY"
        assert lease is not None and lease.released
        return True

    monkeypatch.setattr(driver, "_run", signalled)
    monkeypatch.setattr(runner, "is_orphaned", lambda: True)
    monkeypatch.setattr(runner, "jvm_end", lambda *_, **__: ("OUT_OF_MEMORY", "Java heap space"))
    monkeypatch.setattr(runner, "stop_jvm", stop)
    assert driver.run() == 1


def test_a_stop_counts_whatever_becomes_of_the_log(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocked(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(heartbeat._log, "info", blocked)
    with pytest.raises(OSError, match="no space"):
        driver._heart.request_stop("signal 15")
    assert driver._heart.stop.is_set()


JOB_FILE = "/jobs/lamp.py"
TYPO = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amuont` cannot be resolved."


def refused() -> AnalysisException:
    """What Spark raises in a job's transform()."""
    module: dict[str, Any] = {"error": AnalysisException(TYPO)}
    exec(compile("def transform():\n    raise error\n", JOB_FILE, "exec"), module)
    with pytest.raises(AnalysisException) as caught:
        module["transform"]()
    return caught.value


def test_a_typo_in_a_jobs_query_is_the_jobs_and_final(driver: Driver) -> None:
    driver._tries.job_file = JOB_FILE
    error = driver._tries.not_to_be_opened(desired().spec, refused())
    assert (error.code, error.what) == ("JOB_CODE_FAILED", f"{JOB}: {JOB_FILE}:2: AnalysisException: {TYPO}")
    assert driver._tries.trace is not None
    own = driver._tries.trace.split("\n\n")[0].splitlines()
    assert JOB_FILE in own[1] and "in transform" in own[1] and TYPO in own[-1]
    # However it travels on: to the exit document, to an operation, to Airflow.
    assert not error.retryable and not ErrorInfo.of(error).to_exception().retryable
    assert not pickle.loads(pickle.dumps(error)).retryable


def test_a_source_that_cannot_be_opened_is_none_of_the_jobs_code(driver: Driver) -> None:
    driver._tries.job_file = "/jobs/other.py"
    error = driver._tries.not_to_be_opened(desired().spec, refused())
    assert (error.code, error.retryable) == ("SOURCE_INVALID", False)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), StreamwardenError("S3_REFUSED", "no"), ValueError("of a library")]
)
def test_a_first_heartbeat_that_fails_is_not_the_last(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write, calls = driver._heart._write, []

    def fails_once() -> None:
        calls.append(driver._heart.state)
        if len(calls) == 1:
            raise error
        write()
        driver._heart.end()

    monkeypatch.setattr(driver._heart, "_write", fails_once)
    hurried = workspace.profile.model_copy(update={"heartbeat": timedelta(milliseconds=10)})
    monkeypatch.setattr(driver._heart, "_workspace", replace(workspace, profile=hurried))
    driver._heart.lease.acquire()
    driver._heart._beat()
    beat = JobDocuments(workspace.storage, JOB).heartbeat("i1").read()
    assert len(calls) == 2 and beat is not None and beat.reason == "lease taken"


def test_a_late_report_leaves_the_next_batchs_failed_tries(driver: Driver) -> None:
    driver._heart.failures = 3
    driver._committed(BatchProgress(batch=4, at=utc_now(), duration_ms=1, rows_in=1, tries=2))
    assert driver._heart.failures == 2
    driver._committed(BatchProgress(batch=5, at=utc_now(), duration_ms=1, rows_in=1, tries=3))
    assert driver._heart.failures == 0


def test_a_batch_that_its_limit_cut_is_followed_at_once(driver: Driver) -> None:
    class Query:
        woken = 0

        def wake(self) -> None:
            self.woken += 1

    def committed(cut: bool) -> None:
        source = SourceProgress(unit="files", taken=1, pending=1, cut=cut)
        driver._committed(BatchProgress(batch=4, at=utc_now(), duration_ms=1, rows_in=1, source=source))

    query: Any = Query()
    nothing: Any = None
    driver._queries = Queries(nothing, driver._heart, driver._tries, lambda: None, "")
    # Of a query before its first: nothing to wake.
    committed(True)
    driver._queries._query = query
    committed(False)
    assert query.woken == 0
    committed(True)
    assert query.woken == 1


def test_a_source_whose_columns_changed_is_read_again_once_after_each_batch(driver: Driver) -> None:
    """Also by a job that takes no failure, and by one that has just had another."""
    spec = desired().spec
    no_wait = {"tolerable_consecutive": 0, "backoff": timedelta(0), "backoff_max": timedelta(0)}
    spec = spec.model_copy(update={"failures": spec.failures.model_copy(update=no_wait)})
    changed = Failure.of(ValueError("[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 4"))
    driver._tries.survive(spec, changed)
    with pytest.raises(StreamwardenError, match="SOURCE_SCHEMA_CHANGED"):
        driver._tries.survive(spec, changed)
    driver._committed(BatchProgress(batch=0, at=utc_now(), duration_ms=1, rows_in=1, tries=2))
    assert driver._heart.failures == 1, "of a batch before"
    driver._tries.survive(spec, changed)
    with pytest.raises(StreamwardenError, match="SOURCE_SCHEMA_CHANGED"):
        driver._tries.survive(spec, changed)


@pytest.mark.parametrize("code", ["S3_UNREACHABLE", "S3_THROTTLED", "SERVING_UNREACHABLE"])
def test_a_server_that_is_away_is_waited_for_and_counts_as_no_failure_of_the_job(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    now, waits = [1000.0], list[float]()
    monkeypatch.setattr(tries, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(driver._heart.stop, "wait", wait)
    spec = desired().spec
    assert spec.failures.tolerable_consecutive == 3
    away, own = (Failure.of(StreamwardenError(one, "no answer")) for one in (code, "BATCH_FAILED"))

    def committed() -> None:
        failed = driver._heart.failures
        driver._committed(BatchProgress(batch=0, at=utc_now(), duration_ms=1, rows_in=1, tries=failed + 1))

    # Some minutes away, and three failures of its own in between: all that it may have.
    for _ in range(10):
        driver._tries.survive(spec, away)
    for _ in range(3):
        driver._tries.survive(spec, own)
    assert waits[:10] == [1, 2, 4, 8, *[15] * 6]
    with pytest.raises(StreamwardenError, match="BATCH_FAILED"):
        driver._tries.survive(spec, own)
    committed()

    # Away for good: three tries count after ten minutes, which a commit begins anew.
    for _ in range(30):
        driver._tries.survive(spec, away)
    committed()
    waits.clear()
    with pytest.raises(StreamwardenError, match=f"{code}.*failed tries in a row"):
        while True:
            driver._tries.survive(spec, away)
    assert 600 <= sum(waits) <= 600 + 4 * 15


@pytest.mark.parametrize(("failures", "written"), [(2, True), (1000, False)])
def test_an_end_is_written_down_if_the_store_is_back_within_the_lease(
    driver: Driver, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, failures: int, written: bool
) -> None:
    monkeypatch.setattr(runner, "_AGAIN_S", 0.01)
    monkeypatch.setattr(runner, "Deadline", lambda lease_s: Deadline(lease_s / 20))
    write, left = Document.write, iter(range(failures))

    def away(document: Document[Any], value: Any) -> Any:
        if isinstance(value, Exit) and next(left, None) is not None:
            raise StreamwardenError("S3_UNREACHABLE", "it is away")
        return write(document, value)

    monkeypatch.setattr(Document, "write", away)
    driver._record_exit(ErrorInfo.of(StreamwardenError("S3_UNREACHABLE", "4 failed tries in a row")))
    found = JobDocuments(workspace.storage, JOB).exit("i1").read()
    assert (found is not None and found.error is not None and found.error.code == "S3_UNREACHABLE") is written
