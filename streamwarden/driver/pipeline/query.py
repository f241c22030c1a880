"""Start a streaming query, and stop it between two batches."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from streamwarden.driver.causes import Failure
from streamwarden.driver.pipeline.pace import Alarm
from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.durations import format_duration
from streamwarden.model.spec import JobSpec

__all__ = ["POLL_S", "BatchError", "RunningQuery", "Writer"]

_log = logging.getLogger(__name__)

_AWAY_S = 60.0
"""Seconds that a stop waits for an unavailable store, to learn which batch is committed. 60 s: an S3 server's restart.
After that the stop is unclean, which the next start repairs."""


POLL_S = 0.1
"""Seconds between two looks at whether a query has failed."""

_LOOK_S = 0.005
_RARELY_S = 0.5
"""A stop looks for the commit every 5 ms, then ever more rarely, at last every 0.5 s. On S3 a look is two LISTs, and a
large state takes many seconds to commit."""

_PROGRESS_S = 0.5
"""How long a stop waits for the progress of the last batch. If the next batch begins meanwhile, it is finished."""


class BatchError(Exception):
    """Reports a failed batch to Spark, without its cause. The cause is kept on the Python side."""


class Writer(Protocol):
    """Writes a query's batches; see :class:`~streamwarden.driver.pipeline.batches.BatchWriter`."""

    @property
    def hurry(self) -> threading.Event:
        """Set it to skip pauses."""

    @property
    def in_flight(self) -> int | None:
        """The batch that is being written, or None."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch."""


class RunningQuery:
    """A started query.

    Parameters
    ----------
    spec
        The job.
    rows
        Its streaming DataFrame.
    writer
        Writes its batches.
    checkpoint_path
        The checkpoint's folder, in the form that Spark writes to.
    checkpoint
        Reads the same folder.
    mode
        Spark's output mode.
    """

    def __init__(
        self,
        spec: JobSpec,
        rows: DataFrame,
        writer: Writer,
        checkpoint_path: str,
        checkpoint: CheckpointReader,
        mode: str = "update",
    ) -> None:
        self._spec = spec
        self._mode = mode
        self._rows = rows
        self._writer = writer
        self._checkpoint_path = checkpoint_path
        self._checkpoint = checkpoint
        self._failure: Failure | None = None
        self._stopping = False
        is_begun = checkpoint.last_offset() != checkpoint.last_commit()
        # Spark parses "500ms" (no space) as well as "500 milliseconds"; it also parses days and hours.
        interval = f"{round(spec.trigger.interval.total_seconds() * 1000)} milliseconds"
        _log.info("query starts, one batch every %s", format_duration(spec.trigger.interval))
        self._query = self._start(processingTime=interval)
        self._alarm = Alarm(self._query)
        if is_begun:
            # That batch was chosen some time ago: right after it, look for input that arrived since.
            self.wake()

    def failure(self) -> Failure | None:
        """Return what ended the query, or None while it runs: a batch's exception, else Spark's error."""
        if self._query.isActive:
            return None
        if self._failure is not None:
            return self._failure
        return Failure.of(self._query.exception() or StreamingQueryException("the query ended without an exception"))

    def write_by(self, writer: Writer) -> None:
        """Use another writer for the following batches."""
        self._writer = writer

    def wake(self) -> None:
        """Look for the next batch now, or right after the batch in flight, instead of at the interval."""
        if not self._stopping:
            self._alarm.wake()

    def state_rows(self, batch_id: int) -> list[int] | None:
        """Return the rows of each operator's state after a batch; None if Spark does not (or no longer) report it."""
        for progress in self._query.recentProgress:
            if progress.batchId == batch_id and "addBatch" in progress.durationMs:
                return [operator.numRowsTotal for operator in progress.stateOperators]
        return None

    def abandon(self) -> None:
        """Interrupt the query at any point. This leaves the same as a crash: the next start finishes the batch."""
        self._query.stop()

    def stop(self) -> None:
        """Stop between two batches: afterwards the last batch begun is the last one committed.

        A batch in flight is finished. If the next batch begins just before the stop, a last run finishes only that
        batch. To drop its offsets instead could lose or double rows that the sink already has.

        Raises
        ------
        StreamwardenError
            ``STOP_UNCLEAN`` if the query ended otherwise.
        """
        # A query without a wake-up waits after its batch: it is stopped there.
        self._stopping = True
        self._writer.hurry.set()
        self._wait_until_between()
        self._query.stop()
        failure = self._query.exception()
        begun, done = self._where()
        if begun != done:
            _log.info("batch %s was begun: finishing it", begun)
            # The error of the batch that stop() interrupted.
            self._failure = None
            finish = self._start(once=True)
            finish.awaitTermination()
            failure = finish.exception()
            begun, done = self._where()
        if failure is not None or begun != done:
            words = self._failure.text if self._failure is not None else failure
            raise StreamwardenError("STOP_UNCLEAN", f"{self._spec.name}: begun {begun}, committed {done}: {words}")

    def _wait_until_between(self) -> None:
        """Wait for the moment between a commit and the next batch's offsets, or until the query ends."""
        listed, pause, waited = 0.0, 0.0, False
        while self._query.isActive:
            if self._writer.in_flight is not None:
                # Its commit follows soon, and then the moment may be short.
                pause, waited = 0.0, True
            elif time.monotonic() - listed >= pause:
                begun, done = self._where()
                if begun == done and self._writer.in_flight is None:
                    if waited and done is not None:
                        self._await_progress(done)
                    return
                waited = True
                listed, pause = time.monotonic(), min(max(2 * pause, _LOOK_S), _RARELY_S)
            time.sleep(_LOOK_S)

    def _await_progress(self, batch: int) -> None:
        """Wait until Spark reports the progress of a batch, which follows its commit: a stop in between loses it."""
        deadline = time.monotonic() + _PROGRESS_S
        while self._query.isActive and time.monotonic() < deadline:
            last = self._query.lastProgress
            if last is not None and last.batchId >= batch:
                return
            time.sleep(_LOOK_S)

    def _where(self) -> tuple[int | None, int | None]:
        """Return the last batch begun and the last one committed; tolerates a short outage of the store."""
        deadline = time.monotonic() + _AWAY_S
        while True:
            try:
                return self._checkpoint.last_offset(), self._checkpoint.last_commit()
            except StreamwardenError as error:
                # If this gave up at once, a stop would interrupt the batch that it should wait for.
                if error.code not in OUTAGES or time.monotonic() >= deadline:
                    raise
                _log.warning("stopping, and %s", error)
            time.sleep(0.5)

    def _start(self, **trigger: object) -> StreamingQuery:
        query: StreamingQuery = (
            self._rows.writeStream.queryName(self._spec.name)
            .outputMode(self._mode)
            .option("checkpointLocation", self._checkpoint_path)
            .trigger(**trigger)  # type: ignore[call-overload]
            .foreachBatch(self._write)
            .start()
        )
        return query

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._writer(batch, batch_id)
        except Exception as error:
            self._failure = Failure.of(error)
            # Spark 4.2 searches this exception's text for an interruption, with a regular expression that recurses once
            # per character. On a JVM's long trace its stream thread dies of StackOverflowError, and the query reports
            # that it is active forever. So it gets only one line.
            raise BatchError(f"batch {batch_id}: {type(error).__name__}") from None
