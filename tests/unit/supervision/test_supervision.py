from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.health_spec import HealthSpec
from streamwarden.model.operation import Operation
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.progress import BatchProgress, Progress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Desired, DriverState, Exit, Heartbeat, Launch, Lease
from streamwarden.model.supervision import Ending, Restart, Supervision
from streamwarden.operations.deploy import _stops
from streamwarden.operations.give_up import put_down
from streamwarden.operations.status import job_status
from streamwarden.runtime.processes import current_process, process_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control, silence
from streamwarden.supervision import observe as observing
from streamwarden.supervision.act import ask_to_stop, end_stuck, record_decision, restart
from streamwarden.supervision.claim import Claim, claim, current_claim, note_deferred
from streamwarden.supervision.decide import Action, Verdict, assess, decide
from streamwarden.supervision.health_rules import Level
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.silence import Silence
from streamwarden.supervision.stuck import Standstill

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB = "lamp"


def spec(**restarts: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": JOB,
            "module": "spark_jobs.none",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": JOB, "mode": "append"}],
            "restarts": {"max": 3, "window": "10m", "backoff": "2s", "backoff_max": "8s", **restarts},
        }
    )


def desired(state: str = "running", **restarts: Any) -> Desired:
    found = spec(**restarts)
    return Desired(
        job=JOB,
        state=state,  # type: ignore[arg-type]
        spec=found,
        digest=found.digest(),
        profile="test",
        updated_at=NOW,
        updated_by="test",
    )


def error(code: str) -> ErrorInfo:
    return ErrorInfo.of(StreamwardenError(code, "for the test"), traceback="Traceback")


def seen(phase: Phase, *, wanted: str = "running", code: str | None = None, **restarts: Any) -> Observation:
    return Observation(
        job=JOB,
        phase=phase,
        reason=f"it is {phase}",
        since=NOW,
        desired=desired(wanted, **restarts),
        incarnation="i1",
        error=error(code) if code else None,
    )


def memory(*ages: timedelta) -> Supervision:
    return Supervision(restarts=[Restart(at=NOW - age, after=f"old{age}", reason="") for age in ages])


def test_never_deployed_fails() -> None:
    verdict = decide(Observation(JOB, Phase.NOT_DEPLOYED, "nothing", NOW), Supervision(), now=NOW)
    assert verdict.action is Action.FAIL and verdict.error is not None and verdict.error.code == "NOT_DEPLOYED"


LIVING = [phase for phase in Phase if phase.alive]


@pytest.mark.parametrize("phase", LIVING)
def test_waits_while_a_driver_lives(phase: Phase) -> None:
    assert decide(seen(phase), Supervision(), now=NOW).action is Action.WAIT


@pytest.mark.parametrize("phase", LIVING)
def test_a_suspended_jobs_driver_is_asked_to_stop_unless_it_was_or_an_operation_works(phase: Phase) -> None:
    found = seen(phase, wanted="suspended")
    expected = Action.WAIT if phase is Phase.STOPPING else Action.STOP
    assert decide(found, Supervision(), now=NOW).action is expected
    assert decide(replace(found, asked_at=NOW), Supervision(), now=NOW).action is Action.WAIT
    works = Operation(
        id="o1", kind="restore", job=JOB, by="", params={}, started_at=NOW, seen_at=NOW, process=current_process()
    )
    assert decide(replace(found, operation=works), Supervision(), now=NOW).action is Action.WAIT


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED, Phase.DEAD, Phase.SILENT])
def test_finishes_however_a_job_ended_that_is_to_be_down(phase: Phase) -> None:
    assert decide(seen(phase, wanted="suspended"), Supervision(), now=NOW).action is Action.FINISH


@pytest.mark.parametrize(
    "phase, code",
    [(Phase.STOPPED, None), (Phase.FAILED, "BATCH_FAILED"), (Phase.DEAD, "DRIVER_DIED"), (Phase.SILENT, "LEASE_LOST")],
)
def test_restarts_what_may_pass(phase: Phase, code: str | None) -> None:
    verdict = decide(seen(phase, code=code), Supervision(), now=NOW)
    assert verdict.action is Action.RESTART
    assert verdict.not_before is not None
    assert timedelta(seconds=1.6) <= verdict.not_before - NOW <= timedelta(seconds=2.4)


def test_fails_at_once_on_what_cannot_pass() -> None:
    verdict = decide(seen(Phase.FAILED, code="SINK_SCHEMA_MISMATCH"), Supervision(), now=NOW)
    assert verdict.action is Action.FAIL and verdict.error is not None
    assert verdict.error.code == "SINK_SCHEMA_MISMATCH" and verdict.error.traceback == "Traceback"


def test_back_off_doubles_up_to_its_limit_and_is_the_same_for_all_supervisors() -> None:
    waits = []
    for count in range(3):
        verdict = decide(seen(Phase.DEAD, code="DRIVER_DIED", max=9), memory(*[timedelta(minutes=1)] * count), now=NOW)
        again = decide(seen(Phase.DEAD, code="DRIVER_DIED", max=9), memory(*[timedelta(minutes=1)] * count), now=NOW)
        assert verdict == again and verdict.not_before is not None
        waits.append((verdict.not_before - NOW).total_seconds())
    assert waits[1] == pytest.approx(2 * waits[0]) and waits[2] == pytest.approx(4 * waits[0])
    verdict = decide(seen(Phase.DEAD, code="DRIVER_DIED", max=9), memory(*[timedelta(minutes=1)] * 8), now=NOW)
    assert verdict.not_before is not None and verdict.not_before - NOW <= timedelta(seconds=8 * 1.2)


def test_spent_budget_fails_with_the_last_error() -> None:
    spent = memory(*[timedelta(minutes=minutes) for minutes in (1, 2, 3)])
    verdict = decide(seen(Phase.FAILED, code="BATCH_FAILED"), spent, now=NOW)
    assert verdict.action is Action.FAIL and verdict.error is not None
    assert verdict.error.code == "RESTART_BUDGET_SPENT" and "BATCH_FAILED: for the test" in verdict.error.what
    assert verdict.error.traceback == "Traceback"


def test_old_restarts_are_forgiven() -> None:
    spent = memory(timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=11))
    assert decide(seen(Phase.DEAD, code="DRIVER_DIED"), spent, now=NOW).action is Action.RESTART


def test_a_large_budget_can_be_spent_to_its_end() -> None:
    many = {"max": 100, "window": "24h"}
    for count in (46, 99):
        verdict = decide(seen(Phase.DEAD, code="DRIVER_DIED", **many), memory(*[timedelta(hours=1)] * count), now=NOW)
        assert verdict.action is Action.RESTART and verdict.not_before is not None
        assert verdict.not_before - NOW <= timedelta(seconds=8 * 1.2)
    verdict = decide(seen(Phase.DEAD, code="DRIVER_DIED", **many), memory(*[timedelta(hours=1)] * 100), now=NOW)
    assert verdict.action is Action.FAIL


def test_a_budget_has_a_bound() -> None:
    assert spec(max=1000).restarts.max == 1000
    with pytest.raises(ValidationError, match="less than or equal to 1000"):
        spec(max=1001)


def gave_up(incarnation: str) -> Supervision:
    return Supervision(ending=Ending(incarnation=incarnation, at=NOW, why="", error=error("RESTART_BUDGET_SPENT")))


def test_what_was_given_up_is_not_restarted_and_its_successor_is() -> None:
    verdict = decide(seen(Phase.DEAD, code="DRIVER_DIED"), gave_up("i1"), now=NOW)
    assert verdict.action is Action.FAIL and verdict.error == error("RESTART_BUDGET_SPENT")
    assert decide(seen(Phase.RUNNING), gave_up("i1"), now=NOW).action is Action.WAIT
    assert decide(seen(Phase.STOPPED, wanted="suspended"), gave_up("i1"), now=NOW).action is Action.FINISH
    # Started by a person or an operation since.
    assert decide(seen(Phase.DEAD, code="DRIVER_DIED"), gave_up("i0"), now=NOW).action is Action.RESTART


def limited(incarnation: str = "i1") -> Supervision:
    reached = error("STATE_LIMIT_REACHED")
    ending = Ending(incarnation=incarnation, at=NOW, action="suspend", why="full", error=reached, savepoint=True)
    return Supervision(ending=ending)


def test_a_suspension_that_was_begun_is_carried_out_once_the_driver_has_stopped() -> None:
    assert decide(seen(Phase.STOPPING, wanted="suspended"), limited(), now=NOW).action is Action.WAIT
    verdict = decide(seen(Phase.STOPPED, wanted="suspended"), limited(), now=NOW)
    assert (verdict.action, verdict.why, verdict.savepoint) == (Action.SUSPEND, "full", True)
    assert verdict.error == error("STATE_LIMIT_REACHED")
    # Started since, and stopped by a person.
    assert decide(seen(Phase.STOPPED, wanted="suspended"), limited("i0"), now=NOW).action is Action.FINISH
    # Its savepoint failed, and the job was to go on.
    assert decide(seen(Phase.STOPPED), limited(), now=NOW).action is Action.RESTART


# -- on documents ------------------------------------------------------------------------------------------------------


def living(*, since: timedelta, keys: int = 0, **health: Any) -> Observation:
    """A driver whose newest batch is so old."""
    last = BatchProgress(batch=7, at=NOW - since, duration_ms=1, rows_in=1, state_rows=keys)
    found = seen(Phase.RUNNING)
    assert found.desired is not None
    limits = HealthSpec.model_validate(health)
    wanted = found.desired.model_copy(update={"spec": found.desired.spec.model_copy(update={"health": limits})})
    return replace(found, desired=wanted, progress=Progress(incarnation="i1", at=NOW, last=last, recent=[last]))


def test_a_stuck_driver_is_restarted_within_the_budget() -> None:
    limit = {"no_batch": {"warn": "10s", "critical": "20s"}}
    assert decide(living(since=timedelta(seconds=19), **limit), memory(), now=NOW).action is Action.WAIT
    stuck = living(since=timedelta(seconds=21), **limit)
    verdict = decide(stuck, memory(), now=NOW)
    assert (verdict.action, verdict.not_before) == (Action.RESTART, None)
    assert "committed no batch for 21 s" in verdict.why
    used = memory(*[timedelta(minutes=n) for n in (1, 2, 3)])
    spent = decide(stuck, used, now=NOW)
    assert spent.action is Action.FAIL and spent.error is not None
    assert "Last: DRIVER_STUCK: incarnation i1: it is alive but has committed no batch for 21 s" in spent.error.what
    assert "logs JOB --source spark" in spent.error.remedy
    health = assess(stuck, used, spent, now=NOW)
    told = {one.rule: (one.level, one.what) for one in health.findings}["driver"]
    assert told[0] is Level.CRITICAL and "committed no batch for 21 s" in told[1]
    left = living(since=timedelta(seconds=21), restart_when_stuck=False, **limit)
    assert decide(left, memory(), now=NOW).action is Action.WAIT


@pytest.mark.parametrize(
    ("wanted", "here", "action"),
    [("running", True, Action.RESTART), ("suspended", True, Action.WAIT), ("running", False, Action.WAIT)],
)
def test_a_driver_that_hangs_in_its_stop_is_stuck_if_its_job_is_to_run(wanted: str, here: bool, action: Action) -> None:
    """What has asked it to stop may have given up. Elsewhere nothing can be done but to ask, which was done."""
    found = living(since=timedelta(seconds=21), no_batch={"critical": "20s"}, state_rows={"critical": 1})
    process = current_process() if here else current_process().model_copy(update={"host": "elsewhere"})
    beat = Heartbeat(incarnation="i1", at=NOW, started_at=NOW - timedelta(hours=1), state="stopping", process=process)  # type: ignore[arg-type]
    assert found.desired is not None
    stops = found.desired.model_copy(update={"state": wanted})
    found = replace(found, phase=Phase.STOPPING, heartbeat=beat, desired=stops, asked_at=NOW)
    assert decide(found, memory(), now=NOW).action is action


def test_a_driver_that_waits_for_its_source_is_told_of_and_not_restarted() -> None:
    waits = replace(living(since=timedelta(minutes=9), no_batch={"critical": "5m"}), phase=Phase.WAITING)
    verdict = decide(waits, memory(), now=NOW)
    assert verdict.action is Action.WAIT
    found = {one.rule: one.level for one in assess(waits, memory(), verdict, now=NOW).findings}
    assert found == {"no_batch": Level.CRITICAL}


@pytest.mark.parametrize(("act", "savepoint"), [("savepoint_and_stop", True), ("fail", False)])
def test_a_state_limit_ends_the_job(act: str, savepoint: bool) -> None:
    limit = {"state_rows": {"critical": 100}}
    verdict = decide(living(since=timedelta(0), keys=100, on_state_limit=act, **limit), memory(), now=NOW)
    assert (verdict.action, verdict.savepoint) == (Action.SUSPEND, savepoint)
    assert verdict.error is not None and verdict.error.code == "STATE_LIMIT_REACHED" and not verdict.error.retryable
    below = living(since=timedelta(0), keys=99, on_state_limit=act, **limit)
    assert decide(below, memory(), now=NOW).action is Action.WAIT
    only_told = living(since=timedelta(0), keys=100, **limit)
    assert decide(only_told, memory(), now=NOW).action is Action.WAIT
    assert assess(only_told, memory(), decide(only_told, memory(), now=NOW), now=NOW).level is Level.CRITICAL


def test_being_down_is_a_finding_unless_it_is_wanted_or_an_operation_works() -> None:
    down = seen(Phase.DEAD)
    health = assess(down, memory(), decide(down, memory(), now=NOW), now=NOW)
    assert [(found.rule, found.level) for found in health.findings] == [("driver", Level.WARN)]
    spent = memory(*[timedelta(minutes=n) for n in (1, 2, 3)])
    health = assess(down, spent, decide(down, spent, now=NOW), now=NOW)
    assert {found.rule: found.level for found in health.findings}["driver"] is Level.CRITICAL
    suspended = seen(Phase.STOPPED, wanted="suspended")
    assert assess(suspended, memory(), decide(suspended, memory(), now=NOW), now=NOW).findings == ()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    profile = {"name": "test", "root": "root", "heartbeat": "1s", "lease": "5s"}
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    opened = open_workspace("test", config=tmp_path / "config")
    JobDocuments(opened.storage, JOB).desired.write(desired())
    return opened


def launched(workspace: Workspace, name: str, *, process: ProcessRef | None = None, code: str | None = None) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    documents.launch(name).write(
        Launch(incarnation=name, at=utc_now(), by="test", reason="", digest="", process=process)
    )
    if code is not None:
        info = error(code) if code != "stopped" else None
        outcome = "stopped" if info is None else "failed"
        documents.exit(name).write(
            Exit(incarnation=name, at=utc_now(), outcome=outcome, error=info, batch=7)  # type: ignore[arg-type]
        )


def beats(workspace: Workspace, name: str, process: ProcessRef, *, age: float = 0) -> None:
    at = utc_now() - timedelta(seconds=age)
    JobDocuments(workspace.storage, JOB).heartbeat(name).write(
        Heartbeat(incarnation=name, at=at, started_at=at, state=DriverState.RUNNING, process=process)
    )


GONE = current_process().model_copy(update={"started": 1.0})


def test_observes_a_living_a_dead_a_silent_and_an_ended_driver(workspace: Workspace) -> None:
    assert observe(workspace, JOB).phase is Phase.NOT_DEPLOYED
    launched(workspace, "a1", process=current_process())
    assert observe(workspace, JOB).phase is Phase.STARTING
    beats(workspace, "a1", current_process())
    assert observe(workspace, JOB).phase is Phase.RUNNING
    beats(workspace, "a1", current_process(), age=9)
    silent = observe(workspace, JOB)
    assert silent.phase is Phase.SILENT and silent.error is not None and silent.error.code == "DRIVER_SILENT"
    beats(workspace, "a1", GONE)
    dead = observe(workspace, JOB)
    assert dead.phase is Phase.DEAD and dead.error is not None and dead.error.code == "DRIVER_DIED"
    launched(workspace, "a1", process=GONE, code="stopped")
    assert observe(workspace, JOB).phase is Phase.STOPPED


@pytest.mark.parametrize("lease, limit", [("5s", 90), ("10m", 630)])
def test_a_driver_may_wait_for_a_dead_ones_lease_before_it_speaks(tmp_path: Path, lease: str, limit: int) -> None:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    profile = {"name": "test", "root": "root", "heartbeat": "1s", "lease": lease}
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    workspace = open_workspace("test", config=tmp_path / "config")
    documents = JobDocuments(workspace.storage, JOB)
    documents.desired.write(desired())
    for age, phase in ((limit - 10, Phase.STARTING), (limit + 10, Phase.SILENT)):
        at = utc_now() - timedelta(seconds=age)
        documents.launch("i1").write(
            Launch(incarnation="i1", at=at, by="", reason="", digest="", process=current_process())
        )
        assert observe(workspace, JOB).phase is phase


def test_a_driver_that_ends_between_two_looks_has_ended_and_did_not_die(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(workspace, "a1", process=current_process())
    beats(workspace, "a1", current_process())

    def ends_now(process: ProcessRef) -> bool:
        launched(workspace, "a1", process=process, code="SINK_SCHEMA_MISMATCH")
        return False

    monkeypatch.setattr(observing, "is_alive", ends_now)
    found = observe(workspace, JOB)
    assert found.phase is Phase.FAILED and found.exit is not None
    assert found.error is not None and found.error.code == "SINK_SCHEMA_MISMATCH"


def test_driver_that_was_refused_is_not_the_job(workspace: Workspace) -> None:
    launched(workspace, "a1", process=GONE)
    beats(workspace, "a1", GONE)
    launched(workspace, "a2", process=GONE, code="LEASE_HELD")
    found = observe(workspace, JOB)
    assert found.incarnation == "a1" and found.phase is Phase.DEAD
    assert decide(found, Supervision()).action is Action.RESTART


def test_holder_of_the_lease_is_the_current_driver(workspace: Workspace) -> None:
    launched(workspace, "a1", process=current_process())
    beats(workspace, "a1", current_process())
    launched(workspace, "a2", process=current_process())
    now = utc_now()
    JobDocuments(workspace.storage, JOB).lease.write(
        Lease(
            job=JOB,
            incarnation="a1",
            process=current_process(),
            epoch=1,
            acquired_at=now,
            expires_at=now + timedelta(seconds=60),
        )
    )
    assert observe(workspace, JOB).incarnation == "a1"
    # It has written its end, and is about to give the lease back.
    launched(workspace, "a1", process=current_process(), code="stopped")
    assert observe(workspace, JOB).incarnation == "a2"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def launch(workspace: Workspace, desired: Desired, *, by: str, reason: str) -> str:
        calls.append(reason)
        launched(workspace, f"b{len(calls)}", process=current_process())
        return f"b{len(calls)}"

    monkeypatch.setattr("streamwarden.supervision.act.launch_driver", launch)
    return calls


def test_restart_is_done_once_for_each_ended_driver(workspace: Workspace, launches: list[str]) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    found = observe(workspace, JOB)
    assert restart(workspace, found, by="one") == "b1"
    assert restart(workspace, found, by="another") is None
    assert len(launches) == 1 and launches[0].startswith("restart: BATCH_FAILED")


def test_as_many_restarts_are_remembered_as_the_budget_has(workspace: Workspace, launches: list[str]) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    documents.desired.write(desired(max=70))
    launched(workspace, "z1", process=GONE, code="BATCH_FAILED")
    earlier = [Restart(at=utc_now(), after=f"a{number}", reason="") for number in range(69)]
    documents.supervision.write(Supervision(restarts=earlier))
    assert restart(workspace, observe(workspace, JOB), by="test") is not None
    found = documents.supervision.read()
    assert found is not None and len(found.restarts) == 70 and len(found.decisions) == 1


def test_no_restart_of_what_another_supervisor_gave_up(workspace: Workspace, launches: list[str]) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    documents = JobDocuments(workspace.storage, JOB)
    documents.supervision.write(gave_up("a1"))
    assert restart(workspace, observe(workspace, JOB), by="late") is None and launches == []
    assert documents.supervision.read() == gave_up("a1")


@pytest.mark.parametrize("code", ["YARN_UNREACHABLE", "KUBERNETES_UNREACHABLE"])
def test_starts_that_find_no_cluster_spend_no_restart(workspace: Workspace, launches: list[str], code: str) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    launched(workspace, "a1", process=GONE, code="DRIVER_DIED")
    waits = []
    for number in range(1, 10):
        found = observe(workspace, JOB)
        verdict = decide(found, documents.supervision.read() or Supervision())
        assert verdict.action is Action.RESTART and verdict.not_before is not None
        waits.append((verdict.not_before - found.since).total_seconds())
        assert restart(workspace, found, by="test") == f"b{number}"
        launched(workspace, f"b{number}", process=GONE, code=code)
    # Of a limit of 8 s.
    assert 1.6 <= waits[0] <= 2.4 and max(waits) <= 8 * 1.2 and min(waits[4:]) >= 8 * 0.8
    memory = documents.supervision.read()
    assert memory is not None and [entry.after for entry in memory.restarts if entry.counts] == ["a1"]
    assert len(memory.restarts) == 1 + 8
    # A job without restarts stays down.
    verdict = decide(seen(Phase.FAILED, code=code, max=0), Supervision(), now=NOW)
    assert verdict.action is Action.FAIL
    # The cluster is back, and the job fails as before.
    launched(workspace, "b9", process=GONE, code="DRIVER_DIED")
    assert decide(observe(workspace, JOB), memory).action is Action.RESTART


def test_restart_is_taken_over_from_a_supervisor_that_died_in_it(workspace: Workspace, launches: list[str]) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    documents = JobDocuments(workspace.storage, JOB)
    begun = Restart(at=utc_now() - timedelta(seconds=5), after="a1", reason="")
    documents.supervision.write(Supervision(restarts=[begun]))
    assert restart(workspace, observe(workspace, JOB), by="another") is None, "it may be about to launch"
    documents.supervision.write(
        Supervision(restarts=[begun.model_copy(update={"at": utc_now() - timedelta(minutes=2)})])
    )
    assert restart(workspace, observe(workspace, JOB), by="another") == "b1"
    found = documents.supervision.read()
    assert found is not None and len(found.restarts) == 1, "it counts once"


def test_a_stuck_driver_is_killed_before_the_next_starts(workspace: Workspace, launches: list[str]) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process = process_of(child.pid)
    launched(workspace, "i1", process=process)
    beats(workspace, "i1", process)
    living_one = observe(workspace, JOB)
    assert living_one.phase.alive
    assert restart(workspace, living_one, by="test", why="it is stuck") is not None
    assert child.wait(timeout=10) == -signal.SIGKILL and len(launches) == 1
    ended = JobDocuments(workspace.storage, JOB).exit("i1").read()
    assert ended is not None and ended.error is not None
    assert (ended.error.code, ended.error.what) == ("DRIVER_STUCK", "incarnation i1: it is stuck")
    memory = JobDocuments(workspace.storage, JOB).supervision.read()
    assert memory is not None and memory.restarts[-1].reason == "it is stuck"


def test_a_stuck_driver_elsewhere_is_asked_to_stop_once(workspace: Workspace, launches: list[str]) -> None:
    elsewhere = current_process().model_copy(update={"host": "elsewhere"})
    launched(workspace, "i1", process=elsewhere)
    beats(workspace, "i1", elsewhere)
    for _ in range(2):
        assert restart(workspace, observe(workspace, JOB), by="test", why="it is stuck") is None
    assert JobDocuments(workspace.storage, JOB).stop("i1").read() is not None
    assert launches == []


def test_a_driver_that_is_gone_is_not_said_to_have_been_stuck(workspace: Workspace) -> None:
    launched(workspace, "i1", process=GONE)
    beats(workspace, "i1", GONE)
    assert not end_stuck(workspace, observe(workspace, JOB), by="test", why="it is stuck")
    assert observe(workspace, JOB).phase is Phase.DEAD


def test_what_a_driver_said_last_is_left_to_stand(workspace: Workspace) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    launched(workspace, "i1", process=process_of(child.pid))
    beats(workspace, "i1", process_of(child.pid))
    found = observe(workspace, JOB)
    launched(workspace, "i1", process=process_of(child.pid), code="BATCH_FAILED")
    assert end_stuck(workspace, found, by="test", why="it is stuck")
    child.wait(timeout=10)
    last = observe(workspace, JOB)
    assert last.error is not None and last.error.code == "BATCH_FAILED"


def stuck_for_good(workspace: Workspace, process: ProcessRef) -> tuple[Observation, Verdict]:
    """A driver that lives and does nothing, of a job that may not be restarted."""
    documents = JobDocuments(workspace.storage, JOB)
    wanted = desired(max=0)
    limits = HealthSpec.model_validate({"no_batch": {"critical": "20s"}})
    documents.desired.write(wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"health": limits})}))
    at = utc_now() - timedelta(minutes=1)
    documents.launch("i1").write(Launch(incarnation="i1", at=at, by="", reason="", digest="", process=process))
    documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=utc_now(), started_at=at, state=DriverState.RUNNING, process=process, batch=7)
    )
    found = observe(workspace, JOB)
    return found, decide(found, Supervision())


def test_a_stuck_driver_that_is_given_up_is_named_so_afterwards(workspace: Workspace) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    found, verdict = stuck_for_good(workspace, process_of(child.pid))
    error = put_down(workspace, found, verdict, by="test")
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert error.code == "RESTART_BUDGET_SPENT" and "DRIVER_STUCK" in error.what
    shown = job_status(workspace, JOB)
    assert (shown["phase"], shown["health"], shown["batch"]) == ("failed", "critical", 7)
    assert shown["error"]["code"] == shown["diagnosis"]["code"] == "DRIVER_STUCK"
    assert shown["diagnosis"]["command"] == f"streamwarden logs {JOB} --source spark"
    assert any(one["rule"] == "driver" and "DRIVER_STUCK" in one["what"] for one in shown["findings"])


def test_a_stuck_driver_elsewhere_that_is_given_up_is_asked_to_stop(workspace: Workspace) -> None:
    found, verdict = stuck_for_good(workspace, current_process().model_copy(update={"host": "elsewhere"}))
    for _ in range(2):
        put_down(workspace, found, verdict, by="test")
    assert JobDocuments(workspace.storage, JOB).stop("i1").read() is not None


def silent(workspace: Workspace, process: ProcessRef) -> tuple[Observation, Verdict]:
    """A driver that says nothing for longer than its lease, of a job that may not be restarted."""
    documents = JobDocuments(workspace.storage, JOB)
    documents.desired.write(desired(max=0))
    at = utc_now() - timedelta(minutes=1)
    documents.launch("i1").write(Launch(incarnation="i1", at=at, by="", reason="", digest="", process=process))
    documents.heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=at, started_at=at, state=DriverState.RUNNING, process=process, batch=7)
    )
    found = observe(workspace, JOB)
    assert found.phase is Phase.SILENT
    return found, decide(found, Supervision())


def test_a_silent_driver_that_is_given_up_does_not_wake_unwatched(workspace: Workspace) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    found, verdict = silent(workspace, process_of(child.pid))
    child.send_signal(signal.SIGSTOP)
    assert put_down(workspace, found, verdict, by="test").code == "RESTART_BUDGET_SPENT"
    assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_silent_driver_elsewhere_that_is_given_up_finds_a_stop_when_it_wakes(workspace: Workspace) -> None:
    found, verdict = silent(workspace, current_process().model_copy(update={"host": "elsewhere"}))
    put_down(workspace, found, verdict, by="test")
    assert JobDocuments(workspace.storage, JOB).stop("i1").read() is not None


def test_a_state_limit_suspends_the_job_also_where_no_savepoint_can_be_taken(
    workspace: Workspace, launches: list[str]
) -> None:
    launched(workspace, "i1", process=current_process(), code="stopped")
    limit = ErrorInfo.of(StreamwardenError("STATE_LIMIT_REACHED", "many keys"))
    verdict = Verdict(Action.SUSPEND, "many keys", error=limit, savepoint=True)
    error = put_down(workspace, observe(workspace, JOB), verdict, by="test")
    assert error.code == "STATE_LIMIT_REACHED"
    assert error.what.startswith("many keys. Suspended without a savepoint: SAVEPOINT_NOTHING: ")
    found = observe(workspace, JOB)
    assert found.desired is not None and found.desired.state == "suspended" and launches == []
    assert decide(found, JobDocuments(workspace.storage, JOB).supervision.read() or Supervision()).action is (
        Action.FINISH
    )


def ended_at_its_limit(workspace: Workspace, *, ago: timedelta = timedelta(0)) -> tuple[Observation, Verdict]:
    launched(workspace, "i1", process=current_process(), code="stopped")
    JobDocuments(workspace.storage, JOB).exit("i1").write(
        Exit(incarnation="i1", at=utc_now() - ago, outcome="stopped", batch=7)
    )
    limit = ErrorInfo.of(StreamwardenError("STATE_LIMIT_REACHED", "many keys"))
    return observe(workspace, JOB), Verdict(Action.SUSPEND, "many keys", error=limit, savepoint=True)


@pytest.mark.parametrize(
    "failure, code",
    [
        (StreamwardenError("S3_THROTTLED", "for the test"), "S3_THROTTLED"),
        (OSError(28, "no space left on device"), "SAVEPOINT_FAILED"),
    ],
)
def test_a_state_limits_savepoint_is_tried_again_for_a_while(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, failure: Exception, code: str
) -> None:
    def take(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr("streamwarden.operations.give_up.take", take)
    found, verdict = ended_at_its_limit(workspace)
    documents = JobDocuments(workspace.storage, JOB)
    for _ in range(2):
        with pytest.raises(StreamwardenError, match=code) as raised:
            put_down(workspace, found, verdict, by="test")
        assert raised.value.retryable
        # The next look finds what is left to do.
        found = observe(workspace, JOB)
        again = decide(found, documents.supervision.read() or Supervision())
        assert (again.action, again.savepoint) == (Action.SUSPEND, True)
    # However often it was tried, and so dated anew: what counts is when the driver ended.
    found, verdict = ended_at_its_limit(workspace, ago=timedelta(minutes=11))
    error = put_down(workspace, found, verdict, by="test")
    assert error.what.startswith(f"many keys. Suspended without a savepoint: {code}: ")
    memory = documents.supervision.read() or Supervision()
    assert decide(observe(workspace, JOB), memory).action is Action.FINISH


def test_a_verdict_is_not_carried_out_on_a_driver_that_came_later(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamwarden.operations.give_up.take", lambda *_, **__: pytest.fail("of a job that runs"))
    found, suspend = ended_at_its_limit(workspace)
    launched(workspace, "i2", process=current_process())
    for verdict in (suspend, Verdict(Action.FAIL, "for the test")):
        with pytest.raises(StreamwardenError, match="i2 is its driver now, not i1") as raised:
            put_down(workspace, found, verdict, by="test")
        assert raised.value.retryable
    now = observe(workspace, JOB)
    assert now.desired is not None and now.desired.state == "running"
    assert JobDocuments(workspace.storage, JOB).supervision.read() is None
    # Deployed in the very moment of the stop.
    monkeypatch.setattr(driver_control, "stop", lambda *_, **__: now)
    monkeypatch.setattr("streamwarden.operations.give_up.observe", lambda *_: found)
    with pytest.raises(StreamwardenError, match="i2 is its driver now"):
        put_down(workspace, found, suspend, by="test")


def test_a_silent_driver_that_woke_is_not_put_down(workspace: Workspace) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    found, verdict = silent(workspace, process_of(child.pid))
    beats(workspace, "i1", process_of(child.pid))
    with pytest.raises(StreamwardenError, match="was silent, and is running now"):
        put_down(workspace, found, verdict, by="test")
    assert child.poll() is None
    child.kill()
    child.wait()


def test_the_end_of_a_driver_elsewhere_is_not_waited_for_for_ever(workspace: Workspace) -> None:
    hangs(workspace, current_process().model_copy(update={"host": "elsewhere"}))
    with pytest.raises(StreamwardenError, match=r"STOP_TIMED_OUT[^$]*on elsewhere"):
        driver_control.end_driver(workspace, JOB, by="test", reason="for the test", timeout=0.1)


def test_no_restart_of_a_job_that_was_stopped_meanwhile(workspace: Workspace, launches: list[str]) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    found = observe(workspace, JOB)
    JobDocuments(workspace.storage, JOB).desired.write(desired("suspended"))
    assert restart(workspace, found, by="test") is None
    assert not launches


def test_no_restart_over_a_driver_deployed_meanwhile(workspace: Workspace, launches: list[str]) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    found = observe(workspace, JOB)
    launched(workspace, "a2", process=current_process())
    assert restart(workspace, found, by="test") is None
    assert not launches


def test_a_driver_that_was_launched_over_a_stop_is_asked_once(workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    launched(workspace, "a1", process=current_process())
    beats(workspace, "a1", current_process())
    documents.desired.write(desired("suspended"))
    found = observe(workspace, JOB)
    verdict = decide(found, Supervision())
    assert verdict.action is Action.STOP
    ask_to_stop(workspace, found, by="test", why=verdict.why)
    found = observe(workspace, JOB)
    assert found.asked_at is not None and decide(found, Supervision()).action is Action.WAIT
    asked = documents.stop("a1").read()
    assert asked is not None and (asked.by, asked.at) == ("test", found.asked_at)


def test_a_stop_that_finds_nobody_to_ask_waits_for_what_was_launched_meanwhile(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")

    def nobody(*_: Any, **__: Any) -> bool:
        launched(workspace, "a2", process=current_process())
        return False

    monkeypatch.setattr(driver_control, "request_stop", nobody)
    with pytest.raises(StreamwardenError, match="STOP_TIMED_OUT"):
        driver_control.stop(workspace, JOB, by="test", timeout=0.2)


def test_a_suspended_jobs_living_driver_is_none_for_a_deploy_to_leave_alone(workspace: Workspace) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    launched(workspace, "a1", process=current_process())
    beats(workspace, "a1", current_process())
    assert not _stops(documents, observe(workspace, JOB))
    documents.desired.write(desired("suspended"))
    assert _stops(documents, observe(workspace, JOB))


def hangs(workspace: Workspace, process: ProcessRef) -> None:
    launched(workspace, "i1", process=process)
    at = utc_now()
    JobDocuments(workspace.storage, JOB).heartbeat("i1").write(
        Heartbeat(incarnation="i1", at=at, started_at=at, state=DriverState.STOPPING, process=process, batch=7)
    )


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_driver_that_does_not_stop_is_killed_if_that_is_asked_for(workspace: Workspace, all_of_them: bool) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    hangs(workspace, process_of(child.pid))
    documents = JobDocuments(workspace.storage, JOB)

    def stop(*, kill: bool) -> Observation:
        if all_of_them:
            return driver_control.stop_all(workspace, [JOB], by="test", timeout=0.2, kill=kill)[JOB]
        return driver_control.stop(workspace, JOB, by="test", timeout=0.2, kill=kill)

    with pytest.raises(StreamwardenError, match="stop JOB --kill"):
        stop(kill=False)
    assert child.poll() is None
    ended = stop(kill=True)
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert documents.stop("i1").read() is not None, "it was asked first"
    assert ended.phase is Phase.FAILED and ended.error is not None and ended.error.code == "DRIVER_KILLED"
    assert ended.exit is not None and ended.exit.batch == 7
    assert "by test" in ended.error.what and "finishes the batch" in ended.error.remedy
    assert decide(ended, Supervision()).action is Action.FINISH


def test_a_driver_elsewhere_that_does_not_stop_cant_be_killed(workspace: Workspace) -> None:
    hangs(workspace, current_process().model_copy(update={"host": "elsewhere"}))
    with pytest.raises(StreamwardenError, match=r"STOP_TIMED_OUT.*elsewhere"):
        driver_control.stop(workspace, JOB, by="test", timeout=0.2, kill=True)


def test_a_driver_that_stops_in_time_is_not_killed(workspace: Workspace) -> None:
    launched(workspace, "i1", process=current_process(), code="stopped")
    assert driver_control.stop(workspace, JOB, by="test", timeout=0.2, kill=True).phase is Phase.STOPPED


@pytest.mark.parametrize("asked", [True, False])
def test_a_stop_that_lasts_longer_than_a_batch_may_is_told(asked: bool) -> None:
    found = seen(Phase.STOPPING, wanted="suspended")
    found = replace(found, asked_at=NOW if asked else None)

    def told(after: timedelta, seen: Observation = found) -> list[tuple[str, Level]]:
        now = NOW + after
        health = assess(seen, memory(), decide(seen, memory(), now=now), now=now)
        return [(one.rule, one.level) for one in health.findings]

    assert told(timedelta(minutes=9)) == []
    assert told(timedelta(minutes=11)) == [("driver", Level.WARN)]
    assert told(timedelta(minutes=11), replace(found, phase=Phase.STOPPED)) == []


def test_newest_claim_holds(workspace: Workspace) -> None:
    first, second = (Claim(holder=name, attempt=1, granted=5, at=utc_now()) for name in ("first", "second"))
    assert claim(workspace, JOB, first) is None
    assert claim(workspace, JOB, first.model_copy(update={"attempt": 0}), over_own=False) == first
    assert current_claim(workspace, JOB) == first
    assert claim(workspace, JOB, second, over_own=False) == first
    assert current_claim(workspace, JOB) == second


def test_a_trigger_notes_only_in_its_own_claim_that_it_watches(workspace: Workspace) -> None:
    note_deferred(workspace, JOB, holder="first", attempt=1, deferred=True)
    assert current_claim(workspace, JOB) is None
    ours = Claim(holder="first", attempt=2, granted=5, at=utc_now())
    claim(workspace, JOB, ours)
    for holder, attempt in (("first", 1), ("second", 2)):
        note_deferred(workspace, JOB, holder=holder, attempt=attempt, deferred=True)
    assert current_claim(workspace, JOB) == ours
    note_deferred(workspace, JOB, holder="first", attempt=2, deferred=True)
    found = current_claim(workspace, JOB)
    assert found is not None and found.deferred and found.deferred_at is not None and found.deferred_at >= ours.at
    # A second triggerer's trigger says the same.
    note_deferred(workspace, JOB, holder="first", attempt=2, deferred=True)
    assert current_claim(workspace, JOB) == found


def test_decisions_are_kept_to_a_number(workspace: Workspace) -> None:
    for number in range(60):
        record_decision(workspace, JOB, f"decision {number}", "test")
    found = JobDocuments(workspace.storage, JOB).supervision.read()
    assert found is not None and len(found.decisions) == 50 and found.decisions[-1].what == "decision 59"


def test_a_silent_driver_is_looked_at_for_a_while(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("streamwarden.supervision.silence.time.monotonic", lambda: clock[0])
    found, _ = silent(workspace, current_process())
    silence = Silence()
    assert silence.is_doubtful(workspace, found)
    clock[0] += 3.9
    assert silence.is_doubtful(workspace, found)
    clock[0] += 0.2
    assert not silence.is_doubtful(workspace, found)
    beats(workspace, "i1", current_process())
    assert not silence.is_doubtful(workspace, observe(workspace, JOB))
    assert silence.is_doubtful(workspace, found), "from the beginning"


@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("how", ["stop", "start", "stop_in_turn"])
def test_one_look_that_finds_a_driver_silent_kills_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, how: str, speaks: bool
) -> None:
    monkeypatch.setattr(silence, "_SECOND_LOOK", timedelta(seconds=0.2))
    monkeypatch.setattr(driver_control, "launch_driver", lambda *_, **__: "b1")
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process = process_of(child.pid)
    silent(workspace, process)
    # After an outage of the store: what it says next comes a moment later.
    back = threading.Timer(0.3, lambda: beats(workspace, "i1", process) if speaks else None)
    back.start()
    with suppress(StreamwardenError):
        if how == "stop":
            driver_control.stop(workspace, JOB, by="test", timeout=None)
        elif how == "start":
            driver_control.start(workspace, JOB, by="test")
        else:
            driver_control.stop_in_turn(workspace, JOB, by="test", reason="", timeout=2)
    back.join()
    if how != "start":
        assert JobDocuments(workspace.storage, JOB).stop("i1").read() is not None
    if speaks:
        assert child.poll() is None, "it finishes its batch"
        child.kill()
    assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_stuck_driver_is_ended_only_if_who_looks_has_seen_it_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("streamwarden.supervision.stuck.time.monotonic", lambda: clock[0])
    driver_control, wait = seen(Phase.RUNNING), Verdict(Action.WAIT, "")
    assert driver_control.desired is not None
    enough = max(60.0, 3 * driver_control.desired.spec.trigger.interval.total_seconds())
    standstill, stuck = Standstill(), Verdict(Action.RESTART, "stuck")
    # The machine sleeps: the time of day goes on, and this clock does not.
    assert not standstill.is_doubtful(driver_control, wait)
    clock[0] += 2
    assert standstill.is_doubtful(driver_control, stuck)
    clock[0] += enough - 3
    assert standstill.is_doubtful(driver_control, stuck)
    clock[0] += 2
    assert not standstill.is_doubtful(driver_control, stuck)
    # Of another one what was seen before counts for nothing.
    other = replace(driver_control, incarnation="i2")
    assert standstill.is_doubtful(other, stuck)
    # A dead one is no matter of doubt.
    assert not standstill.is_doubtful(seen(Phase.DEAD), stuck)
