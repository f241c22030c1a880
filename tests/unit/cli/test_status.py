from __future__ import annotations

import json
import signal
import subprocess
from datetime import timedelta

import pytest

from streamwarden.airflow.logtail import describe_error
from streamwarden.cli import jobs
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.row_rules import RowRule
from streamwarden.model.spec import SinkSpec
from streamwarden.model.status import DriverState, Exit, Heartbeat, Launch
from streamwarden.model.supervision import Restart, Supervision
from streamwarden.runtime.processes import current_process, process_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action, Verdict, decide
from streamwarden.supervision.observe import observe
from tests.unit.cli.test_savepoints import JOB, run, workspace

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


def test_a_job_that_failed_for_good_stays_so_when_its_window_has_passed(failed: Workspace) -> None:
    documents = JobDocuments(failed.storage, JOB)
    supervision, now = documents.supervision, utc_now()
    spent = [Restart(at=now, after=f"e{number}", reason="") for number in range(5)]
    supervision.write(Supervision(restarts=spent))
    assert "RESTART_BUDGET_SPENT" in run("supervise", JOB, code=2)
    # As it is a day later.
    memory = supervision.read()
    assert memory is not None
    long_ago = [entry.model_copy(update={"at": now - timedelta(days=1)}) for entry in memory.restarts]
    supervision.write(memory.model_copy(update={"restarts": long_ago}))
    shown = json.loads(run("status", JOB, "--json", code=1))
    assert (shown["phase"], shown["health"]) == ("failed", "critical")
    assert [found["rule"] for found in shown["findings"]] == ["driver"]
    assert shown["error"]["code"] == shown["diagnosis"]["code"] == "OUT_OF_MEMORY"
    assert "[RESTART_BUDGET_SPENT]" in run("supervise", JOB, code=2), "it is not for a supervisor to start it again"
    assert documents.incarnations() == ["i1"]

    driver_control.forgive(failed, JOB, why="deployed")
    seen, memory = observe(failed, JOB), supervision.read()
    assert memory is not None and decide(seen, memory).action is Action.RESTART


def test_supervise_tries_a_suspension_again_that_took_too_long(
    failed: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspend = Verdict(Action.SUSPEND, "full", error=ErrorInfo.of(StreamwardenError("STATE_LIMIT_REACHED", "full")))
    monkeypatch.setattr(jobs, "decide", lambda *_: suspend)
    tries: list[str] = []

    def slow(*_: object, **__: object) -> ErrorInfo:
        tries.append("")
        if len(tries) == 1:
            raise StreamwardenError("STOP_TIMED_OUT", "for the test")
        return ErrorInfo.of(StreamwardenError("STATE_LIMIT_REACHED", "full"))

    monkeypatch.setattr(jobs, "put_down", slow)
    text = run("supervise", JOB, "--poll", "0.1", code=2)
    assert text.index("STOP_TIMED_OUT") < text.index("[STATE_LIMIT_REACHED]") and len(tries) == 2


def test_a_savepoint_with_a_stop_that_takes_too_long_says_what_to_do(failed: Workspace) -> None:
    documents = JobDocuments(failed.storage, JOB)
    now = utc_now()
    documents.launch("i2").write(
        Launch(incarnation="i2", at=now, by="test", reason="", digest="", process=current_process())
    )
    text = run("savepoint", JOB, "--stop", "--timeout", "0.2", code=2)
    assert "[STOP_TIMED_OUT]" in text and "No savepoint was taken" in text and "repeat" in text


def test_stop_kills_a_driver_that_hangs_and_says_what_becomes_of_its_batch(failed: Workspace) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process = process_of(child.pid)
    JobDocuments(failed.storage, JOB).launch("i2").write(
        Launch(incarnation="i2", at=utc_now(), by="test", reason="", digest="", process=process)
    )
    assert "--kill" in run("stop", JOB, "--timeout", "0.2", code=2)
    text = run("stop", JOB, "--timeout", "0.2", "--kill")
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert "DRIVER_KILLED" in text and "the next start finishes the batch" in text.replace("\n", " ")


def test_a_job_whose_yaml_was_removed_while_it_is_to_run_is_shown_and_can_be_stopped(failed: Workspace) -> None:
    (failed.config / "jobs" / f"{JOB}.yaml").unlink()
    for words in (["status"], ["status", JOB]):
        text = run(*words, code=1)
        assert f"{JOB}: not described any more: config/jobs/{JOB}.yaml is gone" in text
        assert f"`streamwarden stop {JOB}`" in text and "[OUT_OF_MEMORY]" in text
    shown = {one["job"]: one for one in json.loads(run("status", "--json", code=1))}
    assert [job for job, one in shown.items() if not one["described"]] == [JOB] and len(shown) > 1
    assert json.loads(run("status", JOB, "--json", code=1))["described"] is False
    assert "no operation yet" not in run("operations", JOB, code=2), "none was ever done to it"
    assert "[JOB_UNKNOWN]" in run("status", "never_was", code=2)
    assert f"{JOB}: failed" in run("stop", JOB)
    # It is to be at rest, and is: of no concern to who asks for all jobs.
    assert JOB not in run("status") and JOB in run("status", JOB, code=1)


def test_status_tells_what_a_person_should_know_of_a_driver_that_is_well(failed: Workspace) -> None:
    documents, process = JobDocuments(failed.storage, JOB), current_process()
    documents.launch("i2").write(
        Launch(incarnation="i2", at=utc_now(), by="test", reason="", digest="", process=process)
    )
    beat = Heartbeat(
        incarnation="i2",
        at=utc_now(),
        started_at=utc_now(),
        state=DriverState.RUNNING,
        process=process,
        notes=["table t: columns that are not the job's: note string"],
    )
    documents.heartbeat("i2").write(beat)
    assert f"{JOB}: table t: columns that are not the job's: note string" in run("status", JOB)
    assert json.loads(run("status", JOB, "--json"))["notes"] == beat.notes


def test_status_says_why_a_job_does_not_run_yet(failed: Workspace) -> None:
    documents, process = JobDocuments(failed.storage, JOB), current_process()
    documents.launch("i2").write(
        Launch(incarnation="i2", at=utc_now(), by="test", reason="", digest="", process=process)
    )
    assert f"{JOB}: starting: launched, no heartbeat yet" in run("status", JOB)


def test_status_of_a_job_lists_its_row_rules(workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    desired = documents.desired.read()
    assert desired is not None
    assert run("status", JOB, "--json").count('"row_rules": []') == 1
    rule = RowRule(id="trips.riders", reason="Trips carry 0 to 9.", fails="`n` > 9L", columns={"n": "number"})
    sinks = [
        one.model_copy(update={"row_rules": (rule,)}) if isinstance(one, SinkSpec) and one.table == "trips" else one
        for one in desired.spec.sinks
    ]
    spec = desired.spec.model_copy(update={"sinks": tuple(sinks)})
    documents.desired.write(desired.model_copy(update={"spec": spec}))
    assert json.loads(run("status", JOB, "--json"))["row_rules"] == [
        {"table": "trips", "id": "trips.riders", "reason": "Trips carry 0 to 9.", "quarantine": "trips_quarantine"}
    ]
    line = f"{JOB}: row rule trips.riders: failing rows go to trips_quarantine. Trips carry 0 to 9."
    assert line in run("status", JOB) and line not in run("status")
