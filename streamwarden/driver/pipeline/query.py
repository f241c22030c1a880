"""Starting a streaming query, and stopping it between two batches."""

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

__all__ = ["BatchError", "RunningQuery", "Writer"]

_log = logging.getLogger(__name__)

_AWAY_S = 60.0
"""How long a stop waits for a store that is away, to know which batch is committed. 60 s: an S3 server's restart. After
that the stop is unclean, which the next start mends."""


class BatchError(Exception):
    """What Spark is told of a failed batch: that it failed. What failed it is kept on this side."""


class Writer(Protocol):
    """Writes a query's batches; see :class:`~streamwarden.driver.pipeline.batches.BatchWriter`."""

    @property
    def hurry(self) -> threading.Event:
        """Set to leave out pauses."""

    @property
    def in_flight(self) -> int | None:
        """The batch that is being written, or None."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one."""


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
        The checkpoint's folder, as Spark writes to it.
    checkpoint
        Reads the same folder.
    """

    def __init__(
        self,
        spec: JobSpec,
        rows: DataFrame,
        writer: Writer,
        checkpoint_path: str,
        checkpoint: CheckpointReader,
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._writer = writer
        self._checkpoint_path = checkpoint_path
        self._checkpoint = checkpoint
        self._failure: Failure | None = None
        self._stopping = False
        is_begun = checkpoint.last_offset() != checkpoint.last_commit()
        # Without a space Spark reads "500ms" as well as "500 milliseconds"; days and hours it reads too.
        interval = f"{round(spec.trigger.interval.total_seconds() * 1000)} milliseconds"
        _log.info("query starts, a batch every %s", format_duration(spec.trigger.interval))
        self._query = self._start(processingTime=interval)
        self._alarm = Alarm(self._query)
        if is_begun:
            # That batch was chosen some time ago: what has come since is looked for right after it.
            self.wake()

    def failure(self) -> Failure | None:
        """Return what ended the query, or None while it runs: what a batch raised, else what Spark says."""
        if self._query.isActive:
            return None
        if self._failure is not None:
            return self._failure
        return Failure.of(self._query.exception() or StreamingQueryException("the query ended without an exception"))

    def write_by(self, writer: Writer) -> None:
        """Let another one write the batches that come."""
        self._writer = writer

    def wake(self) -> None:
        """Look for the next batch now, or right after the one in flight, and not at the interval only."""
        if not self._stopping:
            self._alarm.wake()

    def state_rows(self, batch_id: int) -> list[int] | None:
        """Return the rows of each operator's state after a batch; None if Spark has not told of it, or not any more."""
        for progress in self._query.recentProgress:
            if progress.batchId == batch_id and "addBatch" in progress.durationMs:
                return [operator.numRowsTotal for operator in progress.stateOperators]
        return None

    def abandon(self) -> None:
        """Interrupt it wherever it is. What is left is what a crash leaves: the next start finishes it."""
        self._query.stop()

    def stop(self) -> None:
        """Stop between two batches: afterwards the last batch begun is the last one committed.

        A batch in flight is finished. Should the next one have begun in the moment between, it is finished too, by a
        last run that does just that: dropping its offsets instead could lose or double rows that the sink has already.

        Raises
        ------
        StreamwardenError
            ``STOP_UNCLEAN`` if it ended otherwise.
        """
        # A query that nobody wakes waits after its batch: it is stopped there.
        self._stopping = True
        self._writer.hurry.set()
        self._wait_until_between()
        self._query.stop()
        failure = self._query.exception()
        begun, done = self._where()
        if begun != done:
            _log.info("batch %s had begun: finishing it", begun)
            # Of the batch that stop() interrupted.
            self._failure = None
            finish = self._start(once=True)
            finish.awaitTermination()
            failure = finish.exception()
            begun, done = self._where()
        if failure is not None or begun != done:
            words = self._failure.text if self._failure is not None else failure
            raise StreamwardenError("STOP_UNCLEAN", f"{self._spec.name}: begun {begun}, committed {done}: {words}")

    def _wait_until_between(self) -> None:
        """Wait for the moment after a commit and before the next batch's offsets, or until the query ends."""
        while self._query.isActive:
            # The checkpoint is listed only when the batch's own work is over: on S3 each look is two requests.
            if self._writer.in_flight is None:
                begun, done = self._where()
                if begun == done and self._writer.in_flight is None:
                    return
            time.sleep(0.005)

    def _where(self) -> tuple[int | None, int | None]:
        """Return the last batch begun and the last one committed, also if the store is away for a moment."""
        deadline = time.monotonic() + _AWAY_S
        while True:
            try:
                return self._checkpoint.last_offset(), self._checkpoint.last_commit()
            except StreamwardenError as error:
                # Given up at once, a stop would cut the batch that it is to wait for.
                if error.code not in OUTAGES or time.monotonic() >= deadline:
                    raise
                _log.warning("stopping, and %s", error)
            time.sleep(0.5)

    def _start(self, **trigger: object) -> StreamingQuery:
        query: StreamingQuery = (
            self._rows.writeStream.queryName(self._spec.name)
            .outputMode("update")
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
            # Spark 4.2 looks through the text of what is raised here for an interruption, by a regular expression that
            # recurses once a character: on a JVM's long trace its stream thread dies of StackOverflowError, and the
            # query says for ever that it is active. So it gets no more than a line.
            raise BatchError(f"batch {batch_id}: {type(error).__name__}") from None
