"""One driver process: lease, session, query, heartbeat, requests, end."""

from __future__ import annotations

import functools
import json
import logging
import signal
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

from streamwarden import __version__
from streamwarden.driver.causes import Failure, shortened
from streamwarden.driver.executors import Executors
from streamwarden.driver.heartbeat import Heart
from streamwarden.driver.history import History
from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.job_session import adapt_session, start_session
from streamwarden.driver.jvm import is_orphaned, jvm_end, jvm_of, kill_jvm, stop_jvm
from streamwarden.driver.key_counts import KeyCounts
from streamwarden.driver.logs import RecordContext
from streamwarden.driver.memory import ProcessMemory
from streamwarden.driver.open_outputs import open_outputs
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import load_module, settings_for
from streamwarden.driver.pipeline.outputs import AUTHOR
from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.driver.pipeline.source import missing_source
from streamwarden.driver.progress import ProgressListener
from streamwarden.driver.queries import Queries, Start
from streamwarden.driver.reports import Reports
from streamwarden.driver.spare_keeper import SpareKeeper
from streamwarden.driver.start_checks import (
    check_first_start,
    check_fixed,
    check_spark,
    check_tables,
    check_version,
)
from streamwarden.driver.tries import Tries
from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import check_described
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.source_spec import DeltaSource, FileSource
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, DriverState, Exit
from streamwarden.runtime import work_dirs
from streamwarden.runtime.failure_signatures import Places
from streamwarden.runtime.polling import Deadline
from streamwarden.savepoints.older_copies import check_read
from streamwarden.savepoints.writers import writer_versions
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import parallelism_of, with_parallelism
from streamwarden.store.layout import ARRIVALS, checkpoint_key, job_key
from streamwarden.store.value_schemas import check_schema_files
from streamwarden.store.workspace import Workspace

if TYPE_CHECKING:
    from streamwarden.driver.ahead import QueryAhead
    from streamwarden.driver.standby import Prepared

__all__ = ["Driver"]

_log = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Between two attempts to write down its end while the store is away."""


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
        self._given_up: Exit | None = None
        self._reports = Reports(workspace, job, incarnation, self._heart)
        self._tries = Tries(self._heart, self._logs, self._reports.failed_try)
        self._prepared = prepared.session if prepared is not None else None
        self._ahead = prepared.ahead if prepared is not None else None
        self._session: SparkSession | None = None
        self._queries: Queries | None = None
        self._keeper: SpareKeeper | None = None
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
            error = ErrorInfo.of(raised, traceback=shortened(self._tries.trace or traceback.format_exc()))
        except Exception as raised:
            cause = self._tries.explain(Failure.of(raised))
            wrapped = StreamwardenError(cause.code or "DRIVER_FAILED", cause.line, remedy=cause.remedy)
            error = ErrorInfo.of(wrapped, traceback=shortened(cause.trace))
        self._finish(error)
        return 1 if error else 0

    def _run(self) -> None:
        desired = self._documents.desired.read()
        if desired is None:
            raise StreamwardenError("NOT_DEPLOYED", self._job)
        spec, self._heart.digest = desired.spec, desired.digest
        if not self._claim():
            return
        reference = self._checkpoint_ref()
        self._heart.generation = reference.generation
        checkpoint = CheckpointReader(self._workspace.storage, reference.path)
        if self._is_suspended():
            self._heart.batch = checkpoint.last_commit()
            return
        if reference.partitions is not None:
            spec = with_parallelism(spec, parallelism_of(spec).model_copy(update={"partitions": reference.partitions}))
        self._reports.open_recorder()
        _log.info("lease taken; generation %d, checkpoint %s", reference.generation, reference.path)
        module = self._checked(spec, reference, checkpoint)
        self._keeper = SpareKeeper(self._workspace, desired.spec, self._heart.stop)
        session = self._open_session(spec)
        history = History(self._workspace, spec, reference.path, self._heart.guard)
        first = spec if history.is_read else spec.on_history()
        executors = Executors(session)
        self._await(executors.missing)
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
        start = Start(self._workspace, spec, module, reference, checkpoint, session, executors, history)
        queries = self._queries = Queries(start, self._heart, self._tries, self._take_ahead, self._author)
        queries.open(first)
        writer = BatchWriter(
            spec,
            module,
            opened.sinks,
            checkpoint,
            self._heart.guard,
            serving=self._serving,
            topics=opened.topics,
            check=queries.check_topics,
            lookups=functools.partial(_versions, self._workspace, spec),
            refused=queries.planner.refused if queries.planner else None,
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
            queries.backlogs,
            keys=KeyCounts(session, self._workspace.uri(reference.path)).after,
            memory=ProcessMemory(),
            after=reference.base_batch,
            files=spec.source is not None and spec.source is spec.files_source,
            sources=lambda: queries.sources,
        )
        session.streams.addListener(listener)
        query = queries.run(writer)
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

    def _claim(self) -> bool:
        """Acquire the lease, and begin to beat; return False if this driver was given up before it came to run."""
        # Waits until the lease of a holder that died on another machine expires; a live holder ends this driver.
        lease = self._heart.lease.acquire(wait=self._workspace.profile.lease + timedelta(seconds=2))
        self._epoch = lease.epoch
        # Its launch may have failed for the one who asked, as when an answer got lost: then another start follows.
        self._given_up = self._documents.exit(self._incarnation).read()
        if self._given_up is not None:
            _log.warning("not run: at %s its end was written: %s", self._given_up.at, self._given_up.error or "stopped")
            return False
        self._reports.open_metrics()
        self._heart.start()
        # Only after the lease is acquired: the JVM of a killed driver may still have worked there.
        for dead in work_dirs.sweep(self._workspace, self._job):
            _log.info("removed the scratch folder of driver %s", dead)
        return True

    def _checked(self, spec: JobSpec, reference: CheckpointRef, checkpoint: CheckpointReader) -> StreamingJob:
        """Load the job's module, and check what can be checked before Spark starts."""
        module = load_module(spec)
        self._tries.job_file = getattr(module, "__file__", None)
        self._tries.places = _places(self._workspace, spec)
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
        self._tries.session = self._session
        # Each version of a table names its author in the table's history.
        self._session.conf.set(AUTHOR, self._author)
        jvm = jvm_of(self._heart.process)
        if jvm is not None:
            # A killed driver's JVM lives on for a moment; its successor waits until it is gone.
            self._heart.lease.renew(jvm=jvm)
        return self._session

    def _take_ahead(self) -> QueryAhead | None:
        """Return the query that was started before the lease was acquired, once."""
        ahead, self._ahead = self._ahead, None
        return ahead

    @property
    def _author(self) -> str:
        return json.dumps({"incarnation": self._incarnation, "epoch": self._epoch})

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
        self._reports.committed(done)
        if self._queries is not None:
            self._queries.committed(done)
        # Last: the heartbeat, written in parallel, reports only what is recorded.
        first, self._writes = not self._writes, True
        self._heart.batch = done.batch
        self._heart.idle = False
        self._tries.committed(done.tries)
        if self._heart.state is DriverState.RUNNING:
            self._heart.reason = f"batch {done.batch} committed"
            if self._queries is not None and (progress := self._queries.history_progress):
                self._heart.reason += f"; {progress}"
        if first:
            # The process that started this driver waits for this batch: do not wait for the next heartbeat.
            self._heart.say(self._heart.state, self._heart.reason)

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
        if self._queries is not None:
            self._queries.close()
        if (ahead := self._take_ahead()) is not None:
            ahead.drop()
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
        self._reports.close()
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
        ended = Exit(incarnation=self._incarnation, at=now, outcome=outcome, error=error, batch=self._heart.batch)
        # For as long as nobody else can have the lease: a store that is away may be why this driver ends.
        deadline = Deadline(self._workspace.profile.lease.total_seconds())
        while True:
            try:
                if self._given_up is None:
                    self._documents.exit(self._incarnation).write(ended)
                self._heart.lease.release()
                break
            except (OSError, StreamwardenError) as unsaid:
                if getattr(unsaid, "code", None) not in OUTAGES or not deadline.pause(_AGAIN_S):
                    # The supervisor sees a dead driver, and starts the next.
                    _log.error("its end could not be written down: %s", unsaid)
                    break
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
