from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation, OperationState
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import utc_now
from streamwarden.model.status import Exit, Launch
from streamwarden.model.supervision import Supervision
from streamwarden.runtime import operation_lock as module
from streamwarden.runtime.operation_lock import OperationHandle, active_operation, begin, operations_of, refuse_if_busy
from streamwarden.runtime.processes import current_process, process_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import observe
from tests.unit.supervision.test_supervision import GONE, JOB, desired, error

pytestmark = pytest.mark.unit

PARAMS = {"savepoint": "latest", "of": None}
ELSEWHERE = ProcessRef(host="another-machine", boot="b", pid=1, started=0)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def document(workspace: Workspace) -> Operation:
    found = JobDocuments(workspace.storage, JOB).operation.read()
    assert found is not None
    return found


def change(workspace: Workspace, **values: Any) -> None:
    JobDocuments(workspace.storage, JOB).operation.write(document(workspace).model_copy(update=values))


def past(workspace: Workspace) -> dict[str, str]:
    documents = JobDocuments(workspace.storage, JOB)
    read = (documents.past_operation(one).read() for one in documents.past_operations())
    return {one.id: one.state for one in read if one is not None}


def test_a_second_one_is_refused_and_told_of_the_first(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="first", params=PARAMS) as handle, handle.step("stop"):
        with pytest.raises(StreamwardenError) as raised, begin(workspace, JOB, "restore", by="second", params=PARAMS):
            pass
        assert raised.value.code == "OPERATION_RUNNING"
        for word in (JOB, "restore", handle.id, "first", "at stop"):
            assert word in raised.value.what
        with pytest.raises(StreamwardenError, match=handle.id):
            refuse_if_busy(workspace, JOB)
        refuse_if_busy(workspace, JOB, but=handle.id)
        refuse_if_busy(workspace, "another_job")
        handle.end(OperationState.DONE)
    refuse_if_busy(workspace, JOB)
    with begin(workspace, JOB, "restore", by="second", params=PARAMS) as handle:
        assert not handle.resumed


def test_even_the_same_caller_cannot_begin_it_twice_at_once(workspace: Workspace) -> None:
    with (
        begin(workspace, JOB, "restore", by="me", params=PARAMS),
        pytest.raises(StreamwardenError, match="OPERATION_RUNNING"),
        begin(workspace, JOB, "restore", by="me", params=PARAMS),
    ):
        pass


def test_of_many_threads_that_begin_at_once_one_does(workspace: Workspace) -> None:
    entered: list[str] = []
    refused: list[str] = []
    all_tried = threading.Barrier(9)

    def enter(name: str) -> None:
        all_tried.wait(20)
        try:
            with begin(workspace, JOB, "restore", by=name, params=PARAMS) as handle:
                entered.append(handle.id)
                all_tried.wait(20)
        except StreamwardenError as raised:
            refused.append(raised.code)
            all_tried.wait(20)

    threads = [threading.Thread(target=enter, args=(f"thread {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    all_tried.wait(20)
    all_tried.wait(20)
    for thread in threads:
        thread.join(20)
    assert len(entered) == 1 and refused == ["OPERATION_RUNNING"] * 7


def test_steps_are_kept_with_their_times(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle:
        with handle.step("one") as step:
            assert [one.ended_at for one in document(workspace).steps] == [None]
            step.detail = "went well"
        with pytest.raises(ZeroDivisionError), handle.step("two"):
            _ = 1 / 0
        handle.plan(base=1)
        handle.plan(undone="it")
        ended = handle.end(OperationState.FAILED, StreamwardenError("OPERATION_FAILED", "for the test"))
    kept = document(workspace)
    assert kept == ended and kept.state == "failed" and kept.ended_at is not None
    assert kept.error is not None and kept.error.code == "OPERATION_FAILED"
    assert (kept.plan.base, kept.plan.undone) == (1, "it")
    assert [(step.name, step.detail) for step in kept.steps] == [("one", "went well"), ("two", "")]
    times = [time for step in kept.steps for time in (step.started_at, step.ended_at)]
    assert times == sorted(time for time in times if time is not None)
    assert past(workspace) == {kept.id: "failed"}


def test_one_that_ended_is_not_gone_on_with(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        first.end(OperationState.DONE)
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as second:
        assert second.id != first.id and not second.resumed and second.operation.steps == []


@pytest.mark.parametrize("failure", [OSError("no space left"), StreamwardenError("S3_UNREACHABLE", "for the test")])
def test_one_that_could_not_be_filed_has_ended_and_is_filed_by_the_next(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    documents = JobDocuments(workspace.storage, JOB)
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        real = type(first._past).write

        def write(document: Any, value: Any) -> str:
            if "/operations/" in document.key:
                raise failure
            return real(document, value)

        with monkeypatch.context() as changed:
            changed.setattr(type(first._past), "write", write)
            assert first.end(OperationState.DONE).state == "done"
    assert past(workspace) == {} and [one.id for one in operations_of(documents)] == [first.id]
    with begin(workspace, JOB, "restore", by="another", params=PARAMS) as second:
        assert past(workspace) == {first.id: "done"}
        assert [one.id for one in operations_of(documents)] == [second.id, first.id]
        second.end(OperationState.FAILED)
    assert [(one.id, one.state) for one in operations_of(documents)] == [(second.id, "failed"), (first.id, "done")]


def test_one_that_was_left_without_an_end_is_let_go_of(workspace: Workspace) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        begin(workspace, JOB, "restore", by="me", params=PARAMS) as first,
        first.step("stop"),
    ):
        raise KeyboardInterrupt
    assert (document(workspace).state, document(workspace).process) == ("running", None)
    assert active_operation(workspace, JOB) is None
    refuse_if_busy(workspace, JOB)
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as again:
        assert (again.id, again.resumed) == (first.id, True)
        assert active_operation(workspace, JOB) is not None
        with again.step("start"):
            pass
    assert [step.name for step in document(workspace).steps] == ["stop", "start"]


@pytest.mark.parametrize(
    "other",
    [{"by": "another"}, {"params": {**PARAMS, "savepoint": "x"}}, {"params": {**PARAMS, "more": 1}}],
    ids=["caller", "parameter", "another parameter"],
)
def test_another_request_does_not_go_on_with_it_but_puts_it_away(workspace: Workspace, other: dict[str, Any]) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        pass
    with begin(workspace, JOB, "restore", **{"by": "me", "params": PARAMS, **other}) as second:
        assert second.id != first.id and not second.resumed
        assert past(workspace) == {first.id: "interrupted"}
        second.end(OperationState.DONE)
    assert past(workspace) == {first.id: "interrupted", second.id: "done"}


def test_who_was_taken_over_from_can_write_no_more(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        # As it looks from another machine when this one is cut off for a minute.
        change(workspace, process=GONE)
        first.operation = first.operation.model_copy(update={"process": GONE})
        with begin(workspace, JOB, "restore", by="me", params=PARAMS) as second:
            assert second.resumed
            for write in (
                lambda: first.plan(base=1),
                lambda: first.end(OperationState.DONE),
                first.let_go,
                lambda: _step(first),
            ):
                first._ended.clear()
                with pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"):
                    write()
            second.plan(base=2)
            assert (document(workspace).state, document(workspace).plan.base) == ("running", 2)
            second.end(OperationState.DONE)
        first._ended.set()


def test_who_was_replaced_can_write_no_more(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        change(workspace, process=GONE)
        with begin(workspace, JOB, "restore", by="another", params=PARAMS) as second:
            with pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"):
                _step(first)
            second.end(OperationState.DONE)
        first._ended.set()
    assert document(workspace).id == second.id


def test_leaving_one_that_was_taken_over_tells_of_that_and_of_nothing_else(workspace: Workspace) -> None:
    with (
        pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"),
        begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle,
    ):
        change(workspace, process=GONE)
        _step(handle)


def _step(handle: OperationHandle) -> None:
    with handle.step("late"):
        pass


def test_of_another_machines_operation_the_sign_of_life_counts(workspace: Workspace) -> None:
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle:
        handle._ended.set()
        change(workspace, process=ELSEWHERE, seen_at=utc_now() - timedelta(seconds=50))
        assert active_operation(workspace, JOB) is not None
        change(workspace, process=ELSEWHERE, seen_at=utc_now() - timedelta(seconds=70))
        assert active_operation(workspace, JOB) is None


def test_it_gives_signs_of_life_until_its_end(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPEAK_S", 0.01)
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle:
        begun = document(workspace).seen_at
        _until(lambda: document(workspace).seen_at > begun)
        handle.end(OperationState.DONE)
    ended = document(workspace).seen_at
    time.sleep(0.1)
    assert document(workspace).seen_at == ended


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- with a process that is killed -------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from streamwarden.runtime.operation_lock import begin
from streamwarden.store.workspace import open_workspace

workspace = open_workspace("test", config=Path(sys.argv[1]))
with begin(workspace, sys.argv[2], "restore", by="me", params={"savepoint": "latest", "of": None}) as handle:
    with handle.step("stop"):
        print(handle.id, flush=True)
        time.sleep(600)
"""


@pytest.fixture
def holder(workspace: Workspace) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", HOLD, str(workspace.config), JOB]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_processs_operation_is_respected_while_it_lives_and_gone_on_with_after(
    workspace: Workspace, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, name = holder
    with (
        pytest.raises(StreamwardenError, match=f"OPERATION_RUNNING.*{name} by me"),
        begin(workspace, JOB, "restore", by="me", params=PARAMS),
    ):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert document(workspace).state == "running", "it had no time to say anything"
    assert active_operation(workspace, JOB) is None
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle:
        assert (handle.id, handle.resumed) == (name, True)
        assert document(workspace).process == current_process()
        handle.end(OperationState.DONE)
    assert past(workspace) == {name: "done"}


def test_a_supervisor_waits_for_an_operation_and_restarts_when_it_died(
    workspace: Workspace, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, name = holder
    documents = JobDocuments(workspace.storage, JOB)
    documents.desired.write(desired())
    documents.launch("a1").write(
        Launch(incarnation="a1", at=utc_now(), by="test", reason="", digest="", process=process_of(process.pid))
    )
    documents.exit("a1").write(Exit(incarnation="a1", at=utc_now(), outcome="stopped", batch=3))
    verdict = decide(observe(workspace, JOB), Supervision())
    assert verdict.action is Action.WAIT and name in verdict.why
    documents.exit("a1").write(
        Exit(incarnation="a1", at=utc_now(), outcome="failed", error=error("SINK_SCHEMA_MISMATCH"), batch=3)
    )
    assert decide(observe(workspace, JOB), Supervision()).action is Action.WAIT
    documents.exit("a1").write(Exit(incarnation="a1", at=utc_now(), outcome="stopped", batch=3))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert decide(observe(workspace, JOB), Supervision()).action is Action.RESTART
