"""A place with jobs in every state, made of documents alone."""

from __future__ import annotations

import logging
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake

from streamwarden.driver.logs import configure_logging
from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.gate import Decision, GateRecord, HeldFailure, Hold, Verdict
from streamwarden.model.operation import Operation, OperationPlan, OperationState, Step
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.profile import LogSpec
from streamwarden.model.progress import BatchProgress, OperatorProgress, Progress, SourceProgress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.savepoint import Origin, Record, Verification
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, DriverState, Exit, Heartbeat, Launch, Parallelism
from streamwarden.model.supervision import Restart, Supervision
from streamwarden.quality.data_docs.files import docs_key
from streamwarden.quality.documents import write_run
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace, open_workspace
from tests.canaries import leak
from tests.unit.savepoints.test_catalog import manifest

REPOSITORY = Path(__file__).resolve().parents[4]
ODD = 'a&b "<i>'
"""A job that only a folder can have: the name of a YAML file is a spec's name."""
RUN = "20260101T000000000zabcd"
LEAKED_RUN = "20260101T000000000zleak"
OPERATION = "20260101T000000000zop01"
NASTY = "<script>alert(1)</script>"


def opened(folder: Path, **more: Any) -> Workspace:
    """Open a place with two suites and no job; `more` are fields of its profile."""
    (folder / "config" / "profiles").mkdir(parents=True)
    (folder / "config" / "jobs").mkdir()
    # A driver that does not beat stays alive for longer than the tests take.
    profile = {"name": "test", "root": "root", "lease": "1h", **more}
    (folder / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump(profile))
    (folder / "expectations").mkdir()
    for name in ("trips", "zone_windows"):
        shutil.copy(REPOSITORY / "expectations" / f"{name}.json", folder / "expectations")
    return open_workspace("test", config=folder / "config")


def spec(name: str, **more: Any) -> JobSpec:
    fields = {
        "name": name,
        "module": "spark_jobs.none",
        "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": "trips" if name == "ingest" else f"{name}_table", "mode": "append"}],
        "trigger": {"interval": "10s"},
        **more,
    }
    return JobSpec.model_validate(fields)


def described(workspace: Workspace, name: str, **more: Any) -> None:
    path = workspace.config / "jobs" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec(name, **more).model_dump(mode="json", exclude_unset=True)))


def batch(number: int, at: datetime, *, ms: int = 2000, rows: int = 1000, pending: int = 0) -> BatchProgress:
    return BatchProgress(
        batch=number, at=at, duration_ms=ms, rows_in=rows, rows_out=rows, rows_per_second=rows * 1000 / ms,
        commit_ms=ms // 4, checkpoint_ms=ms // 8, watermark_lag_s=7200, state_rows=100 + number, state_bytes=50_000,
        late_rows=1, process_bytes=800_000_000,
        operators=[OperatorProgress(id=0, name="stateStoreSave", rows=100, bytes=50_000)],
        source=SourceProgress(unit="files", taken=1, pending=pending),
    )  # fmt: skip


def ran(
    workspace: Workspace, name: str, *, wanted: str = "running", state: DriverState = DriverState.RUNNING,
    code: str | None = None, stopped: bool = False, batches: list[BatchProgress] | None = None,
    process: ProcessRef | None = None, with_yaml: bool = True,
) -> JobDocuments:  # fmt: skip
    """Write the documents of a job that ran."""
    if with_yaml:
        described(workspace, name)
    documents = JobDocuments(workspace.storage, name)
    now = utc_now()
    found = spec(name)
    documents.desired.write(
        Desired(job=name, state=wanted, spec=found, digest="d", profile="test", updated_at=now, updated_by="ann")  # type: ignore[arg-type]
    )
    documents.checkpoint.write(
        CheckpointRef(job=name, generation=1, path=f"checkpoints/{name}/g000001", since=now, reason="first")
    )
    begun = now - timedelta(minutes=30)
    incarnation = f"{begun:%Y%m%dT%H%M%S}000z0001"
    process = process or current_process()
    documents.launch(incarnation).write(
        Launch(incarnation=incarnation, at=begun, by="ann", reason=NASTY, digest="d", spec=found, process=process)
    )
    documents.heartbeat(incarnation).write(
        Heartbeat(incarnation=incarnation, at=now, started_at=begun, state=state, process=process, generation=1)
    )
    made = batches or [batch(number, now - timedelta(seconds=10 * (20 - number))) for number in range(20)]
    documents.progress(incarnation).write(Progress(incarnation=incarnation, at=now, last=made[-1], recent=made))
    if code is not None or stopped:
        error = ErrorInfo.of(StreamwardenError(code, f"{name}: {NASTY}")) if code is not None else None  # type: ignore[arg-type]
        outcome: Any = "failed" if error is not None else "stopped"
        documents.exit(incarnation).write(Exit(incarnation=incarnation, at=now, outcome=outcome, error=error, batch=19))
    folder = workspace.log_dir(name, incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "driver.log").write_text(f"first\nthe last line {NASTY}\n")
    return documents


def populated(folder: Path, **more: Any) -> Workspace:
    """Open a place with a job in each state, a rescale, a hold, a check, and a history of one job."""
    workspace = opened(folder, **more)
    ran(workspace, "ingest")
    slow = [batch(n, utc_now() - timedelta(seconds=15 * (30 - n)), ms=2000 if n < 15 else 14_000, pending=n)
            for n in range(30)]  # fmt: skip
    documents = ran(workspace, "slow", batches=slow)
    documents.supervision.write(Supervision(restarts=[Restart(at=utc_now(), after="i0", reason="its process is gone")]))
    ran(workspace, "broken", code="JOB_CODE_FAILED")
    ran(workspace, "dead", process=current_process().model_copy(update={"started": 1.0}))
    ran(workspace, "stopped", wanted="suspended", stopped=True)
    ran(workspace, "deleted", with_yaml=False)
    # No job: somebody made the folder.
    workspace.files.write(f"control/{ODD}/a", b"")
    described(workspace, "fresh")
    torn = ran(workspace, "torn")
    workspace.storage.write(torn.desired.key, b"{")
    rescaled(documents)
    held(workspace)
    ProgressTable(workspace).append(
        "ingest", "i1", 1, [batch(n, utc_now() - timedelta(minutes=90 - n)) for n in range(60)]
    )
    return workspace


def leaked(folder: Path) -> Workspace:
    """Open such a place, in which whatever records an error has met a client that puts secrets into it."""
    workspace = populated(folder)
    documents = JobDocuments(workspace.storage, "slow")
    (incarnation,) = documents.incarnations()
    refused = StreamwardenError("JOB_CODE_FAILED", leak())
    error = ErrorInfo.of(refused, traceback=leak())
    documents.exit(incarnation).write(
        Exit(incarnation=incarnation, at=utc_now(), outcome="failed", error=error, batch=19)
    )
    past = documents.past_operation(OPERATION)
    operation = past.read()
    assert operation is not None
    last = operation.steps[-1].model_copy(update={"detail": f"not healthy: {refused.what}"})
    past.write(
        operation.model_copy(
            update={"state": OperationState.ROLLED_BACK, "error": error, "steps": [*operation.steps[:-1], last]}
        )
    )
    Gate(workspace).note("trips", ValueError(leak()))
    expectation = ExpectationResult(
        id="fares", type="values", columns=("fare",), severity="critical", description="Fares are positive.", notes="",
        arguments={}, success=False, error=leak(),
    )  # fmt: skip
    table = TableResult(table="trips", status="unreadable", version=5, what=leak(), expectations=(expectation,))
    now = utc_now().isoformat()
    run = QualityRun(run_id=LEAKED_RUN, started=now, ended=now, seconds=0.5, tables_dir="", great_expectations="1",
                     tables=(table,))  # fmt: skip
    write_run(LocalStorage(workspace.root), QUALITY, run)
    proof = Verification(verdict="damaged", at=utc_now(), by="ann", took_s=0, files=1, bytes=1, problems=[leak()])
    manifest_document(workspace, "slow", "leaked").create(manifest("leaked", job="slow"))
    record_document(workspace, "slow", "leaked").create(
        Record(
            id="leaked", job="slow", state="complete", origin=Origin.MANUAL, by="ann", at=utc_now(), verification=proof
        )
    )
    context = configure_logging(workspace.log_dir("slow", incarnation), "slow", incarnation, LogSpec())
    handler = next(one for one in logging.getLogger().handlers if context in one.filters)
    logging.getLogger("a.client").warning("it fails: %s", leak())
    logging.getLogger().removeHandler(handler)
    handler.close()
    # Written by the JVM.
    (workspace.log_dir("slow", incarnation) / "spark.log").write_text(f"WARN S3AFileSystem: {leak()}\n")
    return workspace


def rescaled(documents: JobDocuments) -> None:
    now = utc_now()
    names = ("precheck", "pre-rescale savepoint", "stop", "switch", "first batch")
    steps = [
        Step(name=name, started_at=now - timedelta(seconds=50 - 10 * n), ended_at=now - timedelta(seconds=40 - 10 * n))
        for n, name in enumerate(names)
    ]
    plan = OperationPlan(
        was=Parallelism(partitions=2, cores=1, memory="1g"), to=Parallelism(partitions=4, cores=1, memory="1g"),
        downtime_s=30, stopped_at=now - timedelta(seconds=30),
    )  # fmt: skip
    documents.past_operation(OPERATION).write(
        Operation(
            id=OPERATION, kind="rescale", job=documents.job, by="airflow:rescale/manual__2026, for ann",
            params={"reason": NASTY}, plan=plan,
            state="done", started_at=now - timedelta(seconds=50), ended_at=now, seen_at=now, process=None, steps=steps,
        )  # type: ignore[arg-type]
    )  # fmt: skip


def held(workspace: Workspace) -> None:
    now = utc_now()
    failing = ({"trip_id": NASTY, "fare": -1},)
    failure = HeldFailure(expectation="fares", finding="1 of 3 rows fails", description="Fares are positive.",
                          examples=list(failing), query="SELECT 1")  # fmt: skip
    # Longer ago than any page needs to be drawn: whether it is worth a warning is by its age.
    since = now - timedelta(minutes=20)
    hold = Hold(after=3, version=5, since=since, run=RUN, failures=[failure], batches=["ingest/g000001/7"])
    decision = Decision(at=now, verdict=Verdict.HELD, after=3, version=5, rows=3, seconds=0.5, run=RUN)
    gate_document(workspace, "trips").write(GateRecord(table="trips", began=0, hold=hold, decisions=[decision]))
    expectation = ExpectationResult(
        id="fares", type="values", columns=("fare",), severity="critical", description="Fares are positive.", notes="",
        arguments={}, success=False, checked=3, unexpected_count=1, unexpected_percent=33.3, examples=failing,
    )  # fmt: skip
    table = TableResult(
        table="trips", status="failed", version=5, after=3, rows=3, seconds=0.5, expectations=(expectation,)
    )
    run = QualityRun(run_id=RUN, started=now.isoformat(), ended=now.isoformat(), seconds=0.5, tables_dir="",
                     great_expectations="1", tables=(table,))  # fmt: skip
    storage = LocalStorage(workspace.root)
    write_run(storage, QUALITY, run)
    rows = [
        {"row_id": f"r{n}", "batch": 7, "quarantined_at": now, "rules": ["fares"], "reasons": [f"fares: {NASTY}"],
         "source_file": "a.parquet", "source_row": n, "raw": NASTY} for n in range(3)
    ]  # fmt: skip
    address, options = workspace.delta_rs("trips_quarantine")
    write_deltalake(address, pa.Table.from_pylist(rows), storage_options=options)
    # Not the real ones: they need Great Expectations.
    for page in ("index.html", "validations/trips.html", "expectations/trips.html", "validations/zone_windows.html"):
        storage.write(docs_key(RUN, page), f"the page {page}".encode())
