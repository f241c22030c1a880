"""Each kind of control document emptied, cut or another's: the other jobs are shown, and `repair` mends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import application_id
from streamwarden.model.operation import Cancel, InForce, Operation, OperationPlan, OperationState
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.progress import Progress, Totals
from streamwarden.model.record import utc_now
from streamwarden.model.status import (
    CheckpointRef,
    DriverState,
    Exit,
    Heartbeat,
    Launch,
    Lease,
    OutputStart,
    StopRequest,
)
from streamwarden.model.supervision import HealthRecord, Supervision
from streamwarden.operations.repair import repair
from streamwarden.operations.status import metrics_targets
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import decide, effective_spec, parallelism_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.claim import Claim, claim, current_claim
from streamwarden.supervision.driver_control import deployed_jobs
from streamwarden.supervision.observe import observe
from tests.unit.cli.test_savepoints import JOB, run, taken, workspace
from tests.unit.formats.test_damaged_checkpoint import Damage, cut, empty, foreign

__all__ = ["workspace"]

pytestmark = pytest.mark.unit

GONE = ProcessRef(host=current_process().host, boot=current_process().boot, pid=2**22 + 1, started=1.0)
DAMAGES: list[Damage] = [empty, cut, foreign]


@pytest.fixture
def job(workspace: Workspace) -> JobDocuments:
    """A stopped job with a document of each kind: two incarnations, a savepoint, a restore that is done."""
    made, now = JobDocuments(workspace.storage, JOB), utc_now()
    spec = workspace.job(JOB)
    for number, name in enumerate(("20260101T000000000z0001", "20260101T000001000z0002")):
        at = now + timedelta(seconds=number)
        made.launch(name).write(
            Launch(incarnation=name, at=at, by="test", reason="", digest=spec.digest(), spec=spec, process=GONE)
        )
        made.heartbeat(name).write(
            Heartbeat(
                incarnation=name,
                at=at,
                started_at=at,
                state=DriverState.RUNNING,
                process=GONE,
                generation=1,
                batch=2,
            )
        )
        made.progress(name).write(Progress(incarnation=name, at=at))
        made.exit(name).write(Exit(incarnation=name, at=at, outcome="stopped", batch=2))
        LeaseHolder(made, name, GONE, timedelta(seconds=1)).acquire()
    made.supervision.write(Supervision())
    made.health.write(HealthRecord())
    made.totals(1).write(Totals(generation=1, rows_in=7))
    made.cancel.write(Cancel(operation="o", by="test", at=now))
    made.stop(name).write(StopRequest(at=now, by="test"))
    claim(workspace, JOB, Claim(holder="a run", attempt=1, at=now))
    done = Operation(
        id="o1", kind="restore", job=JOB, by="test", params={}, state="done", started_at=now, seen_at=now, process=None
    )
    made.operation.write(done)
    made.past_operation("o0").write(done.model_copy(update={"id": "o0"}))
    taken("--note", "kept")
    return made


DECIDES = ["desired.json", "checkpoint.json", "lease.json", "operation.json"]
DERIVED = [
    "supervision.json",
    "supervisor.json",
    "health.json",
    "cancel.json",
    "totals/g000001.json",
    "operations/o0.json",
    "incarnations/20260101T000001000z0002/launch.json",
    "incarnations/20260101T000001000z0002/heartbeat.json",
    "incarnations/20260101T000001000z0002/progress.json",
    "incarnations/20260101T000001000z0002/exit.json",
    "incarnations/20260101T000001000z0002/stop.json",
]


def _path(job: JobDocuments, workspace: Workspace, name: str) -> Path:
    return workspace.root / job.base / name


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DECIDES)
def test_what_decides_is_restored_and_hides_no_other_job(
    workspace: Workspace, job: JobDocuments, name: str, damage: Damage
) -> None:
    damage(_path(job, workspace, name))
    found = {one["job"]: one for one in json.loads(run("status", "--json", code=1))}
    assert len(found) > 1, "the others are shown"
    assert found[JOB]["error"]["code"] == "DOCUMENT_INVALID" and f"repair {JOB}" in found[JOB]["error"]["remedy"]
    assert found[JOB]["phase"] == "unknown"
    text = run("status", code=1)
    assert "zone_windows" in text and "[DOCUMENT_INVALID]" in text and f"streamwarden repair {JOB}" in text
    assert JOB in deployed_jobs(workspace) and metrics_targets(workspace) == {}
    before = _path(job, workspace, name).read_bytes()
    assert f"control/{JOB}/{name}: " in run("repair", JOB, code=1)
    assert _path(job, workspace, name).read_bytes() == before, "it only says what it would do"
    (mended,) = json.loads(run("repair", JOB, "--yes", "--json"))
    assert mended["document"] == f"control/{JOB}/{name}" and mended["done"]
    assert json.loads(run("status", JOB, "--json"))["phase"] == "stopped"
    assert run("repair", JOB) == f"{JOB}: no document is damaged\n"
    desired = job.desired.read()
    assert desired is not None and desired.spec == workspace.job(JOB) and desired.state == "suspended"
    reference = job.checkpoint.read()
    assert reference is not None and (reference.generation, reference.path) == (1, f"checkpoints/{JOB}/g000001")
    lease = job.lease.read()
    assert lease is not None and lease.epoch >= 2, "the next holder's is higher than any that was"


def test_a_checkpoint_document_that_is_missing_is_restored(workspace: Workspace, job: JobDocuments) -> None:
    before = job.checkpoint.read()
    _path(job, workspace, "checkpoint.json").unlink()
    (mended,) = repair(workspace, JOB, by="test")
    assert (mended.document, mended.done) == (f"control/{JOB}/checkpoint.json", True)
    now = job.checkpoint.read()
    assert before is not None and now is not None
    assert (now.generation, now.path) == (before.generation, before.path) and now.highest > before.highest
    assert repair(workspace, JOB, by="test") == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_stands_in_nobodys_way(
    workspace: Workspace, job: JobDocuments, name: str, damage: Damage
) -> None:
    damage(_path(job, workspace, name))
    run("status", JOB, code=1 if "exit" in name else 0)
    run("operations", JOB)
    # Whoever writes it next writes over it.
    driver_control.forgive(workspace, JOB, why="for the test")
    claim(workspace, JOB, Claim(holder="another", attempt=1, at=utc_now()))
    job.totals(1).update(lambda was: was or Totals(generation=1))
    found = repair(workspace, JOB, by="test")
    # Those are written over by now; and of the record of what was told any JSON object is one, which tells nothing.
    if name not in ("supervision.json", "supervisor.json", "totals/g000001.json", "health.json"):
        assert [(one.document, one.done) for one in found] == [(f"control/{JOB}/{name}", True)]
    assert repair(workspace, JOB, by="test") == []
    assert observe(workspace, JOB).incarnation == "20260101T000001000z0002", "the newest launch is the newest still"
    holder = current_claim(workspace, JOB)
    assert holder is not None and holder.holder == "another"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_savepoint_whose_record_is_damaged_is_kept_and_restored_from(
    workspace: Workspace, job: JobDocuments, damage: Damage
) -> None:
    (one,) = catalog.savepoints(workspace, JOB)
    damage(_path(job, workspace, f"savepoints/{one.manifest.id}.json"))
    (seen,) = catalog.savepoints(workspace, JOB)
    assert (seen.verdict, seen.record.label) == ("unverified", "record lost"), "no retention removes it"
    assert "made anew from its manifest" in run("repair", JOB, code=1).replace("\n", " ")
    repair(workspace, JOB, by="test")
    (seen,) = catalog.savepoints(workspace, JOB)
    assert (seen.verdict, seen.record.label) == ("unverified", "record lost"), "nor afterwards"
    damage(_path(job, workspace, f"savepoints/{one.manifest.id}.json"))
    run("savepoints", "verify", JOB, "--no-state")
    (seen,) = catalog.savepoints(workspace, JOB)
    assert (seen.verdict, seen.record.label) == ("verified", "record lost")
    assert repair(workspace, JOB, by="test") == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_savepoint_whose_manifest_is_damaged_hides_no_other_and_is_removed(
    workspace: Workspace, job: JobDocuments, damage: Damage
) -> None:
    second = taken()["id"]
    damage(workspace.root / "savepoints" / JOB / second / "manifest.json")
    (other,) = catalog.savepoints(workspace, JOB)
    assert catalog.find(workspace, JOB, catalog.LATEST).manifest.id == other.manifest.id
    assert "[SAVEPOINT_DAMAGED]" in run("savepoints", "show", JOB, second, code=2)
    assert "removed with its savepoint" in run("repair", JOB, "--yes").replace("\n", " ")
    assert not list(workspace.files.walk(f"savepoints/{JOB}/{second}"))
    assert run("repair", JOB) == f"{JOB}: no document is damaged\n"


def test_what_a_rescale_decided_is_restored_by_what_is_deployed(workspace: Workspace, job: JobDocuments) -> None:
    written = parallelism_of(workspace.job(JOB))
    wide = written.model_copy(update={"cores": written.cores + 1})
    job.parallelism.write(decide(workspace, JOB, wide, by="test"))
    spec = effective_spec(workspace, JOB)
    job.desired.update(lambda was: was.model_copy(update={"spec": spec}))  # type: ignore[union-attr]
    empty(_path(job, workspace, "parallelism.json"))
    assert "DOCUMENT_INVALID" in run("diff", JOB, code=2)
    repair(workspace, JOB, by="test")
    assert effective_spec(workspace, JOB) == spec


def test_the_epoch_is_higher_than_any_that_a_table_names(workspace: Workspace, job: JobDocuments) -> None:
    author = json.dumps({"incarnation": "i", "epoch": 41})
    write_deltalake(
        workspace.table("trips"),
        pa.table({"x": [1]}),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": author}),
    )
    empty(_path(job, workspace, "lease.json"))
    repair(workspace, JOB, by="test")
    assert LeaseHolder(job, "next", current_process(), timedelta(seconds=1)).acquire().epoch > 42


def test_no_generation_comes_again(workspace: Workspace, job: JobDocuments) -> None:
    write_deltalake(
        workspace.table("trips"),
        pa.table({"x": [1]}),
        commit_properties=CommitProperties(app_transactions=[Transaction(application_id(JOB, 7), 1)]),
    )
    empty(_path(job, workspace, "checkpoint.json"))
    repair(workspace, JOB, by="test")
    reference = job.checkpoint.read()
    assert reference is not None and reference.highest > 7 and reference.generation == 1
    assert not reference.fenced and reference.outputs == []


def _restored(job: JobDocuments, workspace: Workspace, **fields: Any) -> CheckpointRef:
    """Let the job's newest driver have run generation 2, which a restore put in force."""
    outputs = [OutputStart(table="trips", version=0)]
    path = f"checkpoints/{JOB}/g000002"
    for info in list(workspace.files.walk(f"checkpoints/{JOB}/g000001")):
        workspace.files.copy(info.key, info.key.replace("g000001", "g000002"))
    after = CheckpointRef(
        job=JOB, generation=2, path=path, since=utc_now(), reason="", base_batch=2, highest=2, outputs=outputs
    )
    plan = OperationPlan(after=InForce(checkpoint=after))
    job.operation.update(lambda was: was.model_copy(update={"plan": plan, **fields}))  # type: ignore[union-attr]
    name = job.incarnations()[-1]
    job.heartbeat(name).update(lambda was: was.model_copy(update={"generation": 2}))  # type: ignore[union-attr]
    return after


def test_tables_that_are_still_to_be_put_back_stay_so(workspace: Workspace, job: JobDocuments) -> None:
    after = _restored(job, workspace)
    empty(_path(job, workspace, "checkpoint.json"))
    repair(workspace, JOB, by="test")
    reference = job.checkpoint.read()
    assert reference is not None and (reference.generation, reference.base_batch) == (2, 2)
    assert reference.outputs == after.outputs, "no batch of it is committed yet"


def test_where_nothing_says_what_is_in_force_the_repair_is_refused(workspace: Workspace, job: JobDocuments) -> None:
    later = utc_now() + timedelta(hours=1)
    hopeless: list[Callable[[], Any]] = [
        lambda: _restored(job, workspace, state=OperationState.RUNNING),
        lambda: _restored(job, workspace, state="rolled back", ended_at=later),
        lambda: empty(_path(job, workspace, "operation.json")),
    ]
    for make in hopeless:
        make()
        empty(_path(job, workspace, "checkpoint.json"))
        with pytest.raises(StreamwardenError, match="REPAIR_IMPOSSIBLE"):
            repair(workspace, JOB, by="test")
        assert _path(job, workspace, "checkpoint.json").read_bytes() == b""


def test_nothing_that_decides_is_restored_under_a_living_driver(workspace: Workspace, job: JobDocuments) -> None:
    name = job.incarnations()[-1]
    workspace.storage.delete(job.exit(name).key)
    mine = current_process()
    job.heartbeat(name).update(lambda was: was.model_copy(update={"process": mine}))  # type: ignore[union-attr]
    for document in ("lease.json", "checkpoint.json"):
        empty(_path(job, workspace, document))
        with pytest.raises(StreamwardenError, match=f"LEASE_HELD.*process {mine.pid}"):
            repair(workspace, JOB, by="test")
        job.lease.write(
            Lease(job=JOB, incarnation=name, process=mine, epoch=2, acquired_at=utc_now(), expires_at=utc_now())
        )
    job.checkpoint.write(
        CheckpointRef(job=JOB, generation=1, path=f"checkpoints/{JOB}/g000001", since=utc_now(), reason="")
    )
    # What is wanted of it no driver reads again; and without it none can be stopped.
    empty(_path(job, workspace, "desired.json"))
    repair(workspace, JOB, by="test")
    desired = job.desired.read()
    assert desired is not None and desired.state == "running"
