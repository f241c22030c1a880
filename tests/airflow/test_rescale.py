"""Rescaling from Airflow, with drivers that are stand-ins: what a form gives, what a run tells, and who goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.rescale import CancelRescaleOperator, RescaleOperator
from streamwarden.autoscaler.advise import holds_back
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_follower import Follower
from streamwarden.model.operation import Operation
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.rescale import _Rescale, cancel, rescale
from streamwarden.operations.rescale_plan import plan_rescale
from streamwarden.operations.spec_diff import plan
from streamwarden.runtime.processes import is_alive, kill
from streamwarden.runtime.standby import Standby
from streamwarden.runtime.state_reader import StateAt
from streamwarden.savepoints.take import take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import effective_spec
from streamwarden.supervision import driver_control
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.health_rules import Finding, Level
from streamwarden.supervision.observe import Observation, Phase
from tests.airflow.conftest import REPOSITORY, Place, Run
from tests.airflow.standin_driver import commit
from tests.airflow.test_dags import load
from tests.airflow.test_restore import terminated_when

pytestmark = pytest.mark.airflow


def rescaling(place: Place, **kwargs: Any) -> RescaleOperator:
    kwargs.setdefault("health_timeout", 60)
    return RescaleOperator(task_id="rescale", job="lamp", **kwargs, **place.place())


def context(attempt: int = 1) -> Any:
    return Run(dag_id="rescale", attempt=attempt, granted=3).context("rescale")


def operation(place: Place) -> Operation:
    found = JobDocuments(place.workspace.storage, "lamp").operation.read()
    assert found is not None
    return found


def cores(place: Place) -> int:
    desired = place.seen().desired
    assert desired is not None
    return desired.spec.resources.cores


def test_more_cores_from_what_a_form_gives(place: Place) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    # As Airflow's templates leave an empty field, and a number.
    task = rescaling(
        place,
        **{"partitions": "None", "cores": str(before + 1), "memory": ""},
        **{"reason": "more rows", "approved_by": "boris", "approved": f"cores {before} -> {before + 1}"},
    )
    told = task.execute(Run(dag_id="rescale", person="anna").context("rescale"))
    assert (told["by"], told["reason"]) == ("airflow:rescale/manual__1, for anna", "more rows")
    assert told["approved_by"] == operation(place).plan.approved_by == "boris"
    assert (told["state"], told["was"]["cores"], told["to"]["cores"]) == ("done", before, before + 1)
    assert told["generation"] is None and told["savepoint"] and told["downtime_s"] >= 0
    assert list(told["steps"]) == [
        *("precheck", "start Spark", "stop", "pre-rescale savepoint", "switch", "start", "first batch", "catch up")
    ]
    assert cores(place) == effective_spec(place.workspace, "lamp").resources.cores == before + 1
    assert plan(place.workspace, "lamp").effect is Effect.NONE
    refused = context()
    with pytest.raises(AirflowFailException, match="RESCALE_NOTHING"):
        rescaling(place, cores=before + 1).execute(refused)
    pushed = refused["ti"].pushed
    assert pushed["error"]["code"] == "RESCALE_NOTHING" and pushed["summary"]["state"] == "failed"


def test_what_was_approved_is_done_and_nothing_else(place: Place) -> None:
    place.deploy()
    place.batch(1)
    first = place.seen().incarnation
    was = cores(place)
    # Somebody has made it narrower meanwhile.
    with pytest.raises(
        AirflowFailException, match=f"cores {was} -> {was + 1}, and cores {was + 3} -> {was + 1} was appr"
    ):
        rescaling(place, cores=was + 1, approved=f"cores {was + 3} -> {was + 1}").execute(context())
    assert (place.seen().incarnation, cores(place)) == (first, was)


@pytest.mark.long
@pytest.mark.ci
def test_the_downtime_ends_with_the_first_batch_however_long_it_takes_to_catch_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_job(standin_batch_s=0.1)
    place.deploy()
    place.batch(1)
    before, real = place.seen().incarnation, _Rescale._findings

    def findings(work: _Rescale, seen: Observation) -> list[Any]:
        recent = seen.progress.recent if seen.progress else []
        # Until its first batches are none of those that the progress document holds.
        behind = seen.incarnation != before and (not recent or recent[0].batch <= work._plan.base + 10)
        return [Finding("lag", Level.CRITICAL, "for the test", 1.0, 1.0)] if behind else real(work, seen)

    monkeypatch.setattr(_Rescale, "_findings", findings)
    done = rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test", health_timeout=120)
    first = next(step for step in done.steps if step.name == "first batch")
    assert first.ended_at is not None
    back = done.plan.stopped_at + timedelta(seconds=done.plan.downtime_s)
    assert back <= first.ended_at + timedelta(milliseconds=10)


def test_what_is_unhealthy_goes_back_and_fails_the_run_for_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.await_health
    calls: list[int] = []

    def first_fails(*arguments: Any, **rest: Any) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise StreamwardenError("OUT_OF_MEMORY", "for the test")
        return real(*arguments, **rest)

    monkeypatch.setattr(driver_control, "await_health", first_fails)
    run = context()
    with pytest.raises(AirflowFailException, match="RESCALE_UNHEALTHY") as raised:
        rescaling(place, cores=before + 1).execute(run)
    assert "OUT_OF_MEMORY" in str(raised.value)
    found = operation(place)
    pushed = run["ti"].pushed
    assert pushed["error"]["code"] == "RESCALE_UNHEALTHY" and pushed["error"]["remedy"]
    assert "OUT_OF_MEMORY: " in pushed["error"]["what"]
    summary = pushed["summary"]
    assert (summary["operation"], summary["state"]) == (found.id, "rolled back")
    assert (summary["was"]["cores"], summary["to"]["cores"]) == (before, before + 1)
    assert summary["savepoint"] and summary["downtime_s"] >= 0
    assert {"stop", "switch", "roll back"} <= {name for name, took in summary["steps"].items() if took is not None}
    assert found.state == "rolled back" and found.steps[-1].name == "wait for health after the rollback"
    assert cores(place) == before and place.seen().phase is Phase.RUNNING
    assert plan(place.workspace, "lamp").effect is Effect.NONE


def test_a_cancelled_one_leaves_the_job_as_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.stop_in_turn

    def stop(*arguments: Any, **rest: Any) -> str:
        said = real(*arguments, **rest)
        cancel(place.workspace, "lamp", by="somebody")
        return said

    monkeypatch.setattr(driver_control, "stop_in_turn", stop)
    with pytest.raises(AirflowFailException, match=r"OPERATION_CANCELLED.*by somebody"):
        rescaling(place, cores=before + 1).execute(context())
    assert operation(place).state == "failed" and cores(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    with pytest.raises(StreamwardenError, match="OPERATION_NONE"):
        cancel(place.workspace, "lamp", by="somebody")


def test_one_that_is_cancelled_while_it_waits_for_the_drivers_end_goes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.await_stop

    def await_stop(*arguments: Any, **rest: Any) -> Any:
        seen = real(*arguments, **rest)
        cancel(place.workspace, "lamp", by="somebody")
        return seen

    monkeypatch.setattr(driver_control, "await_stop", await_stop)
    with pytest.raises(AirflowFailException, match=r"OPERATION_CANCELLED.*by somebody"):
        rescaling(place, cores=before + 1).execute(context())
    assert operation(place).steps[-3].name == "switch" and cores(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING)


def test_one_that_is_cancelled_between_the_switch_and_the_start_goes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.forgive

    def forgive(*arguments: Any, **rest: Any) -> None:
        real(*arguments, **rest)
        cancel(place.workspace, "lamp", by="somebody")

    monkeypatch.setattr(driver_control, "forgive", forgive)
    with pytest.raises(AirflowFailException, match=r"RESCALE_UNHEALTHY.*OPERATION_CANCELLED"):
        rescaling(place, cores=before + 1).execute(context())
    found = operation(place)
    # It was about to start, and has started nothing.
    assert found.state == "rolled back" and [step.detail for step in found.steps if step.name == "start"] == [""]
    assert cores(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING)


def test_a_dag_cancels_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.stop_in_turn
    asks = CancelRescaleOperator(task_id="cancel", job="lamp", **place.place())
    asked: list[dict[str, Any]] = []

    def stop(*arguments: Any, **rest: Any) -> str:
        asked.append(asks.execute(Run(dag_id="cancel_rescale", person="boris").context("cancel")))
        return real(*arguments, **rest)

    monkeypatch.setattr(driver_control, "stop_in_turn", stop)
    with pytest.raises(AirflowFailException, match=r"OPERATION_CANCELLED.*airflow:cancel_rescale/.*, for boris"):
        rescaling(place, cores=before + 1).execute(context())
    assert asked[0]["operation"] == operation(place).id and asked[0]["step"] == "stop" and cores(place) == before
    with pytest.raises(AirflowFailException, match="OPERATION_NONE"):
        asks.execute(Run(dag_id="cancel_rescale").context("cancel"))


def test_a_cancel_that_comes_too_late_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before, real = cores(place), driver_control.await_health

    def await_health(*arguments: Any, **rest: Any) -> str:
        with pytest.raises(StreamwardenError, match="OPERATION_TOO_LATE"):
            cancel(place.workspace, "lamp", by="somebody")
        return real(*arguments, **rest)

    monkeypatch.setattr(driver_control, "await_health", await_health)
    assert rescaling(place, cores=before + 1).execute(context())["state"] == "done"
    assert cores(place) == before + 1


def test_an_interrupted_one_that_is_cancelled_goes_back_when_it_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    place.batch(1)
    before, task, real = cores(place), rescaling(place, cores=cores(place) + 1), driver_control.await_stop

    def await_stop(*arguments: Any, **rest: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **rest)

    with (
        monkeypatch.context() as changed,
        terminated_when(task, lambda: False),
        pytest.raises(AirflowException),
    ):
        changed.setattr(driver_control, "await_stop", await_stop)
        task.execute(context())
    assert operation(place).state == "running"
    cancel(place.workspace, "lamp", by="somebody")
    with pytest.raises(AirflowFailException, match="OPERATION_CANCELLED"):
        rescaling(place, cores=before + 1).execute(context(attempt=2))
    assert cores(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING)


def test_a_try_that_was_ended_is_gone_on_with_by_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    task, real = rescaling(place, cores=before + 1), driver_control.await_health

    def await_health(*arguments: Any, **rest: Any) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **rest)

    with (
        monkeypatch.context() as changed,
        terminated_when(task, lambda: False),
        pytest.raises(AirflowException),
    ):
        changed.setattr(driver_control, "await_health", await_health)
        task.execute(context())
    first = operation(place)
    assert first.state == "running" and first.steps[-1].name == "first batch"
    told = rescaling(place, cores=before + 1).execute(context(attempt=2))
    assert told["operation"] == first.id and told["state"] == "done" and cores(place) == before + 1


RESCALE = """
import sys
from pathlib import Path
from streamwarden.operations.rescale import rescale
from streamwarden.store.workspace import open_workspace
rescale(open_workspace("test", config=Path(sys.argv[1])), "lamp", cores=int(sys.argv[2]), by="test")
"""


def killed_while_the_driver_stops(place: Place, wanted: int) -> Operation:
    """kill -9 a rescale that has asked the driver to stop, while it stops; return its operation."""
    command = [sys.executable, "-c", RESCALE, str(place.config), str(wanted)]
    with subprocess.Popen(command, env={**os.environ, "STREAMWARDEN_ROOT": str(place.workspace.root)}) as process:
        try:
            place.until(lambda seen: seen.phase is Phase.STOPPING)
        finally:
            process.kill()
    place.gate("stops").touch()
    found = operation(place)
    assert found.state == "running" and found.steps[-1].name == "stop"
    return found


def test_a_try_that_was_killed_while_the_driver_stops_is_gone_on_with(place: Place) -> None:
    place.write_job(standin_stop_gate=str(place.gate("stops")))
    place.deploy()
    place.batch(1)
    before = cores(place)
    first = killed_while_the_driver_stops(place, before + 1)
    done = rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert (done.id, done.state) == (first.id, "done") and cores(place) == before + 1


@pytest.mark.parametrize("cancelled", [True, False])
def test_who_stops_the_job_between_two_tries_has_the_last_word(place: Place, cancelled: bool) -> None:
    place.write_job(standin_stop_gate=str(place.gate("stops")))
    place.deploy()
    place.batch(1)
    before = cores(place)
    killed_while_the_driver_stops(place, before + 1)
    driver_control.stop(place.workspace, "lamp", by="somebody", timeout=60)
    if cancelled:
        cancel(place.workspace, "lamp", by="somebody")
    with pytest.raises(StreamwardenError, match=r"OPERATION_CANCELLED.*somebody"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "suspended"


def half_way(place: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Let a rescale by "test" to a core more be interrupted by an error while it waits for health; return the cores."""
    place.deploy()
    place.batch(1)
    before = cores(place)

    def await_health(*_: Any, **__: Any) -> str:
        raise error

    with monkeypatch.context() as changed, pytest.raises(type(error)):
        changed.setattr(driver_control, "await_health", await_health)
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "running" and cores(place) == before + 1
    return before


def test_who_stops_the_job_after_the_switch_has_the_last_word(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = half_way(place, monkeypatch, KeyboardInterrupt())
    driver_control.stop(place.workspace, "lamp", by="somebody", timeout=60)
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*stopped since, by somebody"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "suspended"
    assert operation(place).state == "rolled back" and cores(place) == before


def test_what_was_deployed_since_the_switch_is_kept_on_the_way_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = half_way(place, monkeypatch, KeyboardInterrupt())
    place.write_job(watermark="7m")
    # Over a driver that lives it would be a rollout, and refused.
    with pytest.raises(StreamwardenError, match="OPERATION_UNFINISHED"):
        deploy_job(place.workspace, "lamp", by="somebody")
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    heartbeat = place.seen().heartbeat
    assert heartbeat is not None and kill(heartbeat.process)
    place.until(lambda seen: not seen.phase.alive)
    deploy_job(place.workspace, "lamp", by="somebody")

    def unhealthy(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("DRIVER_DIED", "for the test")

    with monkeypatch.context() as changed, pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY"):
        changed.setattr(driver_control, "await_health", unhealthy)
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    desired = place.seen().desired
    assert desired is not None and desired.spec.options["watermark"] == "7m" and cores(place) == before
    assert plan(place.workspace, "lamp").effect is Effect.NONE


@pytest.mark.long
@pytest.mark.ci
def test_who_deploys_another_number_has_the_last_word(place: Place) -> None:
    path = place.config / "jobs" / "lamp.yaml"
    written = path.read_text()
    place.deploy()
    place.batch(1)
    before = cores(place)
    rescale(place.workspace, "lamp", cores=before + 1, by="test")
    for wanted, text in ((before + 2, f"{written}\nresources: {{cores: {before + 2}}}\n"), (before, written)):
        path.write_text(text)
        deploy_job(place.workspace, "lamp", by="test", health_timeout=60)
        assert cores(place) == wanted


def test_another_one_is_refused_while_one_is_half_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = half_way(place, monkeypatch, KeyboardInterrupt())
    first = operation(place).id
    with pytest.raises(StreamwardenError, match=rf"OPERATION_UNFINISHED.*rescale {first} by test"):
        rescale(place.workspace, "lamp", cores=before + 2, by="another")
    with pytest.raises(StreamwardenError, match="OPERATION_UNFINISHED"):
        plan_rescale(place.workspace, "lamp", cores=before + 2)
    assert any("was interrupted" in line for line in holds_back(place.workspace, "lamp", {"cores": before + 2}))
    done = rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert (done.id, done.state) == (first, "done") and cores(place) == before + 1


def test_an_outage_after_the_switch_leaves_it_to_be_gone_on_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = half_way(place, monkeypatch, StreamwardenError("S3_UNREACHABLE", "for the test"))
    done = rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert done.state == "done" and cores(place) == before + 1


def with_more_partitions(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, then: Callable[[str], None] = lambda _: None
) -> int:
    """Let rescales repartition, as of a job with state, which the stand-in has not; return how many there will be.

    What comes `then`, once the copy is made, is given the original's folder.
    """
    found = plan_rescale(place.workspace, "lamp", cores=cores(place) + 1)
    planned = replace(found, to=found.was.model_copy(update={"partitions": found.was.partitions + 1}))

    def copy(work: _Rescale, *_: Any, **__: Any) -> Any:
        current, files = work._documents.checkpoint.read(), place.workspace.files
        assert current is not None
        generation = work._next_generation()
        path = f"checkpoints/lamp/g{generation:06d}"
        for info in list(files.walk(current.path)):
            files.copy(info.key, path + info.key[len(current.path) :])
        base = (CheckpointReader(place.workspace.storage, path).last_commit() or 0) + 1
        commit(place.workspace, path, base)
        reference = CheckpointRef(
            job="lamp",
            generation=generation,
            path=path,
            since=utc_now(),
            reason="for the test",
            base_batch=base,
            highest=generation,
            operation=work.handle.id,
        )
        follower = Follower(place.workspace, current.path, path, shift=1, partitions=planned.to.partitions)
        then(current.path)
        told = {"proof": lambda: None, "proved_later": False}
        return SimpleNamespace(reference=reference, behind=follower.behind, **told)

    monkeypatch.setattr("streamwarden.operations.rescale.plan_rescale", lambda *_, **__: planned)
    monkeypatch.setattr(_Rescale, "_copy", copy)
    return planned.to.partitions


@pytest.mark.parametrize("healthy", [True, False])
def test_tables_that_are_still_to_be_put_back_are_so_on_either_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, healthy: bool
) -> None:
    place.deploy()
    place.batch(1)
    driver_control.stop(place.workspace, "lamp", by="test")
    document = JobDocuments(place.workspace.storage, "lamp").checkpoint
    before = document.read()
    assert before is not None
    # As after the rollback of a rescale of a job that was stopped. The stand-in puts back nothing.
    pending = [OutputStart(table="lamp", version=7)]
    document.write(before.model_copy(update={"outputs": pending}))
    wanted = with_more_partitions(place, monkeypatch)
    if healthy:
        assert rescale(place.workspace, "lamp", partitions=wanted, mode="offline", by="test").state == "done"
    else:

        def unhealthy(*_: Any, **__: Any) -> Any:
            raise StreamwardenError("DRIVER_DIED", "for the test")

        monkeypatch.setattr(driver_control, "await_health", unhealthy)
        with pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY"):
            rescale(place.workspace, "lamp", partitions=wanted, mode="offline", by="test")
    now = document.read()
    assert now is not None and (now.generation, now.outputs) == (2 if healthy else 1, pending)


def test_a_switch_that_was_cut_off_is_finished_also_if_a_supervisor_has_started_the_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the checkpoint and the spec: what runs then has the new checkpoint and the old number of cores."""
    place.deploy()
    place.batch(1)
    before, real = cores(place), _Rescale._decide
    wanted = with_more_partitions(place, monkeypatch)

    def cut_off(work: _Rescale, document: Any, value: Any) -> None:
        real(work, document, value)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(_Rescale, "_decide", cut_off)
        rescale(place.workspace, "lamp", partitions=wanted, cores=before + 1, mode="offline", by="test")
    driver_control.start(place.workspace, "lamp", by="a supervisor")
    place.until(lambda seen: seen.phase is Phase.RUNNING and seen.heartbeat.generation == 2)  # type: ignore[union-attr]
    early = place.seen().incarnation
    done = rescale(place.workspace, "lamp", partitions=wanted, cores=before + 1, mode="offline", by="test")
    assert done.state == "done" and done.plan.incarnation == place.seen().incarnation != early
    launched = JobDocuments(place.workspace.storage, "lamp").launch(place.seen().incarnation or "").read()
    desired = JobDocuments(place.workspace.storage, "lamp").desired.read()
    assert launched is not None and desired is not None and launched.digest == desired.digest


@pytest.mark.long
@pytest.mark.ci
def test_a_driver_that_freezes_as_it_is_to_stop_is_ended_before_its_state_is_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.profile(lease="3s")
    place.write_job(standin_batch_s=1.0)
    first = place.deploy()
    place.batch(1)
    assert first.heartbeat is not None
    process, real = first.heartbeat.process, driver_control.request_stop
    alive: list[bool | None] = []

    def request(*arguments: Any, **rest: Any) -> bool:
        # Before it reads that: between two batches, as when its machine swaps.
        os.kill(process.pid, signal.SIGSTOP)
        return real(*arguments, **rest)

    monkeypatch.setattr(driver_control, "request_stop", request)
    wanted = with_more_partitions(place, monkeypatch, then=lambda _: alive.append(is_alive(process)))
    done = rescale(place.workspace, "lamp", partitions=wanted, mode="offline", by="test", health_timeout=60)
    assert done.state == "done" and alive == [False]


def test_a_copy_that_the_job_has_outgrown_is_not_put_in_force(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before = reference_of(place)

    def goes_on(original: str) -> None:
        # A driver of another machine that could not be heard.
        last = CheckpointReader(place.workspace.storage, original).last_commit()
        commit(place.workspace, original, (last or 0) + 1)

    wanted = with_more_partitions(place, monkeypatch, then=goes_on)
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*committed 1 batches more"):
        rescale(place.workspace, "lamp", partitions=wanted, mode="offline", by="test")
    assert operation(place).state == "failed" and reference_of(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING)


def reference_of(place: Place) -> tuple[str, int]:
    found = JobDocuments(place.workspace.storage, "lamp").checkpoint.read()
    assert found is not None
    return found.path, found.generation


def to_be_proved(monkeypatch: pytest.MonkeyPatch, *, at: int = 1, unproved: bool = False) -> None:
    """Let rescales compare a state after a batch at the end, as if a copy had replayed what the job did."""
    real = _Rescale._save_if_any

    def with_a_proof(work: _Rescale) -> None:
        real(work)
        state = asdict(StateAt("checkpoints/lamp/g000001", at, 2))
        work.handle.plan(proof={"job": state, "copy": state}, unproved=unproved)

    monkeypatch.setattr(_Rescale, "_save_if_any", with_a_proof)


def reading(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | StreamwardenError) -> list[int]:
    """Let the states be read so, in turn; return what has one element for each."""
    asked: list[int] = []

    def read(*_: Any, **__: Any) -> dict[str, Any]:
        asked.append(1)
        answer = answers[len(asked) - 1]
        if isinstance(answer, StreamwardenError):
            raise answer
        return {"job": answer, "copy": answer}

    monkeypatch.setattr("streamwarden.operations.rescale_verify.read_state", read)
    return asked


UNREAD = StreamwardenError("RESCALE_FAILED", "reading state ended with 1: for the test")
BROKEN = {"error": "IOException: for the test"}


@pytest.mark.parametrize("failure", [UNREAD, BROKEN])
def test_states_that_could_not_be_read_are_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    place.deploy()
    place.batch(1)
    to_be_proved(monkeypatch)
    asked = reading(monkeypatch, failure, {"digests": {"0/default": "1:2:3:4:5"}})
    done = rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    told = next(step.detail for step in done.steps if step.name == "digest at the stop")
    assert (done.state, told, len(asked)) == ("done", "the same after batch 1", 2)


@pytest.mark.parametrize("failure", [UNREAD, BROKEN])
def test_states_that_are_there_and_can_not_be_read_send_it_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    to_be_proved(monkeypatch)
    reading(monkeypatch, failure, failure)
    with pytest.raises(
        StreamwardenError, match=r"RESCALE_UNHEALTHY.*RESCALE_FAILED.*not be compared(?s:.)*for the test"
    ):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "rolled back" and cores(place) == before


def test_a_state_that_the_copy_has_otherwise_is_rolled_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    to_be_proved(monkeypatch)
    states = {"job": {"digests": {"0/default": "1:2"}}, "copy": {"digests": {"0/default": "1:3"}}}
    monkeypatch.setattr("streamwarden.operations.rescale_verify.read_state", lambda *_, **__: states)
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*RESCALE_STATE_DIFFERS.*0/default"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "rolled back" and cores(place) == before


@pytest.mark.long
@pytest.mark.ci
def test_behind_a_driver_that_ended_in_a_batch_no_copy_is_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new generation, a batch that the tables may have already would be written twice."""
    place.deploy()
    place.batch(1)
    before, real = reference_of(place), driver_control.stop_in_turn

    def in_a_batch(*args: Any, **kwargs: Any) -> str:
        ended = real(*args, **kwargs)
        reader = CheckpointReader(place.workspace.storage, before[0])
        last = reader.last_commit() or 0
        offsets = place.workspace.files.read(f"{before[0]}/offsets/{last}")
        place.workspace.files.write(f"{before[0]}/offsets/{last + 1}", offsets)
        return ended

    wanted = with_more_partitions(place, monkeypatch)
    monkeypatch.setattr(driver_control, "stop_in_turn", in_a_batch)
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*in the midst of batch"):
        rescale(place.workspace, "lamp", partitions=wanted, mode="offline", by="test")
    assert operation(place).state == "failed" and reference_of(place) == before


def test_a_state_that_spark_has_removed_is_noted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    # The deployed spec keeps a hundred batches.
    to_be_proved(monkeypatch, at=-100)
    reading(monkeypatch, BROKEN)
    done = rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    told = next(step.detail for step in done.steps if step.name == "digest at the stop")
    assert done.state == "done" and told.startswith("not compared, and removed by now: ")


def test_a_copy_without_any_digest_is_not_left_in_force(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    to_be_proved(monkeypatch, at=-100, unproved=True)
    reading(monkeypatch, BROKEN)
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*could not be compared"):
        rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    assert operation(place).state == "rolled back"


def test_states_that_are_out_of_reach_leave_it_to_be_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    to_be_proved(monkeypatch)
    reading(monkeypatch, UNREAD)

    def away(*_: Any) -> Any:
        raise StreamwardenError("S3_UNREACHABLE", "for the test")

    with monkeypatch.context() as changed:
        changed.setattr(_Rescale, "_see_it_live", away)
        with pytest.raises(StreamwardenError, match="S3_UNREACHABLE"):
            rescale(place.workspace, "lamp", cores=before + 1, by="test")
    found = operation(place)
    assert (found.state, found.steps[-1].name) == ("running", "digest at the stop") and cores(place) == before + 1
    reading(monkeypatch, {"digests": {}})
    assert rescale(place.workspace, "lamp", cores=before + 1, by="test").state == "done"


def test_a_driver_that_ends_during_the_last_digest_sends_it_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)
    to_be_proved(monkeypatch)

    def dies(*_: Any, heed: Callable[[], object], **__: Any) -> dict[str, Any]:
        heartbeat = place.seen().heartbeat
        assert heartbeat is not None and kill(heartbeat.process)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            heed()
            time.sleep(0.05)
        raise AssertionError("nobody saw it")

    monkeypatch.setattr("streamwarden.operations.rescale_verify.read_state", dies)
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*DRIVER_DIED"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "rolled back" and cores(place) == before
    assert place.seen().phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("sink", "reader", "plain"),
    [
        ({"mode": "append"}, True, True),
        ({"mode": "append"}, False, False),
        ({"mode": "append", "keys": ["id"]}, True, True),
        ({"mode": "append", "keys": ["id"]}, False, False),
        ({"mode": "append", "keys": ["id"], "on_restore": "leave"}, False, True),
        ({"mode": "upsert", "keys": ["id"]}, True, False),
        ({"mode": "upsert", "keys": ["id"], "on_restore": "rewind"}, True, True),
    ],
)
def test_tables_that_could_not_be_put_back_take_the_plain_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, sink: dict[str, Any], reader: bool, plain: bool
) -> None:
    path = place.config / "jobs" / "lamp.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "sinks": [{"table": "lamp", **sink}]}))
    if reader:
        place.write_job("reader")
        path = place.config / "jobs" / "reader.yaml"
        path.write_text(path.read_text().replace("kind: files\n  path: landing", "kind: delta\n  table: lamp"))
        deploy_job(place.workspace, "reader", by="test")
    place.deploy()
    place.batch(1)
    began = prechecks_of_more_partitions(place, monkeypatch)
    assert ["offline: lamp can't be put back" in detail for detail, _ in began] == [plain, plain]
    assert [state for _, state in began] == [plain, plain], "its Spark rehearses work on state, as offline"


@pytest.mark.parametrize("missing", ["no executor: no free slots", None])
def test_on_a_cluster_the_copy_is_made_ahead_if_its_spark_gets_slots(
    place: Place, monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    place.profile(master="spark://host:7077")
    place.deploy()
    place.batch(1)
    found = plan_rescale(place.workspace, "lamp", cores=cores(place) + 1)
    planned = replace(found, to=found.to.model_copy(update={"partitions": found.was.partitions + 1}))
    monkeypatch.setattr("streamwarden.operations.rescale.plan_rescale", lambda *_, **__: planned)
    monkeypatch.setattr(Standby, "missing_executor", lambda *_: missing)

    def ends(step: str) -> Any:
        def end(*_: Any, **__: Any) -> None:
            raise StreamwardenError("RESCALE_FAILED", step)

        return end

    monkeypatch.setattr(_Rescale, "_prepare_ahead", ends("ahead"))
    monkeypatch.setattr(_Rescale, "_stop", ends("stopped first"))
    with pytest.raises(StreamwardenError, match="ahead" if missing is None else "stopped first"):
        rescale(place.workspace, "lamp", partitions=3, by="test")
    told = {step.name: step.detail for step in operation(place).steps}
    assert "offline" not in told["precheck"]
    assert ("offline" in told["start Spark"], "no free slots" in operation(place).plan.offline) == (
        missing is not None,
        missing is not None,
    )


def prechecks_of_more_partitions(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Begin a rescale the fast way, kill it before its Spark starts, and go on with it.

    Return what each precheck says, and whether that Spark would rehearse work on state: it does offline.
    """
    began: list[tuple[str, bool]] = []
    # As of a job with state, which the stand-in has not.
    found = plan_rescale(place.workspace, "lamp", cores=cores(place) + 1)
    planned = replace(found, to=found.to.model_copy(update={"partitions": found.was.partitions + 1}))

    def no_spark(*_: Any, state: bool) -> Any:
        began.append((operation(place).steps[-1].detail, state))
        if len(began) == 1:
            raise KeyboardInterrupt
        raise StreamwardenError("RESCALE_FAILED", "for the test")

    monkeypatch.setattr("streamwarden.operations.rescale.plan_rescale", lambda *_, **__: planned)
    monkeypatch.setattr("streamwarden.operations.rescale.standby", no_spark)
    for ended in (KeyboardInterrupt, StreamwardenError):
        with pytest.raises(ended):
            rescale(place.workspace, "lamp", partitions=3, by="test", mode="online")
    assert [step.name for step in operation(place).steps] == ["precheck", "precheck"]
    return began


def test_a_job_whose_batches_are_long_apart_has_the_time_for_three(place: Place) -> None:
    place.write_job(trigger={"interval": "200s"})
    place.deploy()
    # Found out before anything is done, and kept for whoever goes on with it.
    with pytest.raises(StreamwardenError, match="RESCALE_NOTHING"):
        rescale(place.workspace, "lamp", cores=cores(place), by="test")
    assert operation(place).plan.health_timeout == 600
    with pytest.raises(AirflowFailException, match="RESCALE_NOTHING"):
        rescaling(place, cores=cores(place), health_timeout="None").execute(context())
    assert operation(place).plan.health_timeout == 600
    with pytest.raises(AirflowFailException, match="RESCALE_NOTHING"):
        rescaling(place, cores=cores(place), health_timeout="20").execute(context())
    assert operation(place).plan.health_timeout == 20


def test_one_batch_is_not_yet_healthy(place: Place) -> None:
    place.write_job(standin_batch_s=0.5)
    place.deploy()
    place.batch(1)
    done = rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    committed = place.seen().progress
    assert done.state == "done" and committed is not None and len(committed.recent) >= 3


def test_a_driver_that_ends_while_its_rescale_is_prepared_is_left_to_its_supervisor(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    before = place.batch(1)
    real = Standby.await_ready

    def await_ready(spare: Standby, heed: Any) -> None:
        real(spare, heed)
        assert before.heartbeat is not None and kill(before.heartbeat.process)
        # As Spark does while it starts, or works on a large state.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            heed()
            time.sleep(0.1)

    monkeypatch.setattr(Standby, "await_ready", await_ready)
    with pytest.raises(StreamwardenError, match=r"RESCALE_NOT_HEALTHY.*its driver ended meanwhile"):
        rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    seen = place.seen()
    assert seen.incarnation == before.incarnation and seen.phase is Phase.DEAD
    assert decide(seen, Supervision()).action is Action.RESTART


@pytest.mark.parametrize("slip", [False, True])
def test_a_yaml_that_is_edited_meanwhile_has_the_last_word(
    place: Place, monkeypatch: pytest.MonkeyPatch, slip: bool
) -> None:
    place.deploy()
    place.batch(1)
    before, real, path = cores(place), driver_control.await_stop, place.config / "jobs" / "lamp.yaml"
    edited = yaml.safe_dump({**yaml.safe_load(path.read_text()), "resources": {"cores": before + 4, "memory": "3g"}})

    def await_stop(*arguments: Any, **rest: Any) -> Any:
        path.write_text("{" if slip else edited)
        return real(*arguments, **rest)

    monkeypatch.setattr(driver_control, "await_stop", await_stop)
    assert rescale(place.workspace, "lamp", cores=before + 1, by="test").state == "done"
    assert cores(place) == before + 1
    # It waits for a deploy, as any edit.
    path.write_text(edited)
    resources = effective_spec(place.workspace, "lamp").resources
    assert (resources.cores, resources.memory) == (before + 4, "3g")


def test_what_fails_in_the_midst_of_the_switch_goes_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before, incarnation, real = cores(place), place.seen().incarnation, _Rescale._put_in_force

    def put_in_force(work: _Rescale) -> None:
        real(work)
        raise OSError("no space left on device")

    monkeypatch.setattr(_Rescale, "_put_in_force", put_in_force)
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*no space left"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "rolled back" and cores(place) == before
    place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != incarnation)
    assert plan(place.workspace, "lamp").effect is Effect.NONE


def test_a_way_back_that_could_not_be_finished_is_gone_on_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    before = cores(place)

    def unhealthy(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("DRIVER_DIED", "for the test")

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError("the store is away")

    with monkeypatch.context() as changed, pytest.raises(StreamwardenError, match="the store is away"):
        changed.setattr(driver_control, "await_health", unhealthy)
        changed.setattr(driver_control, "end_driver", refused)
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "running" and cores(place) == before + 1
    # A deploy in between, as of a job whose driver is down: it must not make the rescale forget that it has switched.
    deploy_job(place.workspace, "lamp", by="somebody")
    with pytest.raises(StreamwardenError, match=r"RESCALE_UNHEALTHY.*DRIVER_DIED"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert operation(place).state == "rolled back" and cores(place) == before
    assert plan(place.workspace, "lamp").effect is Effect.NONE


@pytest.mark.long
@pytest.mark.ci
def test_a_job_without_a_batch_can_have_more_cores(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The stand-in will never be healthy: the rollback must not wait long for it.
    monkeypatch.setattr("streamwarden.operations.rescale_rollback.START_TIMEOUT", timedelta(seconds=1))
    place.write_job(standin_mute=0)
    place.deploy()
    before = cores(place)
    with pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY"):
        # It goes back for what the stand-in is: it does nothing, and does not say that there is nothing to do.
        rescale(place.workspace, "lamp", cores=before + 1, health_timeout=1, by="test")
    assert {"pre-rescale savepoint", "switch", "first batch"} <= {step.name for step in operation(place).steps}


def test_one_that_is_slow_with_its_first_batch_is_held_if_that_was_asked_for(place: Place) -> None:
    place.write_job(standin_mute=0)
    place.deploy()
    before = cores(place)
    done = rescale(place.workspace, "lamp", cores=before + 1, health_timeout=1, on_timeout="hold", by="test")
    assert done.state == "done" and cores(place) == before + 1
    told = {step.name: step.detail for step in done.steps}
    assert told["first batch"].startswith("none yet") and told["catch up"].startswith("held as asked")


def assert_runs_again_as_before(place: Place, before: int, incarnation: str | None) -> None:
    found, seen = operation(place), place.seen()
    assert found.state == "failed" and cores(place) == before
    # Nobody supervises it here.
    assert seen.phase is Phase.RUNNING and seen.incarnation != incarnation
    assert [step.name for step in found.steps][-2:] == ["start again", "wait for health after the rollback"]
    assert found.steps[-1].detail.startswith("batch ") and found.plan.downtime_s >= 0


def test_what_is_refused_after_the_driver_was_asked_to_stop_leaves_the_job_running(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_job(standin_stop_gate=str(place.gate("stops")))
    place.deploy()
    place.batch(1)
    before, incarnation = cores(place), place.seen().incarnation
    killed_while_the_driver_stops(place, before + 1)

    def refused(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("RESCALE_NO_SPACE", "for the test")

    monkeypatch.setattr("streamwarden.operations.rescale.plan_rescale", refused)
    with pytest.raises(StreamwardenError, match="RESCALE_NO_SPACE"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert_runs_again_as_before(place, before, incarnation)


def test_what_is_left_is_done_while_the_driver_ends_spark(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = place.gate("ends")
    place.write_job(standin_end_gate=str(gate))
    place.deploy()
    place.batch(1)
    incarnation = place.seen().incarnation
    assert incarnation is not None
    monkeypatch.setattr(
        "streamwarden.operations.workflow.take", lambda *args, **kwargs: gate.touch() or take(*args, **kwargs)
    )
    done = rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    began = {step.name: step.started_at for step in done.steps}
    ended = JobDocuments(place.workspace.storage, "lamp").exit(incarnation).read()
    assert ended is not None and began["pre-rescale savepoint"] < ended.at < began["start"]
    stopped = done.plan.stopped_at
    assert stopped + timedelta(seconds=done.plan.downtime_s) > ended.at


def test_what_fails_while_the_driver_ends_spark_leaves_the_job_running(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = place.gate("ends")
    place.write_job(standin_end_gate=str(gate))
    place.deploy()
    place.batch(1)
    before, incarnation = cores(place), place.seen().incarnation

    def fail(*_: Any, **__: Any) -> Any:
        gate.touch()
        raise StreamwardenError("SAVEPOINT_FAILED", "for the test")

    monkeypatch.setattr("streamwarden.operations.workflow.take", fail)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_FAILED"):
        rescale(place.workspace, "lamp", cores=before + 1, by="test")
    assert_runs_again_as_before(place, before, incarnation)


def failing_after_the_stop(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("streamwarden.operations.workflow.take", fail)


def test_who_is_ended_from_outside_starts_the_job_again_and_waits_for_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy()
    place.batch(1)
    incarnation = place.seen().incarnation
    failing_after_the_stop(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    found = operation(place)
    assert found.state == "running" and found.steps[-1].name == "start again"
    place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != incarnation, timeout=30)


def test_what_fails_with_the_start_again_does_not_hide_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left on device")

    failing_after_the_stop(monkeypatch, StreamwardenError("SAVEPOINT_FAILED", "for the test"))
    monkeypatch.setattr(driver_control, "start", full)
    with pytest.raises(StreamwardenError, match="SAVEPOINT_FAILED"):
        rescale(place.workspace, "lamp", cores=cores(place) + 1, by="test")
    found = operation(place)
    assert found.state == "failed" and found.error is not None and found.error.code == "SAVEPOINT_FAILED"
    assert decide(place.seen(), Supervision()).action is Action.RESTART, "its supervisor's by now"


def test_a_job_that_outruns_its_savepoint_is_stopped_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.deploy()
    place.batch(1)
    wanted, hot = with_more_partitions(place, monkeypatch), []

    def outrun(*arguments: Any, **rest: Any) -> Any:
        if place.seen().phase is Phase.RUNNING:
            hot.append(1)
            raise StreamwardenError("SAVEPOINT_OUTRUN", "for the test")
        return take(*arguments, **rest)

    monkeypatch.setattr("streamwarden.operations.workflow.take", outrun)
    done = rescale(place.workspace, "lamp", partitions=wanted, by="test")
    assert done.state == "done" and hot == [1] and place.seen().heartbeat.generation == 2  # type: ignore[union-attr]
    steps = [step.name for step in done.steps]
    assert steps[2:5] == ["pre-rescale savepoint", "stop", "pre-rescale savepoint"]
    assert done.steps[2].detail.startswith("SAVEPOINT_OUTRUN: ")


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("known", [True, False])
def test_of_one_that_is_gone_on_with_late_the_checkpoint_tells_the_downtime(
    place: Place, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    place.write_job(standin_batch_s=0.02)
    before = half_way(place, monkeypatch, KeyboardInterrupt())
    left = operation(place)
    first, stopped = left.plan.base + 1, left.plan.stopped_at
    # Its progress holds fifty batches.
    seen = place.until(lambda seen: bool(seen.progress and seen.progress.recent[:1]) and recent(seen) > first)
    assert seen.heartbeat is not None
    if known:
        planned = round((stopped + timedelta(seconds=1.5)).timestamp() * 1000)
        path = f"checkpoints/lamp/g{seen.heartbeat.generation:06d}/offsets/{first}"
        place.workspace.files.write(path, f'v1\n{{"batchTimestampMs":{planned}}}\n-'.encode())
    done = rescale(place.workspace, "lamp", cores=before + 1, by="test")
    # What the stand-in writes is of 1970: then nothing is said.
    assert done.plan.downtime_s == (1.5 if known else None)


def recent(seen: Observation) -> int:
    assert seen.progress is not None
    return seen.progress.recent[0].batch


def test_a_driver_that_is_silent_for_a_moment_is_waited_for(place: Place) -> None:
    place.profile(lease="4s")
    seen = place.deploy()
    assert seen.heartbeat is not None
    pid = seen.heartbeat.process.pid
    os.kill(pid, signal.SIGSTOP)
    place.until(lambda seen: seen.phase is Phase.SILENT)
    woken = threading.Timer(1, os.kill, (pid, signal.SIGCONT))
    woken.start()
    said = driver_control.await_health(place.workspace, "lamp", generation=1, base=None, timeout=60)
    woken.join()
    assert said.startswith("batch ") and place.seen().incarnation == seen.incarnation


def test_the_dag_is_wired(airflow_database: None) -> None:
    dag = load(REPOSITORY / "dags" / "operations.py").dags["rescale"]
    assert {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks} == {
        "approve": ["rescale"],
        "rescale": ["supervise"],
        "supervise": [],
    }
    assert dag.get_task("supervise").is_teardown
    assert dag.get_task("supervise").operation_task_id == "rescale"
