"""One driver process: lease, session, query, heartbeat, requests, end."""

from __future__ import annotations

import functools
import json
import logging
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streamwarden import __version__
from streamwarden.driver.backlog import Backlog, backlog_of
from streamwarden.driver.causes import Cause, Failure, explain, headline, shortened
from streamwarden.driver.executors import Executors
from streamwarden.driver.export import Export, open_export
from streamwarden.driver.heartbeat import Heart
from streamwarden.driver.history import History
from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.job_session import adapt_session, start_session
from streamwarden.driver.jvm import (
    is_context_stopped,
    is_orphaned,
    is_unanswered,
    jvm_end,
    jvm_of,
    kill_jvm,
    stop_jvm,
)
from streamwarden.driver.kafka import TopicIds, check_topics
from streamwarden.driver.key_counts import KeyCounts
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.memory import ProcessMemory
from streamwarden.driver.metrics import DriverMetrics, DriverView
from streamwarden.driver.open_outputs import open_outputs
from streamwarden.driver.pipeline.arrivals import Arrivals
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import load_module, output_mode, settings_for
from streamwarden.driver.pipeline.outputs import AUTHOR, keep_sources
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.driver.pipeline.source import QuerySource, job_rows, missing_source, query_sources
from streamwarden.driver.pipeline.transformed import column_notes, refused_query
from streamwarden.driver.progress import ProgressListener
from streamwarden.driver.recorder import BatchRecorder
from streamwarden.driver.spare_keeper import SpareKeeper
from streamwarden.driver.start_checks import (
    check_first_start,
    check_fixed,
    check_sources,
    check_spark,
    check_tables,
    check_version,
)
from streamwarden.errors import CATALOGUE, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import check_described
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.landing.planner import Planner
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.source_spec import DeltaSource, FileSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, DriverState, Exit
from streamwarden.model.supervision import Supervision
from streamwarden.runtime import work_dirs
from streamwarden.runtime.failure_signatures import Places
from streamwarden.savepoints.older_copies import check_read
from streamwarden.savepoints.take import writer_versions
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import parallelism_of, with_parallelism
from streamwarden.store.layout import ARRIVALS, checkpoint_key, job_key
from streamwarden.store.value_schemas import check_schema_files
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import observe

if TYPE_CHECKING:
    from streamwarden.driver.standby import Prepared

__all__ = ["Driver"]

_log = logging.getLogger(__name__)

_WATCH_S = 0.5
"""Seconds between two looks at whether the query has failed: each is a call to the JVM, all day long."""

_EXECUTORS_S = 5.0
"""Seconds between two looks at a cluster's executors: a call to the JVM each."""

_LAST_METRICS_S = 5.0
_LAST_ROWS_S = 20.0
"""Maximum seconds that the end waits for a collector, and for the table of batches. The lease is renewed meanwhile."""

_NOT_HERE = ("OUT_OF_MEMORY", "JVM_DIED", "SPARK_CONTEXT_LOST")
"""Transient failures that this process can't survive: its JVM or its SparkContext is gone, or about to go."""

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
        self._heart = Heart(workspace, self._documents, incarnation)
        self._logs = workspace.log_dir(job, incarnation)
        self._job = job
        self._epoch = 0
        self._writes = False
        self._recorded = False
        # The listener's thread resets the count of failures that this thread increments.
        self._counting = threading.Lock()
        # The batch after which the source's columns were read again; none yet.
        self._read_again: tuple[int | None] | None = None
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
        self._history: History | None = None
        self._executors: Executors | None = None
        self._keeper: SpareKeeper | None = None
        self._sources: list[QuerySource] = []
        # Kafka's ids of the topics that this process has read.
        self._topics: dict[str, str] = {}
        self._topic_ids: TopicIds | None = None
        self._serving: dict[str, ServingWriter] = {}

    def run(self) -> int:
        """Run, and return the process's exit code: 0 stopped, 1 failed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: self._heart.request_stop(f"signal {got}"))
        error: ErrorInfo | None = None
        try:
            self._run()
            if not self._heart.query_ended:
                self._check_jvm()
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
        spec, self._heart.digest = desired.spec, desired.digest
        self._claim()
        reference = self._checkpoint_ref()
        self._heart.generation = reference.generation
        checkpoint = CheckpointReader(self._workspace.storage, reference.path)
        if self._is_suspended():
            self._heart.batch = checkpoint.last_commit()
            return
        if reference.partitions is not None:
            spec = with_parallelism(spec, parallelism_of(spec).model_copy(update={"partitions": reference.partitions}))
        self._open_recorder()
        _log.info("lease taken; generation %d, checkpoint %s", reference.generation, reference.path)
        module = self._checked(spec, reference, checkpoint)
        self._keeper = SpareKeeper(self._workspace, desired.spec, self._heart.stop)
        session = self._open_session(spec)
        self._history = History(self._workspace, spec, reference.path, self._heart.guard)
        first = spec if self._history.is_read else spec.on_history()
        self._executors = Executors(session)
        self._await(self._executors.missing)
        for waited in (spec, first):
            self._await(functools.partial(missing_source, session, self._workspace, waited))
        if self._heart.stop.is_set():
            return
        opened = open_outputs(
            session,
            self._workspace,
            spec,
            module,
            reference,
            checkpoint,
            epoch=self._epoch,
            went_back=desired.went_back,
            guard=self._heart.guard,
        )
        self._heart.notes, self._serving = opened.notes, opened.serving
        backlogs = self._open_backlogs(first, reference)
        if spec.kafka_sources:
            self._topics, self._topic_ids = dict(reference.topics), TopicIds(session, spec.kafka_sources.values())
        writer = BatchWriter(
            spec,
            module,
            opened.sinks,
            checkpoint,
            self._heart.guard,
            serving=self._serving,
            topics=opened.topics,
            check=functools.partial(self._check_topics, spec),
            lookups=functools.partial(_versions, self._workspace, spec),
            refused=self._planner.refused if self._planner else None,
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
            lambda: self._heart.failures + 1,
            backlogs,
            keys=KeyCounts(session, self._workspace.uri(reference.path)).after,
            memory=ProcessMemory(),
            after=reference.base_batch,
            files=spec.source is not None and spec.source is spec.files_source,
            sources=lambda: self._sources,
        )
        session.streams.addListener(listener)

        def start() -> RunningQuery:
            assert self._history is not None
            was, now = self._history.is_read, self._history.begin(session)
            if self._history.is_read != was:
                backlogs.update(self._open_backlogs(now, reference))
            writer.hurry.clear()
            return self._query_ahead(reference, writer) or self._start_query(
                session, now, module, reference, writer, checkpoint
            )

        query = self._run_query(spec, start)
        if query is None:
            return
        self._check_jvm()
        self._heart.say(DriverState.STOPPING, "finishing the batch in flight")
        query.stop()
        # Spark reports the query's end from another thread: a savepoint may be taken before that.
        listener.catch_up()
        self._heart.batch = checkpoint.last_commit()
        self._heart.query_ended = True
        self._heart.say(
            DriverState.STOPPING, f"its query has ended after batch {self._heart.batch}, and Spark is ending"
        )

    def _check_jvm(self) -> None:
        """Raise if the JVM that has started this process has ended: then this stop is not one that somebody wants.

        YARN sends SIGTERM to the rest of a container whose first process has ended.
        """
        if is_orphaned() and (ended := jvm_end(self._session, self._logs, gone=False)) is not None:
            raise StreamwardenError(*ended)

    def _claim(self) -> None:
        """Acquire the lease, and begin to beat."""
        # Waits until the lease of a holder that died on another machine expires; a live holder ends this driver.
        lease = self._heart.lease.acquire(wait=self._workspace.profile.lease + timedelta(seconds=2))
        self._epoch = lease.epoch
        self._open_metrics()
        self._heart.start()
        # Only after the lease is acquired: the JVM of a killed driver may still have worked there.
        for dead in work_dirs.sweep(self._workspace, self._job):
            _log.info("removed the scratch folder of driver %s", dead)

    def _checked(self, spec: JobSpec, reference: CheckpointRef, checkpoint: CheckpointReader) -> StreamingJob:
        """Load the job's module, and check what can be checked before Spark starts."""
        module = load_module(spec)
        self._job_file = getattr(module, "__file__", None)
        self._places = _places(self._workspace, spec)
        # Before this driver reports its own: a checkpoint without a version may have nothing but the newest report.
        written = reference.version or int(writer_versions(self._workspace, self._job).get("job", 0)) or None
        check_version(spec, module.VERSION, written, checkpoint)
        self._heart.versions = {
            "spark": pyspark.__version__,
            "delta": version("delta-spark"),
            "streamwarden": __version__,
            "job": str(module.VERSION),
        }
        settings_for(spec, module)
        check_spark(self._documents, reference)
        checkpoint.check()
        check_described(self._workspace.storage, reference.path)
        check_schema_files(self._workspace.config, spec)
        check_tables(self._workspace, spec, reference)
        check_read(self._workspace, spec, reference, checkpoint)
        check_fixed(spec, checkpoint)
        self._heart.batch = checkpoint.last_commit()
        return module

    def _open_backlogs(self, spec: JobSpec, reference: CheckpointRef) -> dict[str, Backlog]:
        return {name: self._open_backlog(spec, source, reference) for name, source in spec.inputs.items()}

    def _open_backlog(self, spec: JobSpec, source: Source, reference: CheckpointRef) -> Backlog:
        if not isinstance(source, FileSource):
            return backlog_of(self._workspace, source)
        self._planner = Planner(self._workspace, spec.name, source, reference, self._heart.guard)
        self._heart.landing = self._planner.state
        self._arrivals = Arrivals(self._planner, spec.trigger.interval.total_seconds(), self._wake)
        self._arrivals.start()
        return self._planner

    def _run_query(self, spec: JobSpec, start: Callable[[], RunningQuery]) -> RunningQuery | None:
        """Run queries, one after the other if one fails, until a stop; return the last one if it still runs."""
        while True:
            failure: Failure | None
            try:
                query = start()
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
                self._heart.say(DriverState.RUNNING, "batches every trigger interval")
                failure = self._watch(query) or self._end_history(query)
                if failure is None and self._heart.stop.is_set():
                    return query
            if failure is None:
                continue
            self._survive(spec, failure)
            if self._heart.stop.is_set():
                return None

    def _start_query(
        self,
        session: SparkSession,
        spec: JobSpec,
        module: StreamingJob,
        reference: CheckpointRef,
        writer: BatchWriter,
        checkpoint: CheckpointReader,
    ) -> RunningQuery:
        topics = self._topic_ids.now() if self._topic_ids is not None else {}
        if checkpoint.last_offset() is not None:
            check_topics(spec, topics, self._topics)
        self._topics.update(topics)
        rows = job_rows(session, self._workspace, spec, module)
        for note in column_notes(spec, module, rows):
            _log.warning(note)
            self._heart.notes = [*(one for one in self._heart.notes if one != note), note]
        self._sources = query_sources(rows)
        names = [one.name for one in self._sources]
        check_sources(spec, names, reference.sources)
        keep_sources(self._workspace, spec.name, names, topics, guard=self._heart.guard)
        if session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true":
            self._heart.guard()
            owed = begin_no_data_batch(self._workspace.storage, reference.path)
            if owed is not None:
                _log.info("batch %d has no input: the one before it moved the watermark", owed)
        path = self._workspace.uri(reference.path)
        try:
            return RunningQuery(spec, rows, writer, path, checkpoint, output_mode(module))
        except AnalysisException as error:
            known = refused_query(spec, module, rows, error)
            if known is None:
                raise
            raise known from error

    def _check_topics(self, spec: JobSpec) -> None:
        """Reject a batch of a topic that was created anew; called between its read and its writes."""
        if self._topic_ids is not None:
            found = self._topic_ids.now()
            check_topics(spec, found, self._topics)
            # Topics that came to match a pattern.
            self._topics.update(found)

    def _query_ahead(self, reference: CheckpointRef, writer: BatchWriter) -> RunningQuery | None:
        """Return the query that was started before the lease was acquired, once, if it is the one to run."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.checkpoint != reference.path:
            ahead.drop()
            return None
        self._sources = ahead.sources
        return ahead.release(writer, self._author)

    def _end_history(self, query: RunningQuery) -> Failure | None:
        """Stop a query that has read all of the history, unless the job is to stop; return its failure, if it has."""
        if self._heart.stop.is_set():
            return None
        try:
            query.stop()
        except StreamwardenError as error:
            return Failure.of(error)
        return None

    def _watch(self, query: RunningQuery) -> Failure | None:
        """Wait; return None if a stop was requested or the history is read, or the failure that ended the query."""
        looked = None
        while not self._heart.stop.wait(_WATCH_S):
            try:
                self._heart.check()
            except StreamwardenError:
                query.abandon()
                raise
            failure = query.failure()
            if failure is not None:
                return failure
            if self._executors is not None:
                self._report_executors(self._executors.missing(every=_EXECUTORS_S))
            if self._history is not None and not self._history.is_read and self._heart.batch != looked:
                batch = self._heart.batch
                # In an outage of the store, the next look may find out.
                with suppress(OSError, StreamwardenError):
                    if self._history.is_all_read:
                        return None
                    looked = batch
        return None

    def _report_executors(self, missing: str | None) -> None:
        """Report WAITING while a cluster has taken all executors: a restart would not bring any."""
        if missing is not None and self._heart.state is DriverState.RUNNING:
            self._heart.say(DriverState.WAITING, missing)
        elif missing is None and self._heart.state is DriverState.WAITING:
            self._heart.idle_at = utc_now()
            self._heart.say(DriverState.RUNNING, "the cluster has given executors again")

    def _survive(self, spec: JobSpec, failure: Failure) -> None:
        """Count a failed try and wait; raise after too many consecutive failures, or if another try can't help."""
        self._heart.check()
        with self._counting:
            self._heart.failures += 1
        if self._metrics is not None:
            self._metrics.failed_try()
        cause = self._explain(failure)
        _log.error("try %d of the batch after %s failed: %s", self._heart.failures, self._heart.batch, cause.trace)
        hopeless = cause.code is not None and not CATALOGUE[cause.code].retryable
        # Independent of earlier failures and of the job's limit: this is not a failure of the job.
        again = cause.code in _READ_AGAIN and self._read_again != (self._heart.batch,)
        if again:
            self._read_again = (self._heart.batch,)
            hopeless = False
        if hopeless or cause.code in _NOT_HERE:
            self._trace = cause.trace
            raise StreamwardenError(cause.code or "BATCH_FAILED", f"{spec.name}: {cause.line}", remedy=cause.remedy)
        if self._heart.failures > spec.failures.tolerable_consecutive and not again:
            self._trace = cause.trace
            what = f"{spec.name}: {self._heart.failures} failed tries in a row; the last: {cause.line}"
            raise StreamwardenError(cause.code or "BATCH_FAILED", what, remedy=cause.remedy)
        wait = spec.failures.wait_after(self._heart.failures).total_seconds()
        self._heart.say(DriverState.RETRYING, f"try {self._heart.failures} failed, next in {wait:.0f} s: {cause.line}")
        self._heart.stop.wait(wait)

    def _explain(self, failure: Failure) -> Cause:
        cause = explain(failure, job_file=self._job_file, places=self._places)
        # After a JVM's death every call raises a different, useless error; its log may contain the cause.
        gone = not failure.text or is_unanswered(failure.error)
        ended = jvm_end(self._session, self._logs, gone=gone)
        if ended is not None:
            return Cause(*ended, cause.trace)
        if is_context_stopped(self._session):
            return Cause("SPARK_CONTEXT_LOST", f"the SparkContext is stopped: {cause.line}", cause.trace)
        return cause

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
            remedy = "Correct this line of the module, then deploy the job again."
            return StreamwardenError(code, f"{spec.name}: {cause.line}", remedy=remedy, retryable=False)
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
        self._session = self._prepared
        if self._session is None:
            self._session = start_session(self._workspace, spec, self._incarnation)
        else:
            adapt_session(self._session, self._workspace, spec)
        # Each version of a table names its author in the table's history.
        self._session.conf.set(AUTHOR, self._author)
        jvm = jvm_of(self._heart.process)
        if jvm is not None:
            # A killed driver's JVM lives on for a moment; its successor waits until it is gone.
            self._heart.lease.renew(jvm=jvm)
        return self._session

    @property
    def _author(self) -> str:
        return json.dumps({"incarnation": self._incarnation, "epoch": self._epoch})

    def _open_metrics(self) -> None:
        self._export = open_export(self._workspace.profile.metrics, self._job, self._incarnation)
        if self._export is not None:
            self._heart.metrics = self._export.address
            self._metrics = DriverMetrics(self._export.provider, self._job, self._view, self._health)

    def _view(self) -> DriverView:
        return DriverView(self._heart.state, self._heart.generation, self._heart.failures, self._heart.idle)

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
            self._recorder = BatchRecorder(self._workspace, self._job, self._incarnation, self._heart.generation, spec)
            self._recorder.start()

    def _await(self, missing_now: Callable[[], str | None]) -> None:
        """Wait until nothing is missing any more, or until a stop."""
        while (missing := missing_now()) is not None:
            if (self._heart.state, self._heart.reason) != (DriverState.WAITING, missing):
                self._heart.say(DriverState.WAITING, missing)
            if self._heart.stop.wait(0.5):
                return
            self._heart.check()
        if self._heart.state is DriverState.WAITING:
            # Until now there was no source to read, or no executor. Counted from the launch, its first batch would be
            # late at once.
            self._heart.idle_at = utc_now()

    def _checkpoint_ref(self) -> CheckpointRef:
        found = self._documents.checkpoint.read()
        if found is not None:
            return found
        check_first_start(self._workspace, self._job)
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

    def _committed(self, done: BatchProgress) -> None:
        self._keep_spares()
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
        self._heart.batch = done.batch
        self._heart.idle = False
        # The tries of that batch: its report may come after the next batch's tries have begun.
        with self._counting:
            self._heart.failures = max(self._heart.failures - (done.tries - 1), 0)
        if self._heart.state is DriverState.RUNNING:
            self._heart.reason = f"batch {done.batch} committed"
            if self._history is not None and (progress := self._history.progress):
                self._heart.reason += f"; {progress}"
        if first:
            # The process that started this driver waits for this batch: do not wait for the next heartbeat.
            self._heart.say(self._heart.state, self._heart.reason)

    def _wake(self) -> None:
        if self._query is not None:
            self._query.wake()

    def _idled(self) -> None:
        self._heart.idle = True
        self._heart.idle_at = utc_now()
        self._keep_spares()

    def _keep_spares(self) -> None:
        # Only now: the start of another JVM would slow down this driver's first batch.
        if self._keeper is not None and self._keeper.ident is None:
            self._keeper.start()

    def _finish(self, error: ErrorInfo | None) -> None:
        if is_orphaned():
            # First: YARN kills the rest of the container within 250 ms.
            self._record_exit(error)
        if self._arrivals is not None:
            self._arrivals.close()
        if self._ahead is not None:
            self._ahead.drop()
        for server in self._serving.values():
            server.close()
        hanging = None
        if self._session is not None and not stop_jvm(self._session):
            hanging = self._session
        if hanging is not None and not self._heart.query_ended:
            # Before the lease is released: until then nobody else may write.
            kill_jvm(hanging)
            if is_orphaned():
                self._record_exit(error)
        # Before the exit is recorded: then every batch is in the table when the exit is visible.
        if self._recorder is not None:
            self._recorder.close(_LAST_ROWS_S)
        if self._export is not None:
            self._export.close(_LAST_METRICS_S)
        self._record_exit(error)
        if hanging is not None:
            # After the record: a cluster may kill this process too. The query has ended, so its JVM writes nothing.
            kill_jvm(hanging)

    def _record_exit(self, error: ErrorInfo | None) -> None:
        """Write the exit, and release the lease; once."""
        if self._recorded:
            return
        self._recorded = True
        self._heart.end()
        now: datetime = utc_now()
        outcome = "failed" if error else "stopped"
        if error:
            _log.error("failed: [%s] %s\n  What to do: %s\n%s", error.code, error.what, error.remedy, error.traceback)
        try:
            self._documents.exit(self._incarnation).write(
                Exit(incarnation=self._incarnation, at=now, outcome=outcome, error=error, batch=self._heart.batch)
            )
            self._heart.lease.release()
        except (OSError, StreamwardenError) as unsaid:
            # The store is unavailable, or its disk full, which may be why this driver ends. Its supervisor sees a dead
            # driver, and starts the next.
            _log.error("its end could not be written down: %s", unsaid)
        _log.info("%s after batch %s", outcome, self._heart.batch)


def _versions(workspace: Workspace, spec: JobSpec) -> dict[str, int]:
    """Return the newest version of each lookup table that has one."""
    newest = {name: DeltaLog(workspace.files, one.table).latest for name, one in spec.lookups.items()}
    return {name: version for name, version in newest.items() if version is not None}


def _places(workspace: Workspace, spec: JobSpec) -> Places:
    read = []
    for source in spec.inputs.values():
        if isinstance(source, DeltaSource):
            read.append(workspace.table(source.table, published=source.published))
        elif isinstance(source, FileSource):
            # Spark reads plans; the job itself reports which landed file is gone.
            read.append(workspace.uri(job_key(ARRIVALS, spec.name)))
    if spec.history is not None:
        read.append(workspace.table(spec.history.table))
    return Places(tuple(read), tuple(workspace.table(sink.table) for sink in spec.delta_sinks))
