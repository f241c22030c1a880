from __future__ import annotations

import json

import pytest

from streamwarden.airflow.logtail import describe_error
from streamwarden.control.documents import ErrorInfo, Exit, JobDocuments, Launch, utc_now
from streamwarden.control.supervision import observe
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError
from tests.unit.test_cli_savepoints import JOB, run, workspace

__all__ = ["workspace"]

pytestmark = pytest.mark.unit

TRACE = "Traceback (most recent call last):\nKeyError: 'night'"


@pytest.fixture
def failed(workspace: Workspace) -> Workspace:
    documents = JobDocuments(workspace.storage, JOB)
    documents.desired.update(lambda was: was.model_copy(update={"state": "running"}))  # type: ignore[union-attr]
    documents.launch("i1").write(Launch(incarnation="i1", at=utc_now(), by="test", reason="", digest=""))
    error = ErrorInfo.of(StreamwardenError("OUT_OF_MEMORY", "java.lang.OutOfMemoryError: Java heap space"), TRACE)
    documents.exit("i1").write(Exit(incarnation="i1", at=utc_now(), outcome="failed", error=error, batch=2))
    return workspace


def test_status_names_the_failure_and_the_next_act(failed: Workspace) -> None:
    text = run("status", JOB, code=1)
    assert "[OUT_OF_MEMORY]" in text and "Diagnosis: the JVM ran out of heap" in text
    assert f"config/jobs/{JOB}.yaml" in text and f"Command: streamwarden deploy {JOB}" in text
    shown = json.loads(run("status", JOB, "--json", code=1))["diagnosis"]
    assert shown["code"] == "OUT_OF_MEMORY" and shown["evidence"] == "java.lang.OutOfMemoryError: Java heap space"


def test_supervise_shows_the_last_traceback_when_it_gives_up(failed: Workspace) -> None:
    documents = JobDocuments(failed.storage, JOB)
    desired = documents.desired.read()
    assert desired is not None
    never = desired.spec.model_copy(update={"restarts": desired.spec.restarts.model_copy(update={"max": 0})})
    documents.desired.write(desired.model_copy(update={"spec": never}))
    text = run("supervise", JOB, code=2)
    assert "RESTART_BUDGET_SPENT" in text and "Last: OUT_OF_MEMORY: java.lang.OutOfMemoryError" in text
    assert TRACE in text and text.index(TRACE) < text.index("Diagnosis: ") < text.index("[RESTART_BUDGET_SPENT]")
    assert "Raise resources.memory of the job" in text, "the remedy is that of the last cause"
    assert "driver: ok -> critical" in text
    assert documents.health.read() is None, "it has no notifiers: a page that is told here is told to nobody"


def test_a_tasks_log_has_the_diagnosis_before_the_traceback(failed: Workspace) -> None:
    seen = observe(failed, JOB)
    assert seen.error is not None
    text = describe_error(failed, seen, seen.error)
    assert (
        text.index("[OUT_OF_MEMORY]") < text.index("Diagnosis: ") < text.index(TRACE) < text.index("--- no log files")
    )
