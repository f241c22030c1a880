"""Restoring from Airflow, with drivers that are stand-ins."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DagRunTriggerException, TaskDeferred
from deltalake import write_deltalake

from streamwarden.airflow.operators.base import InterruptibleOperator
from streamwarden.airflow.operators.ensure_supervised import EnsureSupervisedOperator
from streamwarden.airflow.operators.restore import RestoreOperator
from streamwarden.airflow.operators.supervise import SuperviseOperator
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.operations import restore
from streamwarden.runtime.operation_lock import active_operation, begin
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import REPOSITORY, Place, Run, reborn, watched
from tests.airflow.test_dags import load

pytestmark = pytest.mark.airflow


def restoring(place: Place, **kwargs: Any) -> RestoreOperator:
    kwargs.setdefault("health_timeout", 60)
    return RestoreOperator(task_id="restore", job="lamp", **kwargs, **place.place())


def run_of(attempt: int = 1, **kwargs: Any) -> Run:
    return Run(dag_id="restore", attempt=attempt, granted=3, **kwargs)


def savepoint(place: Place, *, batches: int = 3) -> Manifest:
    """Deploy, take a verified savepoint, and go on for some batches."""
    place.deploy()
    made = take(place.workspace, "lamp", origin=Origin.MANUAL, by="test")
    verify(place.workspace, [catalog.find(place.workspace, "lamp", made.id)], by="test")
    place.batch(made.batch + batches)
    return made


def reference(place: Place) -> CheckpointRef:
    found = JobDocuments(place.workspace.storage, "lamp").checkpoint.read()
    assert found is not None
    return found


def operation(place: Place) -> Operation:
    found = JobDocuments(place.workspace.storage, "lamp").operation.read()
    assert found is not None
    return found


@contextmanager
def terminated_when(task: InterruptibleOperator, condition: Callable[[], bool]) -> Iterator[None]:
    """Send SIGTERM as Airflow does when a task is marked failed or its worker shuts down, once a condition holds."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if condition():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        # A signal after that would end the tests.
        watching.join()
        signal.signal(signal.SIGTERM, before)


def at_step(place: Place, name: str) -> Callable[[], bool]:
    def reached() -> bool:
        found = active_operation(place.workspace, "lamp")
        return found is not None and bool(found.steps) and found.steps[-1].name == name

    return reached


def test_restores_while_the_supervisor_waits(place: Place) -> None:
    made = savepoint(place)
    first = place.seen()
    run = Run()
    with pytest.raises(TaskDeferred) as raised:
        SuperviseOperator(task_id="supervise", job="lamp", **place.place()).execute(run.context())
    trigger = reborn(raised.value.trigger, run)  # type: ignore[arg-type]
    with watched(trigger) as events:
        task, said = restoring(place, savepoint=f"{made.id} · lamp · batch 1", reason="a bad file"), []
        task.log.info = lambda text, *args: said.append(text % args)  # type: ignore[method-assign]
        context = run_of().context("restore")
        done = task.execute(context)
        # It watches the new driver now.
        place.until(lambda now: trigger.incarnation == now.incarnation)
    assert events == [], "the supervisor had nothing to do"
    assert done["state"] == "done" and done["savepoint"] == made.id
    assert (done["batch"], done["generation"]) == (made.batch, 2)
    assert list(done["steps"]) == [
        "precheck",
        "stop",
        "pre-restore savepoint",
        "fresh checkpoint",
        "switch",
        "start",
        "wait for health",
    ]
    seen = place.seen()
    assert seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation
    # The start is the last that writes it.
    assert seen.desired is not None and seen.desired.note == reference(place).reason
    for name in done["steps"]:
        assert any(line.startswith(f"step {name}: ") for line in said), name
    assert active_operation(place.workspace, "lamp") is None


def test_unhealthy_job_goes_back_and_the_run_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://h/air")
    made = savepoint(place)
    before = reference(place)
    place.write_job(standin_fail="DRIVER_FAILED")
    task, said = restoring(place, savepoint="latest"), []
    task.log.error = lambda text, *args: said.append(text % args)  # type: ignore[method-assign]
    context = run_of().context("restore")
    with pytest.raises(AirflowFailException) as raised:
        task.execute(context)
    text = str(raised.value)
    assert "[RESTORE_UNHEALTHY]" in text and "DRIVER_FAILED: as it was told" in text and "What to do" in text
    assert context["ti"].pushed["error"]["code"] == "RESTORE_UNHEALTHY"
    assert "stand-in fails as it was told" in said[0], "the words of the driver that failed"
    assert f"http://h/air/plugin/streams/air/streamwarden/operations/lamp/{operation(place).id}" in said[0]
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.heartbeat is not None and seen.heartbeat.generation == before.generation == 1
    assert reference(place).path == before.path and operation(place).state == "rolled back"
    assert catalog.find(place.workspace, "lamp", made.id).record.in_use_by == []
    # Had the worker died just before it said so, the next try would say the same, and not begin anew.
    ended = operation(place).id
    again = run_of(attempt=2).context("restore")
    with pytest.raises(AirflowFailException, match="RESTORE_UNHEALTHY"):
        task.execute(again)
    assert operation(place).id == ended and place.seen().incarnation == seen.incarnation


def with_a_table_to_put_back(place: Place) -> CheckpointRef:
    """Stop a job of which a generation was undone, and no driver has put its table back since."""
    savepoint(place)
    driver_control.stop(place.workspace, "lamp", by="test")
    for batch in range(3):
        write_deltalake(place.workspace.table("lamp"), pa.table({"batch": [batch]}), mode="append")
    documents = JobDocuments(place.workspace.storage, "lamp")
    pending = [OutputStart(table="lamp", version=0)]
    documents.checkpoint.write(reference(place).model_copy(update={"outputs": pending}))
    return reference(place)


def test_a_table_that_is_left_as_it_is_is_put_back_first_where_that_was_to_be(place: Place) -> None:
    before = with_a_table_to_put_back(place)
    # The stand-in puts back nothing: what it should is still in the document.
    assert restoring(place, outputs="leave").execute(run_of().context("restore"))["state"] == "done"
    assert (reference(place).generation, reference(place).outputs) == (2, before.outputs)


@pytest.mark.parametrize("outputs", ["leave", "rewind"])
def test_a_table_that_is_still_to_be_put_back_is_so_after_a_way_back(place: Place, outputs: str) -> None:
    before = with_a_table_to_put_back(place)
    place.write_job(standin_fail="DRIVER_FAILED")
    with pytest.raises(AirflowFailException, match="RESTORE_UNHEALTHY"):
        restoring(place, outputs=outputs).execute(run_of().context("restore"))
    now = reference(place)
    assert (now.generation, now.outputs) == (1, before.outputs)


@pytest.mark.parametrize(
    "change, code",
    [({"savepoint": "nothing"}, "SAVEPOINT_NOT_FOUND"), ({}, "RESTORE_SOURCE_CHANGED")],
)
def test_what_does_not_fit_is_said_before_anything_is_touched(place: Place, change: dict[str, str], code: str) -> None:
    savepoint(place)
    first = place.seen()
    if code == "RESTORE_SOURCE_CHANGED":
        path = place.config / "jobs" / "lamp.yaml"
        path.write_text(path.read_text().replace("path: landing", "path: elsewhere"))
    context = run_of().context("restore")
    with pytest.raises(AirflowFailException, match=rf"\[{code}\](?s:.)*What to do"):
        restoring(place, **change).execute(context)
    assert context["ti"].pushed["error"]["code"] == code
    assert place.seen().incarnation == first.incarnation and place.seen().phase is Phase.RUNNING
    assert reference(place).generation == 1


def test_another_operation_is_not_waited_for(place: Place) -> None:
    savepoint(place)
    with (
        begin(place.workspace, "lamp", "restore", by="somebody", params={}) as handle,
        pytest.raises(AirflowFailException, match="OPERATION_RUNNING"),
    ):
        restoring(place).execute(run_of().context("restore"))
    assert operation(place).id == handle.id


def test_an_earlier_try_that_still_works_is_waited_for(place: Place) -> None:
    savepoint(place)
    by = "airflow:restore/manual__1"
    with begin(place.workspace, "lamp", "restore", by=by, params={}), pytest.raises(AirflowException) as raised:
        restoring(place).execute(run_of(attempt=2).context("restore"))
    assert "OPERATION_RUNNING" in str(raised.value) and not isinstance(raised.value, AirflowFailException)


@pytest.mark.parametrize("step, generation", [("stop", 1), ("wait for health", 2)])
def test_killed_restore_lets_a_supervisor_go_on_and_is_resumed(place: Place, step: str, generation: int) -> None:
    place.write_job(standin_stop_s=1)
    made = savepoint(place)
    # After the restore it does nothing at first: its health is waited for.
    place.write_job(standin_stop_s=1, standin_mute=0)
    task = restoring(place)
    with terminated_when(task, at_step(place, step)), pytest.raises(AirflowException, match="ended from outside"):
        task.execute(run_of().context("restore"))
    left = operation(place)
    assert left.state == "running" and left.process is None and active_operation(place.workspace, "lamp") is None
    assert reference(place).generation == generation, "on the old checkpoint or on the new one"
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.desired is not None and seen.desired.state == "running"
    place.write_job(standin_stop_s=1)
    if generation == 2:
        # Whoever starts the driver again, it goes on from there. Not a deploy: that would be another operation.
        documents = JobDocuments(place.workspace.storage, "lamp")
        spec = place.workspace.job("lamp")
        documents.desired.update(lambda was: was.model_copy(update={"spec": spec, "digest": spec.digest()}))  # type: ignore[union-attr]
        driver_control.end_driver(place.workspace, "lamp", by="test", reason="the test")
        driver_control.start(place.workspace, "lamp", by="test")
        place.until(lambda now: now.phase is Phase.RUNNING and now.incarnation != seen.incarnation)
    done = restoring(place).execute(run_of(attempt=2).context("restore"))
    assert done["operation"] == left.id and done["savepoint"] == made.id and done["generation"] == 2
    assert place.seen().phase is Phase.RUNNING and reference(place).generation == 2
    # And once more: Airflow never heard that it had ended.
    told = restoring(place).execute(run_of(attempt=3).context("restore"))
    assert told == done and reference(place).generation == 2
    # But a clear means it again.
    cleared = Run(dag_id="restore", attempt=4, granted=6).context("restore")
    assert restoring(place).execute(cleared)["generation"] == 3


def half_way(place: Place) -> CheckpointRef:
    """Let a restore be interrupted while it waits for a stand-in's health that says nothing; return what was before."""
    savepoint(place)
    before = reference(place)
    place.write_job(standin_mute=0)
    task = restoring(place)
    with terminated_when(task, at_step(place, "wait for health")), pytest.raises(AirflowException):
        task.execute(run_of().context("restore"))
    assert reference(place).generation == 2
    return before


def test_who_stops_the_job_after_the_switch_has_the_last_word(place: Place) -> None:
    before = half_way(place)
    driver_control.stop(place.workspace, "lamp", by="somebody")
    with pytest.raises(AirflowFailException, match=r"RESTORE_UNHEALTHY(?s:.)*stopped since, by somebody"):
        restoring(place).execute(run_of(attempt=2).context("restore"))
    seen = place.seen()
    assert operation(place).state == "rolled back" and reference(place).path == before.path
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "suspended"


def test_a_way_back_that_could_not_be_finished_is_gone_on_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = half_way(place)

    def unhealthy(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("DRIVER_DIED", "for the test")

    def refused(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("S3_UNREACHABLE", "for the test")

    with monkeypatch.context() as changed, pytest.raises(AirflowException) as raised:
        changed.setattr(driver_control, "await_health", unhealthy)
        changed.setattr(driver_control, "end_driver", refused)
        restoring(place).execute(run_of(attempt=2).context("restore"))
    assert not isinstance(raised.value, AirflowFailException), "Airflow tries again"
    assert operation(place).state == "running" and operation(place).plan.failure.code == "DRIVER_DIED"
    starts = [step.detail for step in operation(place).steps if step.name == "start"]
    assert starts[1] == f"{starts[0]} runs already", "also where it has not spoken yet"
    # What was judged is not judged again, though it would be found healthy by now.
    monkeypatch.setattr(driver_control, "await_health", lambda *_, **__: "healthy")
    with pytest.raises(AirflowFailException, match=r"RESTORE_UNHEALTHY(?s:.)*DRIVER_DIED"):
        restoring(place).execute(run_of(attempt=3).context("restore"))
    assert operation(place).state == "rolled back" and reference(place).path == before.path
    assert place.until(lambda now: now.phase is Phase.RUNNING).desired is not None


def test_documents_out_of_reach_are_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint(place)

    def away(*_: Any, **__: Any) -> None:
        raise StreamwardenError("S3_UNREACHABLE", "no answer")

    monkeypatch.setattr("streamwarden.airflow.operators.restore.restore", away)
    with pytest.raises(AirflowException) as raised:
        restoring(place).execute(run_of().context("restore"))
    assert not isinstance(raised.value, AirflowFailException)


def ensure(place: Place, run: Run) -> str | None:
    task = EnsureSupervisedOperator(task_id="supervise", job="lamp", operation_task_id="restore", **place.place())
    return task.execute(run.context("supervise"))


def test_a_restored_job_that_nobody_supervises_gets_a_run(place: Place) -> None:
    place.deploy()
    assert ensure(place, run_of(states={"restore": "success"}, runs_of_job=1)) == "job_lamp"
    for waits in (None, "queued", "scheduled", "running", "up_for_retry"):
        run = run_of(states={"restore": "success"}, runs_of_job=1, job_states={"supervise": waits})
        assert ensure(place, run) == "job_lamp"
    for ended in ("success", "failed"):
        # It has its teardown left to do, and watches nothing.
        with pytest.raises(DagRunTriggerException):
            ensure(place, run_of(states={"restore": "success"}, runs_of_job=1, job_states={"supervise": ended}))
    with pytest.raises(DagRunTriggerException) as raised:
        ensure(place, run_of(states={"restore": "success"}, job_paused=True))
    assert raised.value.trigger_dag_id == "job_lamp" and raised.value.dag_run_id == "restore__manual__1__1"
    assert ensure(place, run_of(states={"restore": "failed"})) is None, "it runs as it did"
    driver_control.stop(place.workspace, "lamp", by="test")
    assert ensure(place, run_of(states={"restore": "success"})) is None


def test_a_job_that_a_killed_restore_left_down_gets_a_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    savepoint(place)

    def killed(*_: Any, **__: Any) -> None:
        # As SIGKILL would: nothing is tidied up.
        raise KeyboardInterrupt

    monkeypatch.setattr(restore._Restore, "_save", killed)
    monkeypatch.setattr(restore._Restore, "_recover", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        restoring(place).execute(run_of().context("restore"))
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "running"
    with pytest.raises(DagRunTriggerException):
        ensure(place, run_of(states={"restore": "failed"}))


def test_runs_in_airflow_and_triggers_a_supervised_run(place: Place, airflow_database: None) -> None:
    made = savepoint(place)
    dag = load(REPOSITORY / "dags" / "operations.py").dags["restore"]
    run = dag.test(run_conf={"job": "lamp", "savepoint": made.id, "reason": "the test", "health_timeout": 60})
    assert {ti.task_id: str(ti.state) for ti in run.get_task_instances()} == {
        "restore": "success",
        "supervise": "success",
    }
    assert reference(place).generation == 2 and operation(place).by.startswith("airflow:restore/")
    from airflow.models.dagrun import DagRun

    # The database is that of all tests of this process.
    triggered = [found for found in DagRun.find(dag_id="job_lamp") if found.run_id.startswith("restore__")]
    assert [str(found.state) for found in triggered] == ["queued"]

    place.write_job(standin_fail="DRIVER_FAILED")
    run = dag.test(run_conf={"job": "lamp", "savepoint": made.id, "health_timeout": 60})
    assert {ti.task_id: str(ti.state) for ti in run.get_task_instances()} == {
        "restore": "failed",
        "supervise": "success",
    }
    assert str(run.state) == "failed", "the teardown hides nothing"
