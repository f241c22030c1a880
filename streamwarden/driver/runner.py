"""One driver process: lease, session, query, heartbeat, requests, end."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
import traceback
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streamwarden import __version__
from streamwarden.driver.backlog import Backlog, backlog_of
from streamwarden.driver.causes import Cause, Failure, explain, headline, shortened
from streamwarden.driver.export import Export, open_export
from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.job_session import PROVIDERS, start_session
from streamwarden.driver.jvm import end_jvm, is_unanswered, jvm_end, jvm_of
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.driver.pipeline.arrivals import Arrivals
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import load_module, settings_for
from streamwarden.driver.pipeline.outputs import AUTHOR, clear_unborn, keep_tables, start_outputs
from streamwarden.driver.pipeline.query import POLL_S, RunningQuery
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.driver.pipeline.source import missing_source, open_source
from streamwarden.driver.progress import ProgressListener
from streamwarden.driver.recorder import BatchRecorder
from streamwarden.errors import CATALOGUE, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import check_described
from streamwarden.formats.delta_log import DeltaLog, application_id
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.landing.planner import Planner
from streamwarden.model.spec import DeltaSource, FileSource, JobSpec
from streamwarden.model.status import (
    BatchProgress,
    CheckpointRef,
    DriverState,
    ErrorInfo,
    Exit,
    Heartbeat,
    Supervision,
    utc_now,
)
from streamwarden.runtime import work_dirs
from streamwarden.runtime.failure_signatures import Places
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.runtime.processes import current_process
from streamwarden.savepoints.table_damage import check_output, check_source, forget_damaged_checkpoints
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import widened, width_of
from streamwarden.store.layout import ARRIVALS, checkpoint_key, job_key
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import observe

if TYPE_CHECKING:
    from streamwarden.driver.standby import Prepared

__all__ = ["Driver"]

_log = logging.getLogger(__name__)

_LAST_METRICS_S = 5.0
_LAST_ROWS_S = 20.0
"""Maximum seconds that the end waits for a collector, and for the table of batches. The lease is renewed meanwhile."""

_STOP_POLL_S = 0.5
_STOP_POLL_S3 = 2.0
"""Seconds between two reads of the stop request, or the heartbeat's interval if that is shorter. A person waits for the
stop. On S3 each read is charged: 2 s make 43,200 a day."""

_NOT_HERE = ("OUT_OF_MEMORY", "JVM_DIED")
"""Transient failures that this process can't survive: its JVM is gone, or about to go."""

_READ_AGAIN = ("SOURCE_SCHEMA_CHANGED",)
"""Failures that reading the source's current schema once may fix; a second time can't help."""


class Driver:
    """Runs one job until it is asked to stop, fails for good, or loses its lease.

    Parameters
    ----------
    workspace
        The workspace of the job.
    job
        The job's name; its spec is the deployed one (the desired document), not the current YAML.
    incarnation
        The id of this process's run.
    records
        The context of log records, which gets the batch in flight.
    prepared
        What a standby driver has prepared; default a new session.
    """

    def __init__(
        self,
        workspace: Workspace,
        job: str,
        incarnation: str,
        records: RecordContext,
        *,
        prepared: Prepared | None = None,
    ) -> None:
        self._workspace = workspace
        self._records = records
        self._documents = JobDocuments(workspace.storage, job)
        self._incarnation = incarnation
        self._process = current_process()
        self._lease = LeaseHolder(self._documents, incarnation, self._process, workspace.profile.lease)
        self._logs = workspace.log_dir(job, incarnation)
        self._job = job
        self._started_at = utc_now()
        self._state = DriverState.STARTING
        self._reason = "starting"
        self._generation = 0
        self._epoch = 0
        self._digest = ""
        self._batch: int | None = None
        self._writes = False
        self._idle = False
        self._idle_at: datetime | None = None
        self._query_ended = False
        self._versions: dict[str, str] = {}
        self._notes: list[str] = []
        self._failures = 0
        # The listener's thread resets the count that this thread increments.
        self._counting = threading.Lock()
        # The batch after which the source's columns were read again; none yet.
        self._read_again: tuple[int | None] | None = None
        self._stop = threading.Event()
        self._fatal: StreamwardenError | None = None
        self._ended = threading.Event()
        self._prepared = prepared.session if prepared is not None else None
        self._ahead = prepared.ahead if prepared is not None else None
        self._session: SparkSession | None = None
        self._job_file: str | None = None
        self._places = Places()
        self._trace: str | None = None
        self._export: Export | None = None
        self._metrics: DriverMetrics | None = None
        self._recorder: BatchRecorder | None = None
        self._planner: Planner | None = None
        self._arrivals: Arrivals | None = None
        self._query: RunningQuery | None = None

    def run(self) -> int:
        """Run, and return the process's exit code: 0 stopped, 1 failed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: self._request_stop(f"signal {got}"))
        error: ErrorInfo | None = None
        try:
            self._run()
        except StreamwardenError as raised:
            error = ErrorInfo.of(raised, traceback=shortened(self._trace or traceback.format_exc()))
        except Exception as raised:
            cause = self._explain(Failure.of(raised))
            wrapped = StreamwardenError(cause.code or "DRIVER_FAILED", cause.line, remedy=cause.remedy)
            error = ErrorInfo.of(wrapped, traceback=shortened(cause.trace))
        self._finish(error)
        return 1 if error else 0

    def _run(self) -> None:
        desired = self._documents.desired.read()
        if desired is None:
            raise StreamwardenError("NOT_DEPLOYED", self._job)
        spec, self._digest = desired.spec, desired.digest
        # Waits until the lease of a holder that died on another machine expires; a live holder ends this driver.
        lease = self._lease.acquire(wait=self._workspace.profile.lease + timedelta(seconds=2))
        self._epoch = lease.epoch
        self._open_metrics()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        # Only after the lease is acquired: the JVM of a killed driver may still have worked there.
        for dead in work_dirs.sweep(self._workspace, self._job):
            _log.info("removed the scratch folder of driver %s", dead)
        reference = self._checkpoint_ref()
        self._generation = reference.generation
        if self._is_suspended():
            self._batch = CheckpointReader(self._workspace.storage, reference.path).last_commit()
            return
        if reference.partitions is not None:
            spec = widened(spec, width_of(spec).model_copy(update={"partitions": reference.partitions}))
        self._open_recorder()
        _log.info("lease taken; generation %d, checkpoint %s", reference.generation, reference.path)
        module = load_module(spec)
        self._job_file = getattr(module, "__file__", None)
        self._places = _places(self._workspace, spec)
        self._versions = {
            "spark": pyspark.__version__,
            "delta": version("delta-spark"),
            "streamwarden": __version__,
            "job": str(module.VERSION),
        }
        # Validate before Spark starts.
        settings_for(spec, module)
        checkpoint = CheckpointReader(self._workspace.storage, reference.path)
        checkpoint.check()
        check_described(self._workspace.storage, reference.path)
        _check_tables(self._workspace, spec, reference)
        _check_fixed(spec, checkpoint)
        self._batch = checkpoint.last_commit()
        session = self._open_session(spec)
        self._await_source(session, spec)
        if self._stop.is_set():
            return
        for sink in spec.sinks:
            clear_unborn(self._workspace, sink.table, guard=self._guard)
        tables = [sink.table for sink in spec.sinks]
        changes = _changed_by_others(self._workspace, spec, reference)
        start_outputs(session, self._workspace, reference, tables, guard=self._guard)
        application = application_id(spec.name, reference.generation)
        sinks = {
            sink.output: DeltaSink(
                session,
                self._workspace.table(sink.table),
                sink,
                module.OUTPUTS[sink.output],
                application,
                released=desired.went_back,
                guard=self._guard,
            )
            for sink in spec.sinks
        }
        keep_tables(self._workspace, spec.name, tables, guard=self._guard)
        self._notes = [*changes, *(note for sink in sinks.values() for note in sink.notes)]
        if isinstance(spec.source, FileSource):
            self._planner = Planner(self._workspace, spec.name, spec.source, reference, self._guard)
            self._arrivals = Arrivals(self._planner, spec.trigger.interval.total_seconds(), self._wake)
            self._arrivals.start()
            backlog: Backlog = self._planner
        else:
            backlog = backlog_of(self._workspace, spec.source)
        writer = BatchWriter(
            spec, module, sinks, checkpoint, self._guard, refused=self._planner.refused if self._planner else None
        )
        self._records.batch = lambda: writer.in_flight
        listener = ProgressListener(
            self._documents,
            self._incarnation,
            reference.generation,
            checkpoint,
            writer.counts,
            self._committed,
            self._idled,
            lambda: self._failures + 1,
            backlog,
            after=reference.base_batch,
            files=isinstance(spec.source, FileSource),
        )
        session.streams.addListener(listener)
        while True:
            failure: Failure | None
            try:
                query = self._query_ahead(reference, writer) or self._start_query(
                    session, spec, module, reference, writer, checkpoint
                )
            except StreamwardenError as error:
                if not error.retryable:
                    raise
                failure = Failure.of(error)
            except AnalysisException as error:
                raise self._not_to_be_opened(spec, error) from error
            except Exception as error:
                # Usually the store of the source or the checkpoint is unavailable; a failed try like any other.
                failure = Failure.of(error)
            else:
                self._query = query
                self._say(DriverState.RUNNING, "batches every trigger interval")
                failure = self._watch(query)
            if failure is None:
                self._say(DriverState.STOPPING, "finishing the batch in flight")
                query.stop()
                # Spark reports the query's end from another thread: a savepoint may be taken before that.
                listener.catch_up()
                self._batch = checkpoint.last_commit()
                self._query_ended = True
                self._say(DriverState.STOPPING, f"its query has ended after batch {self._batch}, and Spark is ending")
                return
            self._survive(spec, failure)
            if self._stop.is_set():
                return

    def _start_query(
        self,
        session: SparkSession,
        spec: JobSpec,
        module: StreamingJob,
        reference: CheckpointRef,
        writer: BatchWriter,
        checkpoint: CheckpointReader,
    ) -> RunningQuery:
        source = open_source(session, self._workspace, spec)
        rows = module.transform(source, settings_for(spec, module))
        if session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true":
            self._guard()
            owed = begin_no_data_batch(self._workspace.storage, reference.path)
            if owed is not None:
                _log.info("batch %d has no input: the one before it moved the watermark", owed)
        return RunningQuery(spec, rows, writer, self._workspace.uri(reference.path), checkpoint)

    def _query_ahead(self, reference: CheckpointRef, writer: BatchWriter) -> RunningQuery | None:
        """Return the query that was started before the lease was acquired, once, if it is the one to run."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.checkpoint != reference.path:
            ahead.drop()
            return None
        return ahead.release(writer, self._author)

    def _watch(self, query: RunningQuery) -> Failure | None:
        """Wait; return None if a stop was requested, or the failure that ended the query."""
        while not self._stop.wait(POLL_S):
            if self._fatal is not None:
                query.abandon()
                raise self._fatal
            failure = query.failure()
            if failure is not None:
                return failure
        return None

    def _survive(self, spec: JobSpec, failure: Failure) -> None:
        """Count a failed try and wait; raise after too many consecutive failures, or if another try can't help."""
        if self._fatal is not None:
            raise self._fatal
        with self._counting:
            self._failures += 1
        if self._metrics is not None:
            self._metrics.failed_try()
        cause = self._explain(failure)
        _log.error("try %d of the batch after %s failed: %s", self._failures, self._batch, cause.trace)
        hopeless = cause.code is not None and not CATALOGUE[cause.code].retryable
        # Independent of earlier failures and of the job's limit: this is not a failure of the job.
        again = cause.code in _READ_AGAIN and self._read_again != (self._batch,)
        if again:
            self._read_again = (self._batch,)
            hopeless = False
        if hopeless or cause.code in _NOT_HERE:
            self._trace = cause.trace
            raise StreamwardenError(cause.code or "BATCH_FAILED", f"{spec.name}: {cause.line}", remedy=cause.remedy)
        if self._failures > spec.failures.tolerable_consecutive and not again:
            self._trace = cause.trace
            what = f"{spec.name}: {self._failures} failed tries in a row; the last: {cause.line}"
            raise StreamwardenError(cause.code or "BATCH_FAILED", what, remedy=cause.remedy)
        wait = spec.failures.wait_after(self._failures).total_seconds()
        self._say(DriverState.RETRYING, f"try {self._failures} failed, next in {wait:.0f} s: {cause.line}")
        self._stop.wait(wait)

    def _explain(self, failure: Failure) -> Cause:
        cause = explain(failure, job_file=self._job_file, places=self._places)
        # After a JVM's death every call raises a different, useless error; its log may contain the cause.
        gone = not failure.text or is_unanswered(failure.error)
        ended = jvm_end(self._session, self._logs, gone=gone)
        return cause if ended is None else Cause(*ended, cause.trace)

    def _not_to_be_opened(self, spec: JobSpec, error: AnalysisException) -> StreamwardenError:
        failure = Failure.of(error)
        cause = explain(failure, job_file=self._job_file, places=self._places)
        code = cause.code
        if code is None and "[DELTA_SCHEMA_NOT_SET]" in failure.text:
            # Delta's error for a table whose log is gone; this driver came so far only because the table existed.
            code = "SOURCE_DATA_GONE"
        self._trace = cause.trace
        if code == "JOB_CODE_FAILED":
            # Final, unlike in a batch, whose rows may be the cause: what can't be analyzed now can't be later.
            return StreamwardenError(code, f"{spec.name}: {cause.line}", retryable=False)
        return StreamwardenError(code or "SOURCE_INVALID", f"{spec.name}: {headline(error)}")

    def _is_suspended(self) -> bool:
        """Return whether the job was stopped while this driver was launched and could not yet be asked to stop.

        A later stop finds this driver. And every process that starts a driver, also an operation, has first written
        that the job is wanted.
        """
        desired = self._documents.desired.read()
        if desired is None or desired.state != "suspended":
            return False
        _log.info("not started: the job was suspended by %s meanwhile", desired.updated_by)
        return True

    def _open_session(self, spec: JobSpec) -> SparkSession:
        self._session = self._prepared or start_session(self._workspace, spec, self._incarnation)
        # Each version of a table names its author in the table's history.
        self._session.conf.set(AUTHOR, self._author)
        jvm = jvm_of(self._process)
        if jvm is not None:
            # A killed driver's JVM lives on for a moment; its successor waits until it is gone.
            self._lease.renew(jvm=jvm)
        return self._session

    @property
    def _author(self) -> str:
        return json.dumps({"incarnation": self._incarnation, "epoch": self._epoch})

    def _open_metrics(self) -> None:
        self._export = open_export(self._workspace.profile.metrics, self._job, self._incarnation)
        if self._export is not None:
            self._metrics = DriverMetrics(self._export.provider, self._job, self._view, self._health)

    def _view(self) -> DriverView:
        return DriverView(self._state, self._generation, self._failures, self._idle)

    def _health(self) -> Health | None:
        try:
            seen = observe(self._workspace, self._job)
            memory = self._documents.supervision.read() or Supervision()
        except (OSError, StreamwardenError):
            # Called at the collection of metrics: the heartbeat already shows that a store is unavailable.
            return None
        return assess(seen, memory, decide(seen, memory))

    def _open_recorder(self) -> None:
        spec = self._workspace.profile.progress_table
        if spec.enabled:
            self._recorder = BatchRecorder(self._workspace, self._job, self._incarnation, self._generation, spec)
            self._recorder.start()

    def _await_source(self, session: SparkSession, spec: JobSpec) -> None:
        while (missing := missing_source(session, self._workspace, spec)) is not None:
            if self._state is not DriverState.WAITING:
                self._say(DriverState.WAITING, missing)
            if self._stop.wait(0.5):
                return
            if self._fatal is not None:
                raise self._fatal
        if self._state is DriverState.WAITING:
            # Until now there was no source to read. Counted from the launch, its first batch would be late at once.
            self._idle_at = utc_now()

    def _checkpoint_ref(self) -> CheckpointRef:
        found = self._documents.checkpoint.read()
        if found is not None:
            return found
        first = CheckpointRef(
            job=self._job,
            generation=1,
            path=checkpoint_key(self._job, 1),
            since=utc_now(),
            reason="first start",
        )
        try:
            self._documents.checkpoint.create(first)
        except Conflict:
            return self._checkpoint_ref()
        return first

    def _guard(self) -> None:
        """Raise if this driver may not write: called before every write to a table."""
        if self._fatal is not None:
            raise self._fatal
        try:
            self._lease.renew()
        except StreamwardenError as error:
            # If the documents are unreachable, this try of the batch fails; the next one checks again.
            if error.code == "LEASE_LOST":
                self._fatal = error
            raise

    def _committed(self, done: BatchProgress) -> None:
        if done.source is not None and done.source.cut and self._query is not None:
            self._query.wake()
        if self._metrics is not None:
            self._metrics.batch(done)
        if self._recorder is not None:
            self._recorder.add(done)
        if self._arrivals is not None:
            self._arrivals.batch_ended(done)
        # Last: the heartbeat, written in parallel, reports only what is recorded.
        first, self._writes = not self._writes, True
        self._batch = done.batch
        self._idle = False
        # The tries of that batch: its report may come after the next batch's tries have begun.
        with self._counting:
            self._failures = max(self._failures - (done.tries - 1), 0)
        if self._state is DriverState.RUNNING:
            self._reason = f"batch {done.batch} committed"
        if first:
            # The process that started this driver waits for this batch: do not wait for the next heartbeat.
            self._say(self._state, self._reason)

    def _wake(self) -> None:
        if self._query is not None:
            self._query.wake()

    def _idled(self) -> None:
        self._idle = True
        self._idle_at = utc_now()

    def _request_stop(self, why: str) -> None:
        # First: the stop takes effect even if logging fails.
        self._stop.set()
        _log.info("stop: %s", why)

    def _say(self, state: DriverState, reason: str) -> None:
        self._state, self._reason = state, reason
        _log.info("%s: %s", state.value, reason)
        try:
            self._write_heartbeat()
        except StreamwardenError as error:
            # The next heartbeat repeats it.
            if not error.retryable:
                raise
            _log.warning("heartbeat: %s", error)

    def _beat(self) -> None:
        every = self._workspace.profile.heartbeat.total_seconds()
        poll_s = _STOP_POLL_S if self._workspace.s3 is None else _STOP_POLL_S3
        renewed = time.monotonic()
        trouble = ""
        told = False

        def pause_s() -> float:
            # Overdue is a heartbeat only after a failure, which must not be repeated at once.
            due_s = renewed + every - time.monotonic()
            return due_s if 0 < due_s < poll_s else poll_s

        while not self._ended.wait(pause_s() if told else 0):
            try:
                if not told:
                    # Only once: if it can't be written, the next heartbeat contains the then current state.
                    told = True
                    self._say(DriverState.STARTING, "lease taken")
                self._read_stop_request()
                if time.monotonic() - renewed >= every:
                    renewed = time.monotonic()
                    self._lease.renew()
                    self._write_heartbeat()
                trouble = ""
            except StreamwardenError as error:
                if self._ended.is_set():
                    return
                if error.code == "LEASE_LOST":
                    self._fatal = error
                    return
                # Logged once, not twice a second.
                if error.code != trouble:
                    _log.warning("heartbeat: %s", error)
                trouble = error.code
            except Exception as error:
                # No exception may end this thread: a working driver would count as silent, and be killed. If the
                # documents are unreachable, the lease expires, and the guard then rejects commits.
                if self._ended.is_set():
                    return
                # Also only once: a traceback twice a second fills a disk that may already be full.
                if repr(error) != trouble:
                    _log.exception("heartbeat")
                trouble = repr(error)

    def _read_stop_request(self) -> None:
        request = None if self._stop.is_set() else self._documents.stop(self._incarnation).read()
        if request is not None:
            self._request_stop(f"asked by {request.by}: {request.reason or 'no reason given'}")

    def _write_heartbeat(self) -> None:
        self._documents.heartbeat(self._incarnation).write(
            Heartbeat(
                incarnation=self._incarnation,
                at=utc_now(),
                started_at=self._started_at,
                state=self._state,
                reason=self._reason,
                process=self._process,
                generation=self._generation,
                digest=self._digest,
                batch=self._batch,
                failures=self._failures,
                idle=self._idle,
                idle_at=self._idle_at,
                query_ended=self._query_ended,
                versions=self._versions,
                notes=self._notes,
                metrics=self._export.address if self._export else "",
                landing=self._planner.state() if self._planner else None,
            )
        )

    def _finish(self, error: ErrorInfo | None) -> None:
        if self._arrivals is not None:
            self._arrivals.close()
        if self._ahead is not None:
            self._ahead.drop()
        if self._session is not None:
            # Before the lease is released: until then nobody else may write.
            end_jvm(self._session)
        # Before the exit is recorded: then every batch is in the table when the exit is visible.
        if self._recorder is not None:
            self._recorder.close(_LAST_ROWS_S)
        if self._export is not None:
            self._export.close(_LAST_METRICS_S)
        self._ended.set()
        now: datetime = utc_now()
        outcome = "failed" if error else "stopped"
        if error:
            _log.error("failed: [%s] %s\n  What to do: %s\n%s", error.code, error.what, error.remedy, error.traceback)
        try:
            self._documents.exit(self._incarnation).write(
                Exit(incarnation=self._incarnation, at=now, outcome=outcome, error=error, batch=self._batch)
            )
            self._lease.release()
        except (OSError, StreamwardenError) as unsaid:
            # The store is unavailable, or its disk full, which may be why this driver ends. Its supervisor sees a dead
            # driver, and starts the next.
            _log.error("its end could not be written down: %s", unsaid)
        _log.info("%s after batch %s", outcome, self._batch)


def _check_tables(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> None:
    """Reject tables that are gone or have damaged logs: rows that the checkpoint counts as written would be missing."""
    for sink in spec.sinks:
        forget_damaged_checkpoints(workspace, sink.table)
        check_output(workspace, spec.name, sink.table, known=sink.table in reference.tables)
    if isinstance(spec.source, DeltaSource):
        check_source(workspace, spec.source.table)


def _changed_by_others(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> list[str]:
    """Return messages about commits by which others changed rows of the outputs since the job's last batch."""
    if not reference.fenced or reference.outputs:
        # The tables are about to be put in place.
        return []
    notes = []
    for sink in spec.sinks:
        for change in DeltaLog(workspace.files, sink.table).changed_since(f"streamwarden/{spec.name}/"):
            by = f" ({change.operation})" if change.operation else ""
            notes.append(
                f"table {sink.table}: version {change.version}, by another writer, deleted or updated rows{by}; the job"
                " does not write these rows again"
            )
            _log.warning(notes[-1])
    return notes


def _check_fixed(spec: JobSpec, checkpoint: CheckpointReader) -> None:
    """Reject changes of what the checkpoint has fixed: Spark would silently ignore them, or die in the state store."""
    last = checkpoint.last_offset()
    if last is None or not checkpoint.has_state():
        return
    offsets = checkpoint.offsets(last)
    assert offsets is not None
    partitions = offsets.conf.get("spark.sql.shuffle.partitions")
    if partitions is not None and int(partitions) != spec.state.partitions:
        raise StreamwardenError(
            "STATE_PARTITIONS_FIXED",
            f"{spec.name}: state.partitions is {spec.state.partitions}, the checkpoint has {partitions}",
        )
    provider = offsets.conf.get("spark.sql.streaming.stateStore.providerClass")
    if provider is not None and provider != PROVIDERS[spec.state.backend]:
        raise StreamwardenError(
            "STATE_BACKEND_FIXED", f"{spec.name}: state.backend is {spec.state.backend}, the checkpoint has {provider}"
        )


def _places(workspace: Workspace, spec: JobSpec) -> Places:
    source, read = spec.source, ""
    if isinstance(source, DeltaSource):
        read = workspace.table(source.table)
    elif isinstance(source, FileSource):
        # Spark reads plans; the job itself reports which landed file is gone.
        read = workspace.uri(job_key(ARRIVALS, spec.name))
    return Places(read, tuple(workspace.table(sink.table) for sink in spec.sinks))
