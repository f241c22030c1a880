"""One of each kind of control document, as the project writes it."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel

from streamwarden.model.operation import Operation
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import ErrorInfo
from streamwarden.model.savepoint import FileEntry, Manifest, OperatorState, Origin, Record, SinkState
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, Desired, Exit, Heartbeat, Launch, Lease, StopRequest

AT = datetime(2026, 3, 8, 12, tzinfo=UTC)
INCARNATION = "20260308T120000000z0001"


def made() -> list[BaseModel]:
    """Return the documents."""
    spec = JobSpec.model_validate({
        "name": "trips", "module": "spark_jobs.ingest_trips", "source": {"kind": "files", "path": "landing"},
        "sinks": [{"table": "trips", "mode": "append"}], "watermark": "1h",
    })  # fmt: skip
    process = ProcessRef(host="host", boot="boot", pid=7, started=1.5)
    reference = CheckpointRef(job="trips", generation=1, path="checkpoints/trips/g000001", since=AT, reason="first")
    return [
        Desired(job="trips", state="running", spec=spec, digest="d", profile="test", updated_at=AT, updated_by="ann"),
        reference,
        Lease(job="trips", incarnation=INCARNATION, process=process, epoch=1, acquired_at=AT, expires_at=AT),
        Launch(incarnation=INCARNATION, at=AT, by="ann", reason="first", digest="d", spec=spec, process=process),
        Heartbeat(incarnation=INCARNATION, at=AT, started_at=AT, state="running", process=process),
        Exit(incarnation=INCARNATION, at=AT, outcome="failed",
             error=ErrorInfo(code="DRIVER_DIED", what="w", remedy="r", retryable=True)),
        StopRequest(at=AT, by="ann"),
        Operation(id="o", kind="restore", job="trips", by="ann", params={}, started_at=AT, seen_at=AT, process=None),
        Record(id="s", job="trips", state="complete", origin=Origin.MANUAL, by="ann", at=AT),
        Manifest(
            id="s", job="trips", origin=Origin.MANUAL, by="ann", taken_at=AT, took_s=1.0, parent=None, generation=1,
            checkpoint=reference.path, batch=3, watermark_ms=0, sources=['{"logOffset":3}'], settings={}, digest="d",
            operators=[OperatorState(id=0, name="stateStoreSave", partitions=2, stores=["default"], rows=1, bytes=2,
                                     schema_sha256="")],
            sinks=[SinkState(table="trips", mode="append", version=3, application="a", transaction=3)],
            versions={"spark": "4.2.0", "job": "1"}, spec=spec, files=[FileEntry(path="metadata", size=1, sha256="0")],
        ),
    ]  # fmt: skip
