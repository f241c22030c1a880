"""An operation that is killed at any of its writes ends, resumed or rolled back, as one that was not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import Operation
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Origin
from streamwarden.model.status import CheckpointRef, Desired, Parallelism
from streamwarden.model.supervision import Restart, Supervision
from streamwarden.operations.rescale import _Rescale, rescale
from streamwarden.operations.rescale_plan import RescalePlan
from streamwarden.operations.restore import restore
from streamwarden.operations.rollout import interrupted_rollout, rollout, settle
from streamwarden.operations.spec_diff import plan
from streamwarden.runtime import operation_lock
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import decide, effective_spec, parallelism_of
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
        for name in ("create", "replace", "write"):
            real = getattr(LocalStorage, name)

            def counted(storage: LocalStorage, key: str, *args: Any, _real: Any = real) -> Any:
                self.done += 1
                # Whoever is dead writes nothing more, whatever its `finally` would. A kill after a write differs from
                # one before the next write by nothing on the disk.
                if self.at is not None and self.done >= self.at:
                    raise Killed
                return _real(storage, key, *args)

            monkeypatch.setattr(LocalStorage, name, counted)

    def kill(self, at: int | None) -> None:
        self.at, self.done = at, 0


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
    parallelism = Parallelism(partitions=4, cores=1, memory="1g")
    documents.parallelism.write(decide(made, JOB, parallelism, by="a rescale"))
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
    desired, reference, parallelism = (
        one.read() for one in (documents.desired, documents.checkpoint, documents.parallelism)
    )
    assert isinstance(desired, Desired) and isinstance(reference, CheckpointRef)
    return {
        "note": desired.spec.options["note"],
        "cores": desired.spec.resources.cores,
        "partitions": reference.partitions or desired.spec.state.partitions,
        "spec's partitions": desired.spec.state.partitions,
        "state": desired.state,
        "made anew": reference.generation != 1,
        "savepoint": reference.savepoint is not None,
        "outputs": [output.table for output in reference.outputs],
        "parallelism": json.loads(parallelism.model_dump_json(exclude={"takeovers", "at", "by"}))
        if parallelism
        else None,
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


def unhealthy(place: Workspace, *_: Any, **__: Any) -> str:
    """Let the started driver begin a batch, and fail."""
    reference = JobDocuments(place.storage, JOB).checkpoint.read()
    assert reference is not None
    last = CheckpointReader(place.storage, reference.path).last_offset() or 0
    if last == (reference.base_batch or 0):
        offsets = place.files.read(f"{reference.path}/offsets/{last}")
        place.files.write(f"{reference.path}/offsets/{last + 1}", offsets)
    raise StreamwardenError("DRIVER_DIED", "for the test")


def restores(place: Workspace) -> Operation:
    return restore(place, JOB, by="test")


def restores_suspended(place: Workspace) -> Operation:
    return restore(place, JOB, suspended=True, by="test")


def rolls_out(place: Workspace) -> Operation:
    left = interrupted_rollout(place, JOB)
    if left is not None and _switched(place, left):
        settle(place, left)
        found = JobDocuments(place.storage, JOB).operation.read()
        assert found is not None
        if found.error is not None:
            raise found.error.to_exception()
        return found
    return rollout(place, plan(place, JOB), by="test")


def _switched(place: Workspace, left: Operation) -> bool:
    desired = JobDocuments(place.storage, JOB).desired.read()
    return left.plan.failure is not None or (desired is not None and desired.operation == left.id)


def rescales_cores(place: Workspace) -> Operation:
    return rescale(place, JOB, cores=2, by="test")


def rescales_partitions(place: Workspace) -> Operation:
    return rescale(place, JOB, partitions=8, mode="offline", by="test")


def paper_rescales(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rescales check, start and copy nothing but documents."""

    def planned(workspace: Workspace, job: str, *, cores: int | None, partitions: int | None, **_: Any) -> RescalePlan:
        spec = effective_spec(workspace, job)
        was = Parallelism(partitions=4, cores=1, memory="1g")
        to = was.model_copy(update={"cores": cores or 1, "partitions": partitions or 4})
        return RescalePlan(job, was, to, parallelism_of(spec))

    def copy(work: _Rescale, *_: Any, **__: Any) -> Any:
        current = work._documents.checkpoint.read()
        assert current is not None
        generation = work._next_generation()
        path, files = f"checkpoints/{JOB}/g{generation:06d}", work._workspace.files
        for info in list(files.walk(current.path)):
            files.copy(info.key, path + info.key[len(current.path) :])
        update = {"generation": generation, "path": path, "base_batch": 0, "highest": generation}
        reference = current.model_copy(update={**update, "operation": work.handle.id, "outputs": []})
        return SimpleNamespace(reference=reference, behind=0, proof=lambda: None, proved_later=False)

    spare = SimpleNamespace(await_ready=lambda _: None)
    monkeypatch.setattr("streamwarden.operations.rescale.plan_rescale", planned)
    monkeypatch.setattr("streamwarden.operations.rescale.standby", lambda *_, **__: nullcontext(spare))
    monkeypatch.setattr(_Rescale, "_copy", copy)
    monkeypatch.setattr(_Rescale, "_await_caught_up", healthy)
    monkeypatch.setattr(_Rescale, "_after_start_again", lambda _: None)


WIDE = {"partitions": 8, "cores": 1, "memory": "1g"}
MORE = {"partitions": 4, "cores": 2, "memory": "1g"}

OPERATIONS: dict[str, tuple[Callable[[Workspace], Operation], dict[str, Any]]] = {
    "restore": (restores, {"note": "new", "made anew": True, "savepoint": True, "outputs": [JOB]}),
    "restore, suspended": (
        restores_suspended,
        {"note": "new", "made anew": True, "savepoint": True, "outputs": [JOB], "state": "suspended"},
    ),
    "rollout": (rolls_out, {"note": "new"}),
    "rescale of cores": (rescales_cores, {"cores": 2, "now": MORE}),
    "rescale of partitions": (
        rescales_partitions,
        {"partitions": 8, "spec's partitions": 8, "made anew": True, "now": WIDE},
    ),
}
"""The call that performs it, or resumes it, and what it changes."""

# More than any of them makes: those beyond its last write kill nothing, and are the control.
WRITES = range(1, 60)


def ends(place: Workspace, perform: Callable[[Workspace], Operation], *, well: bool) -> None:
    try:
        perform(place)
    except StreamwardenError as error:
        assert not well and error.code in ("RESTORE_UNHEALTHY", "ROLLOUT_UNHEALTHY", "RESCALE_UNHEALTHY", "DRIVER_DIED")


@pytest.mark.parametrize("well", [True, False], ids=["healthy", "rolled back"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_each_write_and_resumed(
    place: Workspace, writes: Writes, drivers: list[str], monkeypatch: pytest.MonkeyPatch, name: str, well: bool
) -> None:
    if name == "restore, suspended" and not well:
        pytest.skip("nothing is started, so nothing is unhealthy")
    perform, changes = OPERATIONS[name]
    paper_rescales(monkeypatch)
    monkeypatch.setattr(driver_control, "await_health", healthy if well else unhealthy)
    before, kept = in_force(place), place.root.parent / "kept"
    shutil.copytree(place.root, kept)
    for at in WRITES:
        shutil.rmtree(place.root)
        shutil.copytree(kept, place.root)
        with suppress(Killed):
            writes.kill(at)
            ends(place, perform, well=well)
        killed = writes.done >= at
        writes.kill(None)
        gone(place)
        found = JobDocuments(place.storage, JOB).operation.read()
        if found is None or found.state == "running":
            ends(place, perform, well=well)
        now, wanted = in_force(place), {**before, **changes} if well else before
        decided = (
            {**before["parallelism"], "now": changes["now"]} if well and "now" in changes else before["parallelism"]
        )
        expected = {**wanted, "parallelism": decided, "outputs": now["outputs"] if not well else wanted["outputs"]}
        expected.pop("now", None)
        if name == "rollout" and not well:
            # Its batch is undone: the old spec starts from the savepoint.
            expected |= {"made anew": True, "savepoint": True}
        assert now == expected, (at, found)
        ended = JobDocuments(place.storage, JOB).operation.read()
        assert ended is not None and ended.state == ("done" if well else "rolled back"), (at, ended)
        memory = JobDocuments(place.storage, JOB).supervision.read()
        assert not well or (memory is not None and memory.restarts == []), at
        if not killed:
            break
    else:
        pytest.fail("it makes more writes than are tried")
    assert at > 15
