"""Take a savepoint: of a running job at its newest committed batch, or of a stopped job."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import BatchOffsets, CheckpointReader
from streamwarden.formats.checkpoint_files import Closure, StateFileMissing, closure, relocated
from streamwarden.formats.damage import checkpoint_damaged
from streamwarden.formats.delta_log import DeltaLog, TableState, application_id
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import FileEntry, Manifest, OperatorState, Origin, Record, SinkState
from streamwarden.model.status import CheckpointRef, Desired, OutputStart
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.savepoints.writers import writer_versions
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.layout import savepoint_checkpoint_key, savepoint_key
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase, observe

__all__ = ["Report", "take"]

_ATTEMPTS = 5
"""Tries at a newer batch when state files are removed during the copy. 5: each try is a whole copy."""

_SPEAK_S = 5.0
"""Seconds between the signs of life that a take writes."""

_TRACKED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
"""If this is off, Spark always reports 0 rows, which can't be compared."""

_PROGRESS_WAIT_S = 3.0
"""Seconds to wait for a live driver's report of the batch. A report follows its commit by some milliseconds."""


class Report(Protocol):
    """A callback for progress: the step's name, the amount done, and the total."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report the progress."""


def take(
    workspace: Workspace, job: str, *, origin: Origin, by: str, note: str = "", report: Report | None = None
) -> Manifest:
    """Take a savepoint of a job at its newest committed batch, without stopping it.

    The job may be running: during the copy, batches continue and Spark removes old state files. If Spark removes a file
    before it is copied, the take starts again at the then newest batch. A failed take leaves nothing. A killed take
    leaves files without a manifest, which :func:`~.catalog.housekeeping` removes.

    Parameters
    ----------
    workspace, job
        The job.
    origin, by, note
        Why, who and a note; kept in the manifest and the record.
    report
        Called with the progress.

    Returns
    -------
    Manifest
        Not verified yet: see :mod:`~.verify`.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``, ``SAVEPOINT_NOTHING``, ``SAVEPOINT_OUTRUN``, ``SAVEPOINT_UNSUPPORTED``,
        ``CHECKPOINT_DAMAGED`` or ``SAVEPOINT_FAILED``.
    """
    documents = JobDocuments(workspace.storage, job)
    desired, reference = documents.desired.read(), documents.checkpoint.read()
    if desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    if reference is None or CheckpointReader(workspace.storage, reference.path).last_commit() is None:
        raise StreamwardenError("SAVEPOINT_NOTHING", f"{job}: no batch is committed yet")
    if any(output.source is not None for output in reference.outputs):
        # A clone that never started: its state corresponds to no version of its own tables.
        raise StreamwardenError("SAVEPOINT_NOTHING", f"{job}: its tables are not in place yet")
    now = utc_now()
    record = Record(
        id=new_id(),
        job=job,
        state="taking",
        origin=origin,
        by=by,
        at=now,
        note=note,
        process=current_process(),
        seen_at=now,
    )
    record_document(workspace, job, record.id).create(record)
    try:
        return _Take(workspace, desired, reference, record, report).run()
    except (OSError, StreamwardenError) as error:
        _remove(workspace, record)
        if isinstance(error, StreamwardenError):
            raise
        raise StreamwardenError("SAVEPOINT_FAILED", f"{job}: {error}") from error
    except BaseException:
        _remove(workspace, record)
        raise


class _Take:
    def __init__(
        self, workspace: Workspace, desired: Desired, reference: CheckpointRef, record: Record, report: Report | None
    ) -> None:
        self._workspace = workspace
        self._files = workspace.files
        self._desired = desired
        self._reference = reference
        self._record = record
        self._report = report
        self._job = record.job
        self._reader = CheckpointReader(workspace.storage, reference.path)
        self._target = savepoint_checkpoint_key(record.job, record.id)
        self._spoke = time.monotonic()

    def run(self) -> Manifest:
        started = time.monotonic()
        offsets, needed = self._copy()
        hashed = self._files.hash_many(
            [f"{self._target}/{path}" for path in needed.files], done=self._step("hash", len(needed.files))
        )
        files = [
            FileEntry(
                path=path, size=hashed[f"{self._target}/{path}"].size, sha256=hashed[f"{self._target}/{path}"].sha256
            )
            for path in needed.files
        ]
        progress = self._progress(offsets.batch) if needed.operators and self._tracked() else None
        reported = {operator.id: operator for operator in progress.operators} if progress else {}
        manifest = Manifest(
            id=self._record.id,
            job=self._job,
            origin=self._record.origin,
            by=self._record.by,
            taken_at=utc_now(),
            took_s=round(time.monotonic() - started, 3),
            parent=self._reference.savepoint,
            generation=self._reference.generation,
            checkpoint=self._reference.path,
            batch=offsets.batch,
            planned_at=datetime.fromtimestamp(offsets.planned_ms / 1000, UTC) if offsets.planned_ms else None,
            watermark_ms=offsets.watermark_ms,
            sources=list(offsets.sources),
            source_names=self._reference.sources,
            topics=self._reference.topics,
            settings=offsets.conf,
            operators=[
                OperatorState(
                    id=one.id,
                    name=one.name,
                    partitions=one.partitions,
                    stores=one.stores,
                    rows=reported[one.id].rows if one.id in reported else None,
                    keys=reported[one.id].keys if one.id in reported else None,
                    bytes=one.bytes,
                    schema_sha256=one.schema_sha256,
                )
                for one in needed.operators
            ],
            sinks=self._sinks(offsets.batch),
            versions=writer_versions(self._workspace, self._job),
            spec=self._desired.spec,
            digest=self._desired.digest,
            files=files,
        )
        etag = manifest_document(self._workspace, self._job, self._record.id).create(manifest)
        complete: dict[str, Any] = {"state": "complete", "process": None, "done": {}, "summary": manifest.summary(etag)}
        self._change(lambda record: record.model_copy(update=complete))
        return manifest

    def _copy(self) -> tuple[BatchOffsets, Closure]:
        missing: list[tuple[int, str]] = []
        for _ in range(_ATTEMPTS):
            batch = self._reader.last_commit()
            assert batch is not None
            offsets = self._reader.offsets(batch)
            try:
                if offsets is None:
                    raise StateFileMissing(f"offsets/{batch}")
                if batch > 0 and self._reader.offsets(batch - 1) is None:
                    # A driver needs both, and would not start from a savepoint without them.
                    raise StateFileMissing(f"offsets/{batch - 1}")
                needed = closure(self._files, self._reference.path, offsets)
                self._link(needed)
            except (StateFileMissing, FileNotFoundError) as error:
                path = str(error.filename if isinstance(error, FileNotFoundError) else error)
                if (batch, path) in missing:
                    # Missing again, although no newer batch could have made it obsolete.
                    raise checkpoint_damaged(
                        self._workspace.storage, self._reference.path, f"batch {batch} needs {path}"
                    ) from None
                missing.append((batch, path))
                continue
            return offsets, needed
        raise StreamwardenError(
            "SAVEPOINT_OUTRUN",
            f"{self._job}: {_ATTEMPTS} tries, at batches {', '.join(str(batch) for batch, _ in missing)}",
        )

    def _link(self, needed: Closure) -> None:
        # Metadata that is rewritten is not copied.
        pairs = [
            (f"{self._reference.path}/{path}", f"{self._target}/{path}")
            for path in needed.files
            if path not in needed.metadata
        ]
        self._files.copy_many(pairs, done=self._step("copy", len(pairs)))
        for path in needed.metadata:
            try:
                original = self._files.read(f"{self._reference.path}/{path}")
            except FileNotFoundError:
                raise StateFileMissing(path) from None
            moved = relocated(original, int(path.split("/")[1]), self._workspace.schemed_uri(self._target))
            self._files.write(f"{self._target}/{path}", moved)
        # Leftovers of unfinished tries at older batches.
        for info in list(self._files.walk(self._target)):
            if info.key[len(self._target) + 1 :] not in needed.files:
                self._files.delete(info.key)

    def _sinks(self, batch: int) -> list[SinkState]:
        application = application_id(self._job, self._reference.generation)
        pending = {output.table: output.version for output in self._pending()}
        found = []
        for sink in self._desired.spec.delta_sinks:
            log = DeltaLog(self._files, sink.table)
            if sink.table not in pending:
                state = log.after(application, batch)
            elif (until := pending[sink.table]) is None:
                state = TableState(None, None)
            else:
                # Later versions hold rows of a generation that was rolled back.
                state = log.after(application, batch, until=until)
            found.append(
                SinkState(
                    table=sink.table,
                    mode=sink.mode,
                    version=state.version,
                    application=application,
                    transaction=state.transaction,
                )
            )
        return found

    def _pending(self) -> list[OutputStart]:
        """Return tables that the checkpoint's driver still had to restore; it may have restored them since."""
        now = JobDocuments(self._workspace.storage, self._job).checkpoint.read()
        same = now is not None and now.generation == self._reference.generation
        return now.outputs if now is not None and same else self._reference.outputs

    def _progress(self, batch: int) -> BatchProgress | None:
        documents = JobDocuments(self._workspace.storage, self._job)
        deadline = Deadline(_PROGRESS_WAIT_S)
        while True:
            for incarnation in reversed(documents.incarnations()[-3:]):
                heartbeat = documents.heartbeat(incarnation).read()
                if heartbeat is not None and heartbeat.generation != self._reference.generation:
                    # Batch ids repeat across generations: that generation's batch was a different one.
                    continue
                progress = documents.progress(incarnation).read()
                for done in reversed(progress.recent if progress else []):
                    if done.batch == batch:
                        return done
            alive = observe(self._workspace, self._job).phase in (Phase.RUNNING, Phase.STOPPING)
            if not alive or not deadline.pause(0.1):
                return None

    def _tracked(self) -> bool:
        spec = self._desired.spec
        settings = {**self._workspace.profile.spark, **spec.spark}
        return spec.state.backend != "rocksdb" or settings.get(_TRACKED, "true").lower() != "false"

    def _step(self, name: str, total: int) -> Callable[[int], None]:
        def done(number: int) -> None:
            if self._report is not None:
                self._report(name, number, total)
            if time.monotonic() - self._spoke >= _SPEAK_S:
                self._spoke = time.monotonic()
                said = {"step": name, "done": number, "total": total}
                try:
                    self._change(lambda record: record.model_copy(update={"seen_at": utc_now(), "done": said}))
                except StreamwardenError as error:
                    # File access tolerates a short store outage; a sign of life must tolerate it, too.
                    if error.code not in ("S3_UNREACHABLE", "S3_THROTTLED"):
                        raise

        return done

    def _change(self, change: Callable[[Record], Record]) -> None:
        def apply(found: Record | None) -> Record:
            if found is None or found.state != "taking":
                raise StreamwardenError(
                    "SAVEPOINT_FAILED", f"{self._job}: {self._record.id} was removed by another process"
                )
            return change(found)

        record_document(self._workspace, self._job, self._record.id).update(apply)


def _remove(workspace: Workspace, record: Record) -> None:
    """Remove a failed take as far as possible now; housekeeping removes the rest."""
    try:
        workspace.files.delete_tree(savepoint_key(record.job, record.id))
        workspace.storage.delete(record_document(workspace, record.job, record.id).key)
    except (OSError, StreamwardenError):
        return
