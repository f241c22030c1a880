"""The queries of a driver: started, watched, and started again after a failure, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from streamwarden.driver.ahead import QueryAhead
from streamwarden.driver.backlog import Backlog, backlog_of
from streamwarden.driver.causes import Failure
from streamwarden.driver.executors import Executors
from streamwarden.driver.heartbeat import Heart
from streamwarden.driver.history import History
from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.kafka import TopicIds, check_topics
from streamwarden.driver.pipeline.arrivals import Arrivals
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import output_mode
from streamwarden.driver.pipeline.outputs import keep_sources
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.source import QuerySource, job_rows, query_sources
from streamwarden.driver.pipeline.transformed import column_notes, refused_query
from streamwarden.driver.start_checks import check_sources
from streamwarden.driver.tries import Tries
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.landing.planner import Planner
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import FileSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, DriverState
from streamwarden.store.workspace import Workspace

__all__ = ["Queries", "Start", "report_executors"]

_log = logging.getLogger(__name__)

_WATCH_S = 0.5
"""Seconds between two looks at whether the query has failed: each is a call to the JVM, all day long."""

_EXECUTORS_S = 5.0
"""Seconds between two looks at a cluster's executors: a call to the JVM each."""


@dataclass(frozen=True)
class Start:
    """What each query of a driver starts from.

    Parameters
    ----------
    workspace, spec, module
        The job, with the parallelism of its checkpoint.
    reference, checkpoint
        The checkpoint.
    session
        The session; a query has a copy of it.
    executors
        The cluster's executors.
    history
        Which part of the job's input is to be read.
    """

    workspace: Workspace
    spec: JobSpec
    module: StreamingJob
    reference: CheckpointRef
    checkpoint: CheckpointReader
    session: SparkSession
    executors: Executors
    history: History


class Queries:
    """Runs a job's query until a stop.

    Parameters
    ----------
    start
        What a query starts from.
    heart
        The driver's heartbeat.
    tries
        Decides what becomes of a failure.
    take_ahead
        Returns, once, the query that was started before the lease was acquired, if there is one.
    author
        The driver, for the history of its tables.

    Attributes
    ----------
    backlogs
        What the sources have that is not read yet, by name; changes when the history is read.
    sources
        The sources of the query that runs.
    planner
        Plans the batches of landed files; None for other sources.
    """

    def __init__(
        self, start: Start, heart: Heart, tries: Tries, take_ahead: Callable[[], QueryAhead | None], author: str
    ) -> None:
        self._start = start
        self._heart = heart
        self._tries = tries
        self._take_ahead = take_ahead
        self._author = author
        self._query: RunningQuery | None = None
        self._arrivals: Arrivals | None = None
        # Kafka's ids of the topics that this process has read.
        self._topics: dict[str, str] = {}
        self._topic_ids: TopicIds | None = None
        self.planner: Planner | None = None
        self.sources: list[QuerySource] = []
        self.backlogs: dict[str, Backlog] = {}

    def open(self, first: JobSpec) -> None:
        """Open the inputs of the first query, which may read the history only."""
        self._open_backlogs(first)
        spec = self._start.spec
        if spec.kafka_sources:
            self._topics = dict(self._start.reference.topics)
            self._topic_ids = TopicIds(self._start.session, spec.kafka_sources.values())

    def run(self, writer: BatchWriter) -> RunningQuery | None:
        """Run queries, one after the other if one fails, until a stop; return the last one if it still runs."""
        spec = self._start.spec
        while True:
            failure: Failure | None
            try:
                query = self._begin(writer)
            except StreamwardenError as error:
                if not error.retryable:
                    raise
                failure = Failure.of(error)
            except AnalysisException as error:
                raise self._tries.not_to_be_opened(spec, error) from error
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
            self._tries.survive(spec, failure)
            if self._heart.stop.is_set():
                return None

    def committed(self, done: BatchProgress) -> None:
        """Wake the query after a batch that its limit cut, and tell the files that have landed."""
        if done.source is not None and done.source.cut:
            self.wake()
        if self._arrivals is not None:
            self._arrivals.batch_ended(done)

    @property
    def history_progress(self) -> str:
        """How much of the history is read; empty without one, and once it is read."""
        return self._start.history.progress

    def wake(self) -> None:
        """Have the next batch begin at once."""
        if self._query is not None:
            self._query.wake()

    def check_topics(self) -> None:
        """Reject a batch of a topic that was created anew; called between its read and its writes."""
        if self._topic_ids is not None:
            found = self._topic_ids.now()
            check_topics(self._start.spec, found, self._topics)
            # Topics that came to match a pattern.
            self._topics.update(found)

    def close(self) -> None:
        """Look for new files no more."""
        if self._arrivals is not None:
            self._arrivals.close()

    def _open_backlogs(self, spec: JobSpec) -> None:
        self.backlogs.update({name: self._open_backlog(spec, source) for name, source in spec.inputs.items()})

    def _open_backlog(self, spec: JobSpec, source: Source) -> Backlog:
        workspace = self._start.workspace
        if not isinstance(source, FileSource):
            return backlog_of(workspace, source)
        self.planner = Planner(workspace, spec.name, source, self._start.reference, self._heart.guard)
        self._heart.landing = self.planner.state
        self._arrivals = Arrivals(self.planner, spec.trigger.interval.total_seconds(), self.wake)
        self._arrivals.start()
        return self.planner

    def _begin(self, writer: BatchWriter) -> RunningQuery:
        history = self._start.history
        was, now = history.is_read, history.begin(self._start.session)
        if history.is_read != was:
            self._open_backlogs(now)
        writer.hurry.clear()
        return self._ahead(writer) or self._new(now, writer)

    def _ahead(self, writer: BatchWriter) -> RunningQuery | None:
        """Return the query that was started before the lease was acquired, if it is the one to run."""
        ahead = self._take_ahead()
        if ahead is None:
            return None
        if ahead.checkpoint != self._start.reference.path:
            ahead.drop()
            return None
        self.sources = ahead.sources
        return ahead.release(writer, self._author)

    def _new(self, spec: JobSpec, writer: BatchWriter) -> RunningQuery:
        start, heart = self._start, self._heart
        topics = self._topic_ids.now() if self._topic_ids is not None else {}
        if start.checkpoint.last_offset() is not None:
            check_topics(spec, topics, self._topics)
        self._topics.update(topics)
        rows = job_rows(start.session, start.workspace, spec, start.module)
        for note in column_notes(spec, start.module, rows):
            _log.warning(note)
            heart.notes = [*(one for one in heart.notes if one != note), note]
        self.sources = query_sources(rows)
        names = [one.name for one in self.sources]
        check_sources(spec, names, start.reference.sources)
        keep_sources(start.workspace, spec.name, names, topics, guard=heart.guard)
        if start.session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true":
            heart.guard()
            owed = begin_no_data_batch(start.workspace.storage, start.reference.path)
            if owed is not None:
                _log.info("batch %d has no input: the one before it moved the watermark", owed)
        path = start.workspace.uri(start.reference.path)
        try:
            return RunningQuery(spec, rows, writer, path, start.checkpoint, output_mode(start.module))
        except AnalysisException as error:
            known = refused_query(spec, start.module, rows, error)
            if known is None:
                raise
            raise known from error

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
        history, looked = self._start.history, None
        while not self._heart.stop.wait(_WATCH_S):
            try:
                self._heart.check()
            except StreamwardenError:
                query.abandon()
                raise
            failure = query.failure()
            if failure is not None:
                return failure
            report_executors(self._heart, self._start.executors.missing(every=_EXECUTORS_S))
            if not history.is_read and self._heart.batch != looked:
                batch = self._heart.batch
                # In an outage of the store, the next look may find out.
                with suppress(OSError, StreamwardenError):
                    if history.is_all_read:
                        return None
                    looked = batch
        return None


def report_executors(heart: Heart, missing: str | None) -> None:
    """Report WAITING while a cluster has taken all executors: a restart would not bring any."""
    if missing is not None and heart.state is DriverState.RUNNING:
        heart.say(DriverState.WAITING, missing)
    elif missing is None and heart.state is DriverState.WAITING:
        heart.idle_at = utc_now()
        heart.say(DriverState.RUNNING, "the cluster has given executors again")
