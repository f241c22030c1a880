"""A restore that is killed at any of its writes ends, resumed or rolled back, as one that was not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Origin
from streamwarden.model.status import CheckpointRef, Desired, Restart, Supervision, Width, utc_now
from streamwarden.operations.restore import restore
from streamwarden.runtime import operation_lock
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import decide, effective_spec
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control

pytestmark = pytest.mark.unit

JOB = "lamp"


class Killed(BaseException):
    """As SIGKILL would: nothing is tidied up."""


class Writes:
    """Counts the writes to storage, and kills the process at one of them, before it or after it was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self.done = 0
        self.after = False
        for name in ("create", "replace", "write"):
            real = getattr(LocalStorage, name)

            def counted(storage: LocalStorage, key: str, *args: Any, _real: Any = real) -> Any:
                self.done += 1
                # Whoever is dead writes nothing more, whatever its `finally` would.
                if self.at is not None and (self.done > self.at or (self.done == self.at and not self.after)):
                    raise Killed
                answer = _real(storage, key, *args)
                if self.done == self.at:
                    raise Killed
                return answer

            monkeypatch.setattr(LocalStorage, name, counted)

    def kill(self, at: int | None, *, after: bool = False) -> None:
        self.at, self.after, self.done = at, after, 0


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    # One at a time, so that the number of a write says which it is.
    monkeypatch.setattr(operation_lock.OperationHandle, "check", lambda _: None)
    return Writes(monkeypatch)


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let drivers be started and ended on paper only; return who was, in order."""
    said: list[str] = []
    monkeypatch.setattr(driver_control, "start", lambda *_, **__: said.append("start") or "i2")
    monkeypatch.setattr(driver_control, "end_driver", lambda *_, **__: said.append("end"))
    return said


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    for name in ("jobs", "profiles"):
        (tmp_path / "config" / name).mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    edit(tmp_path, note="old")
    made = open_workspace("test", config=tmp_path / "config")
    documents, now = JobDocuments(made.storage, JOB), utc_now()
    path = f"checkpoints/{JOB}/g000001"
    documents.checkpoint.write(CheckpointRef(job=JOB, generation=1, path=path, since=now, reason="first start"))
    made.files.write(f"{path}/metadata", b'{"id":"x"}')
    offset = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}'
    made.files.write(f"{path}/offsets/0", offset)
    made.files.write(f"{path}/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    width = Width(partitions=4, cores=1, memory="1g")
    documents.parallelism.write(decide(made, JOB, width, by="a rescale"))
    spec = effective_spec(made, JOB)
    digest = spec.digest()
    documents.desired.write(
        Desired(job=JOB, state="running", spec=spec, digest=digest, profile="test", updated_at=now, updated_by="a")
    )
    take(made, JOB, origin=Origin.MANUAL, by="test")
    verify(made, catalog.savepoints(made, JOB), by="test")
    edit(tmp_path, note="new")
    # Of a budget that is spent.
    restarts = [Restart(at=now, after=f"i{number}", reason="it died") for number in range(5)]
    documents.supervision.write(Supervision(restarts=restarts))
    return made


def edit(folder: Path, *, note: str) -> None:
    spec = {
        "name": JOB,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": JOB, "mode": "append"}],
        "options": {"note": note},
    }
    (folder / "config" / "jobs" / f"{JOB}.yaml").write_text(yaml.safe_dump(spec))


def in_force(place: Workspace) -> dict[str, Any]:
    """Return what runs from now on; without what differs from try to try."""
    documents = JobDocuments(place.storage, JOB)
    desired, reference, width = (one.read() for one in (documents.desired, documents.checkpoint, documents.parallelism))
    assert isinstance(desired, Desired) and isinstance(reference, CheckpointRef)
    return {
        "note": desired.spec.options["note"],
        "partitions": desired.spec.state.partitions,
        "state": desired.state,
        "restored": reference.savepoint is not None,
        "outputs": [output.table for output in reference.outputs],
        "width": json.loads(width.model_dump_json(exclude={"takeovers", "at", "by"})) if width else None,
    }


def gone(place: Workspace) -> None:
    """Let the process that performed an operation be gone."""
    document = JobDocuments(place.storage, JOB).operation
    found = document.read()
    if found is not None and found.state == "running" and found.process is not None:
        dead = found.process.model_copy(update={"pid": 2**22 + 1, "started": 1.0})
        document.write(found.model_copy(update={"process": dead}))


def healthy(*_: Any, **__: Any) -> str:
    return "healthy"


def unhealthy(*_: Any, **__: Any) -> str:
    raise StreamwardenError("DRIVER_DIED", "for the test")


def count(place: Workspace, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(driver_control, "await_health", healthy)
    writes.kill(None)
    restore(place, JOB, by="test")
    return writes.done


# More than a restore makes: those beyond its last write kill nothing, and are the control.
WRITES = range(1, 45)


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("at", WRITES)
@pytest.mark.parametrize("end", ["healthy", "rolled back", "suspended"])
def test_killed_at_a_write_and_gone_on_with(
    place: Workspace,
    writes: Writes,
    drivers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    after: bool,
    end: str,
) -> None:
    before, goes_well, suspended = in_force(place), end != "rolled back", end == "suspended"
    monkeypatch.setattr(driver_control, "await_health", healthy if goes_well else unhealthy)
    try:
        writes.kill(at, after=after)
        restore(place, JOB, suspended=suspended, by="test")
    except Killed:
        pass
    except StreamwardenError as error:
        assert error.code == "RESTORE_UNHEALTHY"
    writes.kill(None)
    gone(place)
    found = JobDocuments(place.storage, JOB).operation.read()
    if found is not None and found.state == "running":
        try:
            restore(place, JOB, suspended=suspended, by="test")
        except StreamwardenError as error:
            assert error.code == "RESTORE_UNHEALTHY" and not goes_well
    elif found is None or found.state == "done":
        # Killed before there was a record of it, or at the very end.
        goes_well = goes_well and found is not None
    now = in_force(place)
    if goes_well:
        state = "suspended" if suspended else "running"
        assert now == {**before, "note": "new", "restored": True, "outputs": [JOB], "state": state}
        assert drivers == [] or not suspended
        memory = JobDocuments(place.storage, JOB).supervision.read()
        assert memory is not None and memory.restarts == []
    else:
        assert now == {**before, "outputs": now["outputs"]}


def test_there_are_as_many_writes_as_are_tried(
    place: Workspace, writes: Writes, drivers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 20 < count(place, writes, monkeypatch) < WRITES[-1]
