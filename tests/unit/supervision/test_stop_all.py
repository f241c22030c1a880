"""Stopping all jobs at once: each is asked and waited for, whatever became of the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from streamwarden.devserver.__main__ import _stop_jobs
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import OperationState
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Exit, Heartbeat, Launch, Lease
from streamwarden.runtime.operation_lock import begin
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from tests.unit.supervision.test_supervision import desired

pytestmark = pytest.mark.unit

BY = "test"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "jobs").mkdir()
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    found = open_workspace("test", config=tmp_path / "config")
    for job in ("first", "second", "third"):
        (tmp_path / "config" / "jobs" / f"{job}.yaml").touch()
        deployed(found, job)
    return found


def deployed(workspace: Workspace, job: str) -> None:
    JobDocuments(workspace.storage, job).desired.write(desired().model_copy(update={"job": job}))


def runs(workspace: Workspace, job: str) -> None:
    """Let it look as if this very process were its driver, which heeds no request."""
    documents, now, process = JobDocuments(workspace.storage, job), utc_now(), current_process()
    documents.launch("i1").write(Launch(incarnation="i1", at=now, by=BY, reason="", digest="", process=process))
    documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=now, started_at=now, state=DriverState.RUNNING, process=process)
    )
    lasts = now + timedelta(minutes=5)
    documents.lease.write(Lease(job=job, incarnation="i1", process=process, epoch=1, acquired_at=now, expires_at=lasts))


def wanted(workspace: Workspace, job: str) -> str:
    found = JobDocuments(workspace.storage, job).desired.read()
    assert found is not None
    return found.state


def test_a_busy_job_keeps_no_other_from_being_stopped(workspace: Workspace) -> None:
    with begin(workspace, "first", "restore", by="somebody", params={}) as handle:
        with pytest.raises(StreamwardenError) as raised:
            driver_control.stop_all(workspace, ["first", "second", "third"], by=BY, timeout=5)
        handle.end(OperationState.DONE)
    assert [wanted(workspace, job) for job in ("first", "second", "third")] == ["running", "suspended", "suspended"]
    assert raised.value.code == "STOP_INCOMPLETE"
    assert "first" in raised.value.what and "OPERATION_RUNNING" in raised.value.what
    assert handle.id in raised.value.what and "second" not in raised.value.what


def test_each_that_does_not_end_in_time_is_named(workspace: Workspace) -> None:
    runs(workspace, "first")
    runs(workspace, "third")
    with pytest.raises(StreamwardenError) as raised:
        driver_control.stop_all(workspace, ["first", "second", "third"], by=BY, timeout=0.5)
    assert raised.value.code == "STOP_INCOMPLETE"
    assert raised.value.what.count("STOP_TIMED_OUT") == 2 and "second" not in raised.value.what
    for job in ("first", "third"):
        assert JobDocuments(workspace.storage, job).stop("i1").read() is not None


def test_all_are_those_that_were_deployed_with_or_without_their_yaml(workspace: Workspace) -> None:
    deployed(workspace, "removed")
    (workspace.config / "jobs" / "never.yaml").touch()
    assert set(driver_control.stop_all(workspace, by=BY)) == {"first", "second", "third", "removed"}
    assert wanted(workspace, "removed") == "suspended"


def test_going_down_tells_of_a_job_that_an_operation_works_on(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its driver is not up at this moment: the operation is about to start one."""
    deployed(workspace, "removed")
    runs(workspace, "removed")
    runs(workspace, "first")
    JobDocuments(workspace.storage, "first").exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="stopped"))
    with begin(workspace, "first", "rescale", by="somebody", params={}) as handle:
        assert _stop_jobs(workspace, 0.5) == 1
        handle.end(OperationState.DONE)
    said = capsys.readouterr().err
    assert handle.id in said
    assert "removed" in said and "STOP_TIMED_OUT" in said
    assert "second" not in said
