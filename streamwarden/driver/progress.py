"""Convert Spark's progress events to the progress documents."""

from __future__ import annotations

import functools
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.listener import SourceProgress as SparkSource

from streamwarden.driver.backlog import Backlog
from streamwarden.driver.job_api import EVENT_ENDS
from streamwarden.driver.pipeline.batches import BatchCounts
from streamwarden.driver.pipeline.source import QuerySource
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.keyed_state.dataframe import KEYED_STATE
from streamwarden.model.progress import BatchProgress, OperatorProgress, Progress, SourceProgress, Totals
from streamwarden.model.record import utc_now
from streamwarden.store.documents import JobDocuments

__all__ = ["ProgressListener", "batch_progress", "late_rows"]

_log = logging.getLogger(__name__)
_KEPT = 50

# Of about forty metrics that Spark reports of each operator: those that a health rule or a person on call needs. They
# are sums over its stores, for one batch; the first two and the last are current values.
_STORE_METRICS = (
    "rocksdbPinnedBlocksMemoryUsage",
    "rocksdbSstFileSize",
    "rocksdbReadBlockCacheHitCount",
    "rocksdbReadBlockCacheMissCount",
    "rocksdbTotalCompactionLatencyMs",
    "rocksdbTotalBytesWrittenByCompaction",
    "rocksdbWriterStallLatencyMs",
    "rocksdbFilesCopied",
    "rocksdbBytesCopied",
    "loadedMapCacheHitCount",
    "loadedMapCacheMissCount",
    "stateOnCurrentVersionSizeBytes",
)


def late_rows(progress: StreamingQueryProgress, checkpoint: CheckpointReader) -> int:
    """Return how many input rows a batch dropped as late.

    Exact if the job observes its events' ends. Otherwise it is Spark's own count, which is exact for operators that
    receive input rows and not partial aggregates.
    """
    metrics = progress.observedMetrics or {}
    observed = metrics.get(EVENT_ENDS)
    if observed is None:
        dropped: int = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        keyed = metrics.get(KEYED_STATE)
        return dropped + (keyed["late"] or 0) if keyed else dropped
    histogram = observed["histogram"] or []
    # A batch drops rows by the watermark of the batch before it: its own only evicts state afterwards.
    before = checkpoint.offsets(progress.batchId - 1) if progress.batchId > 0 else None
    watermark_ms = before.watermark_ms if before else 0
    late: float = sum(bin_["y"] for bin_ in histogram if bin_["x"] * 1000 <= watermark_ms)
    return round(late)


def batch_progress(
    progress: StreamingQueryProgress,
    counts: BatchCounts | None,
    checkpoint: CheckpointReader,
    *,
    files: bool,
    keys: int | None = None,
    tries: int = 1,
    at: datetime | None = None,
    backlogs: Mapping[str, Backlog] | None = None,
    sources: Sequence[QuerySource] = (),
    memory: int | None = None,
) -> BatchProgress:
    """Translate a progress event.

    For a `files` source, Spark counts files; the input rows are then the rows that the job found in them. `keys` are
    those of keyed state. `at` is the time when the batch was done, by default now. `sources` are the
    query's sources in Spark's order, and `backlogs` measure them by name. `memory` is that of the driver's processes.
    """
    watermark = _time(progress.eventTime.get("watermark"))
    newest = _time(progress.eventTime.get("max"))
    if watermark is not None and watermark.timestamp() <= 0:
        watermark = None
    took = progress.durationMs
    duration_ms = took.get("triggerExecution", 0)
    rows_in, rate = progress.numInputRows, _finite(progress.processedRowsPerSecond)
    once = [one.numInputRows // source.scans for one, source in zip(progress.sources, sources, strict=False)]
    if files and counts is not None:
        rows_in = counts.computed
    elif once and len(once) == len(progress.sources):
        rows_in = sum(once)
    if rows_in != progress.numInputRows:
        rate = rows_in * 1000 / duration_ms if duration_ms else 0.0
    checkpoint_ms = took.get("walCommit", 0) + took.get("commitOffsets", 0)
    by_source = _by_source(progress, backlogs or {}, sources)
    operators = [
        OperatorProgress(
            id=number,
            name=operator.operatorName,
            rows=operator.numRowsTotal,
            keys=keys if operator.operatorName.startswith("transformWithState") else None,
            bytes=operator.memoryUsedBytes,
            metrics={name: value for name in _STORE_METRICS if (value := operator.customMetrics.get(name))},
        )
        # Spark reports them in the order of their ids, which start at 0.
        for number, operator in enumerate(progress.stateOperators)
    ]
    return BatchProgress(
        batch=progress.batchId,
        at=at or utc_now(),
        duration_ms=duration_ms,
        rows_in=rows_in,
        rows_out=counts.rows_out if counts else None,
        rows_quarantined=counts.rows_quarantined if counts else 0,
        rows_duplicate=counts.rows_duplicate if counts else 0,
        rows_per_second=rate,
        watermark=watermark,
        watermark_lag_s=(newest - watermark).total_seconds() if newest and watermark else None,
        late_rows=late_rows(progress, checkpoint),
        state_rows=sum(one.rows if one.keys is None else one.keys for one in operators),
        state_bytes=sum(operator.memoryUsedBytes for operator in progress.stateOperators),
        operators=operators,
        commit_ms=checkpoint_ms + (counts.sink_ms if counts else 0),
        checkpoint_ms=checkpoint_ms,
        tries=tries,
        source=SourceProgress.total(list(by_source.values())),
        sources=by_source if len(progress.sources) > 1 else {},
        process_bytes=memory,
        lookups=dict(counts.lookups) if counts else {},
    )


def _by_source(
    progress: StreamingQueryProgress, backlogs: Mapping[str, Backlog], sources: Sequence[QuerySource]
) -> dict[str, SourceProgress]:
    found = {}
    for own, source in zip(sources, progress.sources, strict=False):
        backlog = backlogs.get(own.name)
        one = _source(progress, source, own.scans, backlog) if backlog is not None else None
        if one is not None:
            found[own.name] = one
    return found


def _source(
    progress: StreamingQueryProgress, source: SparkSource, scans: int, backlog: Backlog
) -> SourceProgress | None:
    try:
        return backlog.after(source.startOffset, source.endOffset, source.latestOffset, source.numInputRows // scans)
    except (OSError, StreamwardenError, ValueError):
        # A missing backlog is worth a warning, but must not cost the batch's whole report.
        _log.warning("batch %d: the rest of the source is unknown", progress.batchId, exc_info=True)
        return None


class _JsonEvents(JStreamingQueryListener):
    """Receives a progress event from the JVM as one JSON text.

    PySpark's own listener calls the JVM for each field. There the end of each map and list is an exception, for which
    fourteen names are looked up in all jars. That is a sixth of the CPU time of a job with small batches.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        event = StreamingQueryProgress.fromJson(json.loads(jevent.progress().json()))
        self.pylistener.onQueryProgress(QueryProgressEvent(event))


@dataclass(frozen=True)
class _Told:
    """Spark's report of a batch, with what is only known at that moment: a store outage may delay its writing."""

    progress: StreamingQueryProgress
    at: datetime
    tries: int
    memory: int | None


class ProgressListener(StreamingQueryListener):
    """Writes the progress and totals documents after each batch.

    An exception here is logged and does not end the query: the job's work takes precedence over its reports.

    Parameters
    ----------
    documents, incarnation, generation
        The driver whose progress it is.
    checkpoint
        Reads the watermarks.
    counts
        Looks up the row counts of a batch.
    committed
        Called with each committed batch.
    idle
        Called when Spark found no new input in the source.
    tries
        Returns the number of tries of the batch that has just been committed. It includes failed tries of earlier
        batches for which `committed` was not yet called.
    backlogs
        Measure the sources, by name.
    sources
        Returns the query's sources, in Spark's order.
    keys
        Counts the keys of keyed state after a batch.
    memory
        Returns the memory of the driver's processes.
    after
        Batches up to this one belong to an earlier generation: a query that was started ahead has replayed the last.
    files
        Whether the source's rows are files.
    """

    def __init__(
        self,
        documents: JobDocuments,
        incarnation: str,
        generation: int,
        checkpoint: CheckpointReader,
        counts: Callable[[int], BatchCounts | None],
        committed: Callable[[BatchProgress], None],
        idle: Callable[[], None],
        tries: Callable[[], int],
        backlogs: Mapping[str, Backlog],
        *,
        sources: Callable[[], Sequence[QuerySource]],
        keys: Callable[[StreamingQueryProgress], int | None] = lambda _: None,
        memory: Callable[[], int | None] = lambda: None,
        after: int | None = None,
        files: bool,
    ) -> None:
        self._documents = documents
        self._incarnation = incarnation
        self._generation = generation
        self._checkpoint = checkpoint
        self._counts = counts
        self._committed = committed
        self._idle = idle
        self._tries = tries
        self._backlogs = backlogs
        self._sources = sources
        self._keys = keys
        self._memory = memory
        self._after = -1 if after is None else after
        self._files = files
        self._recent: list[BatchProgress] = []
        self._unreported: list[_Told] = []
        self._uncounted: list[BatchProgress] = []
        self._written = True
        self._lock = threading.Lock()

    @functools.cached_property
    def _jlistener(self) -> Any:
        jvm = SparkContext._jvm
        assert jvm is not None
        return jvm.PythonStreamingQueryListenerWrapper(_JsonEvents(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: the driver itself reports its start."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: ARG002, N802
        """Forward the event: a query without new input runs no batches, and is healthy."""
        self.catch_up()
        self._idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802
        """Report waiting batches: no other event may follow. The driver monitors its query itself."""
        self.catch_up()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a batch."""
        # Spark also sends events for triggers that found no input, with the id of the next batch.
        if "addBatch" not in event.progress.durationMs:
            self.catch_up()
            return
        with self._lock:
            others = sum(told.tries - 1 for told in self._unreported if told.progress.batchId > self._last)
            told = _Told(event.progress, utc_now(), max(self._tries() - others, 1), self._memory())
            self._unreported = [*self._unreported, told][-_KEPT:]
            self._report_all()

    @property
    def _last(self) -> int:
        """The last batch that was reported."""
        return self._recent[-1].batch if self._recent else self._after

    def catch_up(self) -> None:
        """Report what a store outage has delayed, if the store is available again."""
        with self._lock:
            self._report_all()

    def _report_all(self) -> None:
        """Report all waiting batches. What a store outage delays waits for the next event."""
        while self._unreported:
            told = self._unreported[0]
            try:
                self._report(told)
            except (OSError, StreamwardenError):
                _log.warning("batch %s: its progress could not be written yet", told.progress.batchId, exc_info=True)
                return
            except Exception:
                _log.exception("batch %s committed, but its progress could not be reported", told.progress.batchId)
            del self._unreported[0]
        try:
            self._write()
            self._count()
        except (OSError, StreamwardenError):
            _log.warning("progress and totals could not be written yet", exc_info=True)

    def _report(self, told: _Told) -> None:
        event = told.progress
        if event.batchId <= self._last:
            return
        if not self._checkpoint.is_committed(event.batchId):
            return
        done = batch_progress(
            event,
            self._counts(event.batchId),
            self._checkpoint,
            files=self._files,
            keys=self._keys(event),
            tries=told.tries,
            at=told.at,
            backlogs=self._backlogs,
            sources=self._sources(),
            memory=told.memory,
        )
        done = self._dated(done)
        self._recent = [*self._recent, done][-_KEPT:]
        self._uncounted = [*self._uncounted, done][-_KEPT:]
        self._written = False
        try:
            # Write before the heartbeat: if the heartbeat shows a batch, its progress must already be here.
            self._write()
        finally:
            self._committed(done)
        _log.info(
            "batch %d: %d rows in, %s out, %d late, %d quarantined, %d ms, %.0f rows/s, watermark %s, state %d rows",
            done.batch,
            done.rows_in,
            "?" if done.rows_out is None else done.rows_out,
            done.late_rows,
            done.rows_quarantined,
            done.duration_ms,
            done.rows_per_second,
            done.watermark.isoformat() if done.watermark else "-",
            done.state_rows,
        )
        source = done.source
        if source is not None and source.skipped:
            _log.warning("batch %d skipped %d commits, the last: %s", done.batch, source.skipped, source.skipped_last)

    def _dated(self, done: BatchProgress) -> BatchProgress:
        """Add since when the watermark stands still, and when each source last had input."""
        last = self._recent[-1] if self._recent else None
        still = last is not None and last.watermark == done.watermark
        since = last.watermark_since if last is not None and still else done.at
        before = last.sources if last is not None else {}
        sources = {
            name: one.model_copy(update={"input_at": done.at if one.taken else before[name].input_at})
            if one.taken or name in before
            else one
            for name, one in done.sources.items()
        }
        return done.model_copy(update={"watermark_since": since, "sources": sources})

    def _write(self) -> None:
        if not self._written:
            self._documents.progress(self._incarnation).write(
                Progress(incarnation=self._incarnation, at=utc_now(), last=self._recent[-1], recent=self._recent)
            )
            self._written = True

    def _count(self) -> None:
        if not self._uncounted:
            return
        counted = self._uncounted

        def add(was: Totals | None) -> Totals:
            for done in counted:
                was = _added(was, done, self._generation)
            assert was is not None
            return was

        self._documents.totals(self._generation).update(add)
        self._uncounted = []


def _added(was: Totals | None, done: BatchProgress, generation: int) -> Totals:
    if was is None:
        was = Totals(generation=generation)
    if done.batch <= was.through_batch:
        return was
    return Totals(
        generation=generation,
        through_batch=done.batch,
        batches=was.batches + 1,
        rows_in=was.rows_in + done.rows_in,
        rows_out=was.rows_out + (done.rows_out or 0),
        rows_quarantined=was.rows_quarantined + done.rows_quarantined,
        rows_duplicate=was.rows_duplicate + done.rows_duplicate,
        late_rows=was.late_rows + done.late_rows,
        commits_skipped=was.commits_skipped + (done.source.skipped if done.source else 0),
    )


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _finite(number: float | None) -> float:
    # Spark divides by a duration that may be 0 ms. Its JSON then omits the undefined value.
    return number if number is not None and math.isfinite(number) else 0.0
