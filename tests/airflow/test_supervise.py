from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
    TaskDeferred,
)
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from streamwarden.airflow.operators.deploy import DeployOperator
from streamwarden.airflow.operators.release import ReleaseOperator
from streamwarden.airflow.operators.stop import StopOperator
from streamwarden.airflow.operators.supervise import SuperviseOperator
from streamwarden.airflow.triggers import SuperviseTrigger
from streamwarden.model.health_spec import HealthSpec
from streamwarden.model.operation import OperationState
from streamwarden.model.record import utc_now
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.launchers import submission as submissions
from streamwarden.runtime.operation_lock import begin
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from streamwarden.supervision.claim import current_claim
from streamwarden.supervision.observe import Observation, Phase
from tests.airflow.conftest import Place, Run, fired, reborn

pytestmark = pytest.mark.airflow


def supervise(place: Place, **kwargs: Any) -> SuperviseOperator:
    return SuperviseOperator(task_id="supervise", job="lamp", **place.place(), **kwargs)


def deferred(call: Any, run: Run) -> SuperviseTrigger:
    with pytest.raises(TaskDeferred) as raised:
        call()
    assert raised.value.method_name == "resume"
    trigger = raised.value.trigger
    assert isinstance(trigger, SuperviseTrigger)
    return reborn(trigger, run)


def pid_of(seen: Observation) -> int:
    assert seen.heartbeat is not None
    return seen.heartbeat.process.pid


def set_state(monkeypatch: pytest.MonkeyPatch, run: Run, state: str | None) -> None:
    """What the API server would say of the task."""
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {run.run_id: {"supervise": state}})
    )


def test_attaches_and_waits_while_the_driver_runs(place: Place) -> None:
    run, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    assert trigger.incarnation == first.incarnation
    assert fired(trigger, within=1) is None


def test_killed_driver_is_restarted_after_its_back_off_and_goes_on(place: Place) -> None:
    run, first, operator = Run(), place.deploy(), supervise(place)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    os.kill(pid_of(first), signal.SIGKILL)
    event = fired(trigger)
    assert event is not None and event["action"] == "restart" and event["incarnation"] == first.incarnation
    again = deferred(lambda: operator.resume(run.context(), event), run)
    second = place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation)
    assert again.incarnation == second.incarnation
    assert first.heartbeat and second.heartbeat and second.heartbeat.batch > (first.heartbeat.batch or 0)  # type: ignore[operator]
    memory = JobDocuments(place.workspace.storage, "lamp").supervision.read()
    assert memory is not None and [entry.after for entry in memory.restarts] == [first.incarnation]
    launched = second.launch.at if second.launch else None
    assert launched is not None and (launched - first.heartbeat.at).total_seconds() >= 0.2 * 0.8


def test_a_restart_waits_for_its_submission_which_may_end_with_the_task(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, first, operator = Run(), place.deploy(), supervise(place)
    submission = subprocess.Popen(["sleep", "1"], text=True)

    def launch(*_: Any, **__: Any) -> str:
        submissions._started.append(submission)
        return "a-new-one"

    monkeypatch.setattr("streamwarden.supervision.act.launch_driver", launch)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    os.kill(pid_of(first), signal.SIGKILL)
    event = fired(trigger)
    deferred(lambda: operator.resume(run.context(), event), run)
    assert submission.poll() == 0 and submissions._started == []


def test_silent_driver_is_killed_and_restarted(place: Place) -> None:
    place.profile(lease="4s")
    run, first, operator = Run(), place.deploy(), supervise(place)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    os.kill(pid_of(first), signal.SIGSTOP)
    event = fired(trigger)
    assert event is not None and event["action"] == "restart" and "no heartbeat" in event["why"]
    deferred(lambda: operator.resume(run.context(), event), run)
    place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation)
    assert first.heartbeat is not None and not is_alive(first.heartbeat.process)


def test_spent_budget_fails_with_the_last_error(place: Place) -> None:
    gate = place.gate("fails")
    restarts = {"max": 2, "backoff": "100ms"}
    place.write_job(restarts=restarts, standin_fail="BATCH_FAILED", standin_gate=str(gate))
    run, operator = Run(), supervise(place)
    deploy_job(place.workspace, "lamp", by="test")
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    for _ in range(2):
        event = fired(trigger)
        assert event is not None and event["action"] == "restart"
        trigger = deferred(lambda event=event: operator.resume(run.context(), event), run)  # type: ignore[misc]
    event = fired(trigger)
    assert event is not None and event["action"] == "fail"
    with pytest.raises(AirflowFailException) as raised:
        operator.resume(run.context(), event)
    text = str(raised.value)
    assert "RESTART_BUDGET_SPENT" in text and "2 restarts within" in text and "BATCH_FAILED: as it was told" in text
    assert "What to do" in text


def test_error_that_cannot_pass_fails_at_once_with_the_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://h:1/")
    gate = place.gate("fails")
    place.write_job(standin_fail="SINK_SCHEMA_MISMATCH", standin_after=3, standin_gate=str(gate))
    run, operator = Run(), supervise(place)
    deploy_job(place.workspace, "lamp", by="test")
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    event = fired(trigger)
    assert event is not None and event["action"] == "fail"
    said: list[str] = []
    operator.log.error = lambda text, *args: said.append(text % args)  # type: ignore[method-assign]
    with pytest.raises(AirflowFailException, match="SINK_SCHEMA_MISMATCH"):
        operator.resume(run.context(), event)
    assert "Each column is listed with its remedy" in said[0]
    assert "Traceback: of the stand-in" in said[0]
    assert "http://h:1/plugin/streams/streamwarden/streams/lamp\n" in said[0]
    assert "console.log" in said[0] and "stand-in fails as it was told" in said[0]
    memory = JobDocuments(place.workspace.storage, "lamp").supervision.read()
    assert memory is not None and not memory.restarts and memory.decisions[-1].what == "fail"


def downstream(place: Place) -> SuperviseOperator:
    """Return a supervise task behind a deploy task, as in the job's DAG."""
    with DAG(dag_id="job_lamp", schedule=None):
        operator = supervise(place)
        DeployOperator(task_id="deploy", job="lamp", **place.place()) >> operator
    assert operator.trigger_rule == "all_done"
    return operator


def test_a_deploy_that_failed_leaves_no_driver_alone(place: Place) -> None:
    first = place.deploy()
    run = Run(states={"supervise": "running", "deploy": "failed"})
    trigger = deferred(lambda: downstream(place).execute(run.context()), run)
    assert trigger.incarnation == first.incarnation


def test_behind_a_failed_or_skipped_deploy_there_may_be_nothing_to_supervise(place: Place) -> None:
    failed = Run(states={"supervise": "running", "deploy": "failed"})
    with pytest.raises(AirflowFailException, match="deploy failed, and lamp should not run"):
        downstream(place).execute(failed.context())
    place.deploy()
    skipped = Run(states={"supervise": "running", "deploy": "skipped"})
    with pytest.raises(AirflowSkipException, match="deploy was skipped"):
        downstream(place).execute(skipped.context())
    driver_control.stop(place.workspace, "lamp", by="test")
    with pytest.raises(AirflowFailException, match="nothing to supervise"):
        downstream(place).execute(failed.context())


def test_clean_stop_ends_in_success(place: Place) -> None:
    run, operator, first = Run(), supervise(place), place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    place.batch(1)
    stop = StopOperator(task_id="stop", job="all", timeout=120, **place.place())
    stopped = stop.execute(Run(dag_id="stop").context("stop"))
    assert stopped["lamp"]["phase"] == "stopped"
    event = fired(trigger)
    assert event is not None and event["action"] == "finish"
    summary = operator.resume(run.context(), event)
    assert summary["incarnation"] == first.incarnation and summary["phase"] == "stopped" and summary["batch"] > 0


def test_all_jobs_are_those_that_were_deployed_whatever_yaml_is_left(place: Place) -> None:
    place.deploy()
    place.write_job("never")
    (place.config / "jobs" / "lamp.yaml").unlink()
    stop = StopOperator(task_id="stop", job="all", timeout=120, **place.place())
    stopped = stop.execute(Run(dag_id="stop").context("stop"))
    assert stopped.keys() == {"lamp"} and stopped["lamp"]["phase"] == "stopped"


def test_retry_after_a_lost_trigger_attaches_to_the_same_driver(place: Place) -> None:
    run, first = Run(), place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    again = deferred(lambda: supervise(place).execute(Run(attempt=2).context()), run)
    assert again.incarnation == first.incarnation and again.attempt == 2
    assert place.seen().phase is Phase.RUNNING
    assert len(JobDocuments(place.workspace.storage, "lamp").incarnations()) == 1


def test_two_supervisors_restart_once(place: Place) -> None:
    run, first, operator = Run(), place.deploy(), supervise(place)
    triggers = [deferred(lambda: operator.execute(run.context()), run) for _ in range(2)]
    os.kill(pid_of(first), signal.SIGKILL)
    events = [fired(trigger) for trigger in triggers]
    assert [event and event["action"] for event in events] == ["restart"] * 2, "Airflow drops one"
    for event in events:
        deferred(lambda event=event: operator.resume(run.context(), event), run)  # type: ignore[misc]
    assert len(JobDocuments(place.workspace.storage, "lamp").incarnations()) == 2


@pytest.mark.parametrize("state", ["failed", "success"])
def test_ended_by_hand_stops_that_driver_for_good(place: Place, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    run = Run()
    place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    fired(trigger, within=0.5)
    set_state(monkeypatch, run, state)
    asyncio.run(trigger.on_kill())
    seen = place.until(lambda now: now.phase is Phase.STOPPED)
    assert seen.desired is not None and seen.desired.state == "suspended" and state in seen.desired.note
    assert supervise(place).resume(run.context())["phase"] == "stopped"


@pytest.mark.parametrize("state", ["deferred", "running", "queued", "scheduled", "up_for_retry", None])
def test_lost_triggers_and_clears_leave_the_driver_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    run = Run()
    place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    set_state(monkeypatch, run, state)
    asyncio.run(trigger.on_kill())
    seen = place.seen()
    assert seen.desired is not None and seen.desired.state == "running" and seen.incarnation is not None
    assert JobDocuments(place.workspace.storage, "lamp").stop(seen.incarnation).read() is None


def test_unknown_state_leaves_the_driver_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)

    def broken(**_: Any) -> None:
        raise ConnectionError("the API server is away")

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(broken))
    monkeypatch.setattr("streamwarden.airflow.triggers.asyncio.sleep", lambda _: asyncio.wait_for(_nothing(), 1))
    asyncio.run(trigger.on_kill())
    seen = place.seen()
    assert seen.desired is not None and seen.desired.state == "running"


async def _nothing() -> None: ...


def test_late_kill_does_not_hit_a_newer_driver(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    place.write_job(standin_stop_s=0.1)
    deploy_job(place.workspace, "lamp", by="test")
    second = place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation)
    set_state(monkeypatch, run, "failed")
    asyncio.run(trigger.on_kill())
    seen = place.seen()
    assert seen.incarnation == second.incarnation and seen.desired is not None and seen.desired.state == "running"
    assert JobDocuments(place.workspace.storage, "lamp").stop(str(second.incarnation)).read() is None


def test_late_kill_does_not_hit_a_newer_run_of_the_same_driver(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Run(), Run(run_id="manual__2")
    first = place.deploy()
    trigger = deferred(lambda: supervise(place).execute(old.context()), old)
    done = DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(new.context("deploy"))
    assert (done["incarnation"], done["launched"], done["effect"]) == (first.incarnation, False, "none")
    set_state(monkeypatch, old, "failed")
    asyncio.run(trigger.on_kill())
    seen = place.seen()
    assert seen.desired is not None and seen.desired.state == "running"
    assert JobDocuments(place.workspace.storage, "lamp").stop(str(first.incarnation)).read() is None


def test_late_kill_does_not_undo_a_run_that_was_asked_for_since(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    # The run's own teardown was faster than the triggerer; then a person asked for the next run.
    driver_control.stop(place.workspace, "lamp", by="release", incarnation=first.incarnation)
    asked_for = utc_now()
    set_state(monkeypatch, run, "failed")
    asyncio.run(trigger.on_kill())
    desired = place.seen().desired
    assert desired is not None and desired.state == "suspended" and desired.updated_at < asked_for


def test_cleared_task_brings_back_a_job_that_is_down(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    set_state(monkeypatch, run, "failed")
    asyncio.run(trigger.on_kill())
    # At once, with the driver not yet down: Airflow raises the granted tries at a clear.
    cleared = Run(attempt=2, granted=1001)
    again = deferred(lambda: supervise(place).execute(cleared.context()), cleared)
    assert again.incarnation != first.incarnation
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.desired is not None and seen.desired.state == "running"


def test_retry_does_not_bring_back_a_job_that_was_stopped(place: Place) -> None:
    run = Run()
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    driver_control.stop(place.workspace, "lamp", by="test")
    assert supervise(place).execute(Run(attempt=2).context())["phase"] == "stopped"


def test_marked_failed_while_a_restart_holds_a_slot(place: Place) -> None:
    run, first, operator = Run(), place.deploy(), supervise(place)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    os.kill(pid_of(first), signal.SIGKILL)
    event = fired(trigger)
    run.states["supervise"] = "failed"
    with pytest.raises(AirflowFailException, match="marked failed"):
        operator.resume(run.context(), event)
    seen = place.until(lambda now: now.phase is Phase.STOPPED)
    assert seen.desired is not None and seen.desired.state == "suspended"


@pytest.mark.parametrize("state, stopped", [("failed", True), ("success", True), ("deferred", False), (None, False)])
def test_release_stops_what_no_trigger_stopped(place: Place, state: str | None, stopped: bool) -> None:
    run = Run()
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    run.states["supervise"] = state
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(run.context("release"))
    seen = place.seen()
    assert seen.desired is not None and (seen.desired.state == "suspended") is stopped
    if stopped:
        place.until(lambda now: now.phase is Phase.STOPPED)


def test_marked_while_it_is_down_is_suspended_at_once_and_the_next_run_deploys(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(old.context()), old)
    fired(trigger, within=0.5)
    os.kill(pid_of(first), signal.SIGKILL)
    place.until(lambda seen: seen.phase is Phase.DEAD)
    set_state(monkeypatch, old, "failed")
    old.states["supervise"] = "failed"
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(old.context("release"))
    desired = place.seen().desired
    assert desired is not None and desired.state == "suspended"
    # The next run is asked for, and only then does the triggerer come to the old one's trigger.
    asked_for = Run(run_id="manual__2").context("deploy")
    asyncio.run(trigger.on_kill())
    done = DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(asked_for)
    assert done["launched"] and done["incarnation"] != first.incarnation


def test_release_leaves_a_job_that_failed_for_good_as_it_is(place: Place) -> None:
    run, gate = Run(), place.gate("fails")
    place.write_job(standin_fail="CONFIG_INVALID", standin_after=5, standin_gate=str(gate))
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    gate.touch()
    place.until(lambda seen: seen.phase is Phase.FAILED)
    run.states["supervise"] = "failed"
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(run.context("release"))
    desired = place.seen().desired
    assert desired is not None and desired.state == "running"


def test_release_leaves_another_runs_driver_alone(place: Place) -> None:
    old, new = Run(states={"supervise": "failed"}), Run(run_id="manual__2")
    place.deploy()
    deferred(lambda: supervise(place).execute(new.context()), new)
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(old.context("release"))
    seen = place.seen()
    assert seen.desired is not None and seen.desired.state == "running"


def handed_over(place: Place, run: Run) -> DagRunTriggerException:
    with pytest.raises(DagRunTriggerException) as raised:
        supervise(place, retries=3).execute(run.context())
    return raised.value


def test_a_run_whose_tries_run_out_is_relieved_by_a_fresh_one(place: Place) -> None:
    old, first = Run(granted=3), place.deploy()
    for attempt in (1, 2):
        deferred(lambda: supervise(place, retries=3).execute(Run(attempt=attempt, granted=3).context()), old)  # noqa: B023
    fresh = handed_over(place, Run(attempt=3, granted=3))
    assert (fresh.trigger_dag_id, fresh.dag_run_id) == ("job_lamp", "relief__1__manual__1")
    assert fresh.skip_when_already_exists and not fresh.reset_dag_run
    # The old run's teardown leaves its driver alone.
    old.states["supervise"] = "success"
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(old.context("release"))

    # The fresh one takes over what runs, and deploys nothing: the YAML was changed by somebody who is not done yet.
    place.write_job(standin_batch_s=7)
    run = Run(run_id=str(fresh.dag_run_id), granted=3, conf=fresh.conf or {})
    done = DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(run.context("deploy"))
    assert (done["incarnation"], done["launched"], done["relieves"]) == (first.incarnation, False, "manual__1")
    trigger = deferred(lambda: supervise(place, retries=3).execute(run.context()), run)
    assert trigger.holder == "job_lamp/relief__1__manual__1"
    seen = place.seen()
    assert seen.incarnation == first.incarnation and seen.phase is Phase.RUNNING
    assert JobDocuments(place.workspace.storage, "lamp").stop(str(first.incarnation)).read() is None
    assert seen.desired is not None and "standin_batch_s" not in seen.desired.spec.options

    # And so on, for weeks.
    again = Run(run_id=run.run_id, attempt=3, granted=3, conf=run.conf)
    assert handed_over(place, again).dag_run_id == "relief__2__manual__1"


def test_a_last_try_that_is_lost_while_it_hands_over_is_made_up_for(place: Place) -> None:
    place.deploy()
    last = Run(attempt=4, granted=3)
    handed_over(place, last)
    last.states["supervise"] = "failed"
    with pytest.raises(DagRunTriggerException) as raised:
        ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(last.context("release"))
    assert raised.value.dag_run_id == "relief__1__manual__1"
    desired = place.seen().desired
    assert desired is not None and desired.state == "running"


def test_a_relieved_run_of_a_job_that_was_stopped_ends_by_itself(place: Place) -> None:
    place.deploy()
    driver_control.stop(place.workspace, "lamp", by="test")
    assert supervise(place, retries=3).execute(Run(attempt=3, granted=3).context())["phase"] == "stopped"


def test_what_the_supervisor_cannot_read_is_no_verdict_on_the_job(place: Place) -> None:
    run, first = Run(), place.deploy()
    path = place.config / "profiles" / "test.yaml"
    content = path.read_text()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    path.write_text(content + "colour: green\n")
    for call in (
        lambda: supervise(place).resume(run.context()),
        lambda: supervise(place).execute(Run(attempt=2).context()),
        lambda: ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(
            Run(states={"supervise": "failed"}).context("release")
        ),
    ):
        with pytest.raises(AirflowException, match="CONFIG_INVALID") as raised:
            call()
        assert not isinstance(raised.value, AirflowFailException), "it would never be tried again"
    path.write_text(content)
    again = deferred(lambda: supervise(place).execute(Run(attempt=3).context()), run)
    assert again.incarnation == trigger.incarnation == first.incarnation


def test_a_stop_by_hand_during_an_operation_is_tried_again(place: Place) -> None:
    run, first = Run(), place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    run.states["supervise"] = "failed"
    release = ReleaseOperator(task_id="release", job="lamp", **place.place())
    with begin(place.workspace, "lamp", "rescale", by="test", params={}) as handle:
        with pytest.raises(AirflowException, match="OPERATION_RUNNING") as raised:
            release.execute(run.context("release"))
        handle.end(OperationState.DONE)
    assert not isinstance(raised.value, AirflowFailException)
    # A retry, of which there are enough for the longest operation.
    assert release.retries == 1000
    release.execute(run.context("release"))
    assert place.until(lambda seen: seen.phase is Phase.STOPPED).incarnation == first.incarnation


def test_deploy_launches_and_tells_the_incarnation(place: Place) -> None:
    context = Run().context("deploy")
    done = DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(context)
    assert done["launched"] and context["ti"].pushed == {"incarnation": done["incarnation"]}
    assert place.seen().phase is Phase.RUNNING


def test_deploy_shows_an_error_of_the_start(place: Place) -> None:
    place.write_job(standin_fail="JOB_MODULE_INVALID")
    with pytest.raises(AirflowFailException, match=r"JOB_MODULE_INVALID(?s:.)*What to do"):
        DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(Run().context("deploy"))


def test_deploy_names_file_and_field_of_a_wrong_yaml(place: Place) -> None:
    path = place.config / "jobs" / "lamp.yaml"
    path.write_text(path.read_text() + "colour: green\n")
    with pytest.raises(AirflowFailException, match=r"CONFIG_INVALID(?s:.)*lamp\.yaml: colour: unknown key"):
        DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(Run().context("deploy"))


def test_run_that_waited_does_not_undo_a_later_stop(place: Place) -> None:
    place.deploy()
    waiting = Run(run_id="manual__2").context("deploy")
    driver_control.stop(place.workspace, "lamp", by="somebody")
    waiting["ti"].max_tries = 2
    deploy = DeployOperator(task_id="deploy", job="lamp", **place.place())
    with pytest.raises(AirflowSkipException, match="stopped by somebody"):
        deploy.execute(waiting)
    assert place.seen().phase is Phase.STOPPED
    later = Run(run_id="manual__3", granted=2).context("deploy")
    assert deploy.execute(later)["launched"]


def test_operators_say_what_they_will_do_about_airflows_own_faults(place: Place) -> None:
    operator = supervise(place)
    assert operator.retries == 1000 and operator.retry_delay.total_seconds() == 10
    assert operator.execution_timeout is None
    assert supervise(place, retries=3).retries == 3


def release(place: Place, run: Run) -> None:
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(run.context("release"))


def is_to_run(place: Place) -> bool:
    desired = place.seen().desired
    return desired is not None and desired.state == "running"


def test_a_place_that_stays_unreadable_is_handed_over_and_costs_no_driver(place: Place) -> None:
    run, first = Run(granted=3), place.deploy()
    deferred(lambda: supervise(place, retries=3).execute(run.context()), run)
    path = place.config / "profiles" / "test.yaml"
    content = path.read_text()
    path.write_text(content + "colour: green\n")
    fresh = handed_over(place, Run(attempt=3, granted=3))
    assert fresh.dag_run_id == "relief__1__manual__1"
    # Nor does the teardown wait for it: the fresh run begins once that has ended.
    relieved = Run(states={"supervise": "success"}, relieved=True)
    release(place, relieved)
    path.write_text(content)
    release(place, relieved)
    assert is_to_run(place) and place.seen().incarnation == first.incarnation
    # A late trigger of the old run finds that it is another's.
    found = current_claim(place.workspace, "lamp")
    assert found is not None and found.holder == "job_lamp/relief__1__manual__1"


@pytest.mark.parametrize("readable", [True, False])
def test_used_up_tries_are_nobodys_hand(place: Place, readable: bool) -> None:
    run = Run()
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    path = place.config / "profiles" / "test.yaml"
    content = path.read_text()
    if not readable:
        path.write_text(content + "colour: green\n")
    ended = Run(states={"supervise": "failed"}, tried={"attempt": 1001, "granted": 1000})
    with pytest.raises(DagRunTriggerException):
        release(place, ended)
    path.write_text(content)
    assert is_to_run(place)
    release(place, Run(states={"supervise": "failed"}, tried={"attempt": 7, "granted": 1000}))
    assert not is_to_run(place)


def in_dag(place: Place) -> ReleaseOperator:
    """Return the teardown of a DAG whose supervise task has two retries."""
    with DAG(dag_id="job_lamp", schedule=None):
        before = supervise(place, retries=2, retry_delay=timedelta(seconds=10))
        operator = ReleaseOperator(task_id="release", job="lamp", **place.place())
        before >> operator
    return operator


def ended_after(seconds: float) -> Any:
    """Return the context of a teardown whose supervise task has ended, failed, so long from now, in its first try."""
    context = Run(states={"supervise": "failed"}, tried={"attempt": 1, "granted": 2}).context("release")
    since = utc_now() + timedelta(seconds=seconds)
    return {**context, "task_state_store": {f"first_try_{context['ti'].max_tries}": since.isoformat()}}


def test_tries_that_died_before_they_began_are_nobodys_hand(place: Place) -> None:
    run, first = Run(granted=2), place.deploy()
    operator = supervise(place, retries=2)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    # The API server goes away before it hears of the deferral: this trigger never watches, and two tries are left.
    with pytest.raises(DagRunTriggerException):
        in_dag(place).execute(ended_after(25))
    assert fired(trigger, within=1) is None
    os.kill(pid_of(first), signal.SIGKILL)
    assert fired(trigger) is not None
    # Or it does when the task is to be woken.
    with pytest.raises(DagRunTriggerException):
        in_dag(place).execute(ended_after(25))
    assert is_to_run(place)


@pytest.mark.parametrize("watched_before", [True, False])
def test_what_ended_sooner_than_its_tries_take_was_ended_by_hand(place: Place, watched_before: bool) -> None:
    run = Run(granted=2)
    place.deploy()
    trigger = deferred(lambda: supervise(place, retries=2).execute(run.context()), run)
    if watched_before:
        assert fired(trigger, within=1) is None
    in_dag(place).execute(ended_after(3600 if watched_before else 10))
    assert not is_to_run(place)


def test_a_run_of_which_nothing_but_the_deploy_began_is_relieved(place: Place) -> None:
    DeployOperator(task_id="deploy", job="lamp", **place.place()).execute(Run().context("deploy"))
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    context = ended_after(25)
    context["ti"].xcom_pull = lambda **_: None
    with pytest.raises(DagRunTriggerException):
        in_dag(place).execute(context)
    assert is_to_run(place)


def test_what_is_deployed_between_the_wanted_end_and_the_teardown_goes_on(place: Place) -> None:
    run, first = Run(), place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    driver_control.stop(place.workspace, "lamp", by="somebody")
    event, context = fired(trigger), run.context()
    supervise(place).resume(context, event)
    assert context["ti"].pushed["finished"] == first.incarnation
    # A notifier takes a minute, and somebody deploys meanwhile, by the command line: the claim is still the run's.
    place.deploy()
    release(place, Run(states={"supervise": "success"}, finished=first.incarnation))
    assert is_to_run(place)
    # Marked, a task has seen no end.
    release(place, Run(states={"supervise": "success"}))
    assert not is_to_run(place)


def test_a_run_that_is_marked_while_its_task_waits_for_a_worker_stops_its_driver(place: Place) -> None:
    run = Run()
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    # Airflow skips what has not begun. A task that was skipped because of the one before it has claimed nothing.
    release(place, Run(run_id="manual__2", states={"supervise": "skipped"}))
    assert is_to_run(place)
    release(place, Run(states={"supervise": "skipped"}))
    assert not is_to_run(place)


def test_a_run_that_was_relieved_once_is_relieved_again(place: Place) -> None:
    run = Run(attempt=3, granted=3, ended_runs=("relief__1__manual__1",))
    place.deploy()
    with pytest.raises(DagRunTriggerException) as raised:
        supervise(place, retries=3).execute(run.context())
    assert raised.value.dag_run_id == "relief__2__manual__1"
    found = current_claim(place.workspace, "lamp")
    assert found is not None and found.holder == "job_lamp/relief__2__manual__1"


def test_a_clear_with_a_slip_in_the_yaml_supervises_what_is_deployed(place: Place) -> None:
    run, first = Run(), place.deploy()
    operator = supervise(place)
    deferred(lambda: operator.execute(run.context()), run)
    path = place.config / "jobs" / "lamp.yaml"
    path.write_text(path.read_text() + "colour: green\n")
    os.kill(pid_of(first), signal.SIGKILL)
    place.until(lambda seen: seen.phase is Phase.DEAD)
    cleared = Run(attempt=2, granted=2000)
    trigger = deferred(lambda: operator.execute(cleared.context()), cleared)
    event = fired(trigger) if place.seen().phase is Phase.DEAD else {}
    deferred(lambda: operator.resume(cleared.context(), event), cleared)
    assert place.until(lambda seen: seen.phase is Phase.RUNNING).incarnation != first.incarnation


def test_a_late_release_does_not_undo_what_a_person_deployed_since(place: Place) -> None:
    run = Run()
    place.deploy()
    deferred(lambda: supervise(place).execute(run.context()), run)
    run.states["supervise"] = "failed"
    context = run.context("release")
    context["task_state_store"] = {"first_try_1000": utc_now().isoformat()}
    driver_control.stop(place.workspace, "lamp", by="somebody")
    place.deploy()
    ReleaseOperator(task_id="release", job="lamp", **place.place()).execute(context)
    assert is_to_run(place)


def test_one_look_that_finds_a_driver_silent_ends_nothing(place: Place) -> None:
    place.profile(lease="4s")
    run, first, operator = Run(), place.deploy(), supervise(place)
    os.kill(pid_of(first), signal.SIGSTOP)
    place.until(lambda seen: seen.phase is Phase.SILENT)
    trigger = deferred(lambda: operator.execute(run.context()), run)
    assert first.heartbeat is not None and is_alive(first.heartbeat.process)
    assert fired(trigger, within=2) is None
    os.kill(pid_of(first), signal.SIGCONT)
    assert place.until(lambda seen: seen.phase is Phase.RUNNING).incarnation == first.incarnation


@pytest.mark.long
@pytest.mark.ci
def test_a_driver_that_speaks_again_is_not_ended_for_its_old_batch(place: Place) -> None:
    place.profile(lease="4s")
    run, operator = Run(), supervise(place)
    place.write_job(health={"no_batch": {"warn": "1h", "critical": "2h"}}, standin_mute=1)
    first = place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    os.kill(pid_of(first), signal.SIGSTOP)
    event = fired(trigger)
    assert event is not None and (event["action"], event["phase"]) == ("restart", "silent")
    os.kill(pid_of(first), signal.SIGCONT)
    place.until(lambda seen: seen.phase is Phase.RUNNING)
    # As if it had been away for longer than a batch may take.
    limits = HealthSpec.model_validate({"no_batch": {"warn": "1s", "critical": "2s"}})
    JobDocuments(place.workspace.storage, "lamp").desired.update(
        lambda found: found.model_copy(update={"spec": found.spec.model_copy(update={"health": limits})})  # type: ignore[union-attr]
    )
    deferred(lambda: operator.resume(run.context(), event), run)
    assert first.heartbeat is not None and is_alive(first.heartbeat.process)
    assert place.seen().incarnation == first.incarnation


@pytest.mark.long
@pytest.mark.ci
def test_a_clear_right_after_an_outage_attaches_to_the_driver_that_runs(place: Place) -> None:
    place.profile(lease="4s")
    first = place.deploy()
    deferred(lambda: supervise(place).execute(Run().context()), Run())
    os.kill(pid_of(first), signal.SIGSTOP)
    place.until(lambda seen: seen.phase is Phase.SILENT)
    back = threading.Timer(1, os.kill, (pid_of(first), signal.SIGCONT))
    back.start()
    cleared = Run(attempt=2, granted=2000)
    trigger = deferred(lambda: supervise(place).execute(cleared.context()), cleared)
    back.join()
    assert trigger.incarnation == place.seen().incarnation == first.incarnation


def test_a_trigger_that_ends_by_an_error_does_not_count_as_watching(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    assert fired(trigger, within=1) is None
    found = current_claim(place.workspace, "lamp")
    assert found is not None and found.deferred

    def broken(*_: Any) -> None:
        raise RuntimeError("for the test")

    monkeypatch.setattr(trigger, "_report", broken)
    with pytest.raises(RuntimeError):
        fired(trigger)
    found = current_claim(place.workspace, "lamp")
    assert found is not None and not found.deferred
