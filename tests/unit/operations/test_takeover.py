"""A performer of an operation that was paused for so long that another one took over: it writes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import InForce, Operation, OperationState, Step
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef, Desired, Parallelism, ParallelismOverride
from streamwarden.operations.rescale import _Rescale
from streamwarden.operations.restore import _Restore
from streamwarden.operations.rollout import _Rollout
from streamwarden.operations.workflow import JobOperation
from streamwarden.runtime.operation_lock import OperationHandle, begin
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints.fresh_checkpoint import fresh_checkpoint
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import decide, effective_spec
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.observe import Observation, observe
from tests.unit.supervision.test_supervision import GONE, JOB, desired, launched

pytestmark = pytest.mark.unit

NOW = utc_now()
PARAMS: dict[str, Any] = {"reason": ""}
Switch = Callable[[JobOperation], object]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    for name in ("jobs", "profiles"):
        (tmp_path / "config" / name).mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    spec = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
    }
    (tmp_path / "config" / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))
    found = open_workspace("test", config=tmp_path / "config")
    documents = JobDocuments(found.storage, JOB)
    documents.desired.write(desired())
    documents.checkpoint.write(reference(1))
    documents.parallelism.write(decide(found, JOB, Parallelism(partitions=2, cores=1, memory="1g"), by="before"))
    return found


def reference(generation: int, **values: Any) -> CheckpointRef:
    path = f"checkpoints/{JOB}/g{generation:06d}"
    return CheckpointRef(job=JOB, generation=generation, path=path, since=NOW, reason="for the test", **values)


def written(workspace: Workspace) -> list[Any]:
    documents = JobDocuments(workspace.storage, JOB)
    return [one.read() for one in (documents.desired, documents.checkpoint, documents.parallelism)]


@contextmanager
def taken_over(workspace: Workspace, handle: OperationHandle) -> Iterator[OperationHandle]:
    """Let another process take an operation over, as one does that has heard nothing of it for a minute."""
    document = JobDocuments(workspace.storage, JOB).operation
    document.update(lambda now: _gone(now))
    handle.operation = handle.operation.model_copy(update={"process": GONE})
    with begin(workspace, JOB, handle.operation.kind, by=handle.operation.by, params=PARAMS) as other:
        assert other.id == handle.id and other.resumed
        yield other


def _gone(now: Operation | None) -> Operation:
    assert now is not None
    return now.model_copy(update={"process": GONE})


def restores(work: JobOperation) -> object:
    assert isinstance(work, _Restore)
    spec, checkpoint = effective_spec(work._workspace, JOB), reference(2, operation=work.handle.id)
    return work._switch_to(InForce(checkpoint=checkpoint, desired=work._wanted(spec)))


def rolls_out(work: JobOperation) -> object:
    assert isinstance(work, _Rollout)
    return work._switch(effective_spec(work._workspace, JOB))


def rescales(work: JobOperation) -> object:
    assert isinstance(work, _Rescale)
    to = Parallelism(partitions=2, cores=3, memory="1g")
    parallelism = ParallelismOverride(now=to, over=to, by="me")
    spec, checkpoint = effective_spec(work._workspace, JOB), reference(2, operation=work.handle.id)
    return work._switch_to(InForce(checkpoint=checkpoint, desired=work._wanted(spec), parallelism=parallelism))


def goes_back(work: JobOperation) -> object:
    error = StreamwardenError("DRIVER_DIED", "for the test")
    return work._write_back(None, error=error, before=InForce(desired=desired()))


def takes_a_generation(work: JobOperation) -> object:
    return work._next_generation()


WAYS = [
    pytest.param("restore", _Restore, restores, id="restore"),
    pytest.param("rollout", _Rollout, rolls_out, id="rollout"),
    pytest.param("rescale", _Rescale, rescales, id="rescale"),
    pytest.param("rescale", _Rescale, goes_back, id="way back"),
    pytest.param("restore", _Restore, takes_a_generation, id="generation"),
]


@pytest.mark.parametrize(("kind", "kind_of", "switch"), WAYS)
@pytest.mark.parametrize("moment", ["before it asks", "after it asked"])
def test_it_wakes_and_its_write_is_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, kind: Any, kind_of: Any, switch: Switch, moment: str
) -> None:
    """Whether it was paused before it asked if the operation is its own, or between that and the write."""
    check, other, left = OperationHandle.check, ExitStack(), []

    def paused(handle: OperationHandle) -> None:
        if moment == "after it asked":
            check(handle)
        monkeypatch.setattr(OperationHandle, "check", check)
        other.enter_context(taken_over(workspace, handle))
        # The other one has decided nothing yet: that it was there is enough.
        left.extend(written(workspace))
        if moment == "before it asks":
            check(handle)

    with (
        pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"),
        other,
        begin(workspace, JOB, kind, by="me", params=PARAMS) as handle,
    ):
        work = kind_of(workspace, handle, 1, 1, None)
        monkeypatch.setattr(OperationHandle, "check", paused)
        try:
            switch(work)
        finally:
            after = written(workspace)
            # Leaving says the same, and would be taken for the refusal.
            handle._ended.set()
    assert left and after == left


@pytest.mark.parametrize(("kind", "kind_of", "switch"), WAYS)
def test_who_performs_it_writes(workspace: Workspace, kind: Any, kind_of: Any, switch: Switch) -> None:
    before = written(workspace)
    with begin(workspace, JOB, kind, by="me", params=PARAMS) as first, taken_over(workspace, first) as handle:
        first._ended.set()
        switch(kind_of(workspace, handle, 1, 1, None))
        handle.end(OperationState.DONE)
    assert written(workspace) != before


def test_a_supervisor_starts_nothing_in_the_midst_of_an_operation(workspace: Workspace) -> None:
    launched(workspace, "a1", process=GONE, code="BATCH_FAILED")
    found = observe(workspace, JOB)
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle:
        assert restart(workspace, found, by="a supervisor that looked before") is None
        handle.end(OperationState.DONE)
    assert JobDocuments(workspace.storage, JOB).incarnations() == ["a1"]


@pytest.mark.parametrize(("kind", "kind_of", "switch"), WAYS[:3])
def test_a_job_that_was_started_since_its_stop_is_not_switched(
    workspace: Workspace, kind: Any, kind_of: Any, switch: Switch
) -> None:
    before = written(workspace)
    with begin(workspace, JOB, kind, by="me", params=PARAMS) as handle:
        launched(workspace, "b1", process=current_process())
        with pytest.raises(StreamwardenError, match="driver b1 was started") as raised:
            switch(kind_of(workspace, handle, 1, 1, None))
        handle.end(OperationState.FAILED)
    assert raised.value.code == "OPERATION_FAILED" and raised.value.retryable
    assert written(workspace) == before


def test_one_that_wakes_does_not_stop_what_another_has_started(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as handle, ExitStack() as other:

        def look(*_: object) -> Observation:
            if len(looks) == 2:
                other.enter_context(taken_over(workspace, handle))
                launched(workspace, "b1", process=current_process())
            looks.append("")
            return observe(workspace, JOB)

        launched(workspace, "a1", process=current_process())
        monkeypatch.setattr(driver_control, "observe", look)
        with pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"):
            _Restore(workspace, handle, 5, 1, None)._stop_driver(Step(name="stop", started_at=NOW))
        handle._ended.set()
    documents = JobDocuments(workspace.storage, JOB)
    assert documents.stop("a1").read() is not None and documents.stop("b1").read() is None


def test_what_was_written_meanwhile_by_others_is_written_over(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an entry that the driver strikes: that does not take the operation over."""
    documents = JobDocuments(workspace.storage, JOB)
    asked: list[str] = []

    def another_writes(handle: OperationHandle) -> None:
        asked.append(handle.id)
        # Its first write is the checkpoint's.
        if len(asked) == 1:
            documents.checkpoint.write(reference(1, fenced=True))

    with begin(workspace, JOB, "rescale", by="me", params=PARAMS) as handle:
        monkeypatch.setattr(OperationHandle, "check", another_writes)
        rescales(_Rescale(workspace, handle, 1, 1, None))
        handle.end(OperationState.DONE)
    # Once more for the one that met the other's.
    assert len(asked) == 4
    found = documents.checkpoint.read()
    assert found is not None and found.generation == 2


def test_two_performers_never_work_on_one_folder(workspace: Workspace) -> None:
    """What the first has left is removed by whoever comes next, and the first, woken, removes nothing of the second."""
    with begin(workspace, JOB, "restore", by="me", params=PARAMS) as first:
        early = _Restore(workspace, first, 1, 1, None)._next_generation()
        with taken_over(workspace, first) as second:
            first._ended.set()
            late = _Restore(workspace, second, 1, 1, None)._next_generation()
            second.end(OperationState.DONE)
    assert early == 2 and late == 3


def test_a_clones_first_folder_is_asked_about_before_it_is_emptied(workspace: Workspace) -> None:
    """It has no document yet, in which generations could be counted."""
    kept = f"checkpoints/{JOB}/g000001/offsets/0"
    workspace.files.write(kept, b"")

    def refused() -> None:
        raise StreamwardenError("OPERATION_INTERRUPTED", "for the test")

    with pytest.raises(StreamwardenError, match="OPERATION_INTERRUPTED"):
        fresh_checkpoint(workspace, JOB, None, 1, outputs=[], operation="o", reason="for the test", check=refused)
    assert workspace.files.read(kept) == b""


def test_the_wanted_state_keeps_count_of_takeovers(workspace: Workspace) -> None:
    """A document of before is put back with what is counted since, or an old write would find its version again."""
    with begin(workspace, JOB, "rescale", by="me", params=PARAMS) as first, taken_over(workspace, first) as handle:
        first._ended.set()
        goes_back(_Rescale(workspace, handle, 1, 1, None))
        handle.end(OperationState.DONE)
    found: Desired | None = JobDocuments(workspace.storage, JOB).desired.read()
    assert found is not None and found.takeovers == 1
