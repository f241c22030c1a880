"""A job's query that is started before its driver may write: it computes, and holds its first new batch until then.

The start of a query, the load of its state stores and a batch that the job has written already are over when the driver
takes the lease.
"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.pipeline.batches import release
from streamwarden.driver.pipeline.outputs import AUTHOR
from streamwarden.driver.pipeline.query import RunningQuery, Writer
from streamwarden.driver.replay import write_nowhere
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.model.spec import JobSpec
from streamwarden.store.workspace import Workspace

__all__ = ["QueryAhead"]

_log = logging.getLogger(__name__)

_POLL_S = 0.02


class _Held:
    """Stands for the writer of a query's batches until there is one.

    Parameters
    ----------
    written
        The last batch that the job has written already. Up to it rows are computed for their state, and not written.
    """

    def __init__(self, written: int | None) -> None:
        self._written = -1 if written is None else written
        self._writer: Writer | None = None
        self._decided = threading.Event()
        self.hurry = threading.Event()
        self.in_flight: int | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if batch_id <= self._written:
            write_nowhere(batch, batch_id)
            return
        # Computed while the job is handed over; the writer reads what is kept.
        kept = batch.localCheckpoint(eager=True)
        try:
            self._decided.wait()
            if self._writer is None:
                raise RuntimeError("this query is not to write")
            self._writer(kept, batch_id)
        finally:
            release(kept)

    def give(self, writer: Writer | None) -> None:
        self._writer = writer
        self._decided.set()


class _Signed:
    """A writer whose commits name their author, whichever batch is the first that it gets.

    A query has a session of its own from its start on: what the driver sets on the one it was started from comes too
    late for a query that was there before the driver's lease.
    """

    def __init__(self, writer: Writer, author: str) -> None:
        self._writer, self._author = writer, author

    @property
    def hurry(self) -> threading.Event:
        return self._writer.hurry

    @property
    def in_flight(self) -> int | None:
        return self._writer.in_flight

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        batch.sparkSession.conf.set(AUTHOR, self._author)
        self._writer(batch, batch_id)


class QueryAhead:
    """A query on a checkpoint that will be the job's, of a driver that stands by.

    Until it is released, it writes nothing but what Spark writes into that checkpoint.

    Parameters
    ----------
    session
        One with the job's settings.
    workspace, spec
        The job.
    rows
        Its streaming DataFrame.
    checkpoint
        The checkpoint's folder, relative to the storage's root. A batch that was begun there is one that the job has
        written already.
    """

    def __init__(
        self, session: SparkSession, workspace: Workspace, spec: JobSpec, rows: DataFrame, checkpoint: str
    ) -> None:
        self.checkpoint = checkpoint
        self._reader = CheckpointReader(workspace.storage, checkpoint)
        begun = self._reader.last_offset()
        self._begun = begun if begun != self._reader.last_commit() else None
        if session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true":
            begin_no_data_batch(workspace.storage, checkpoint)
        self._held = _Held(begun)
        self._query = RunningQuery(spec, rows, self._held, workspace.uri(checkpoint), self._reader)

    def rows(self) -> list[int] | None:
        """Wait for the batch that was begun; return the rows of each operator's state after it. None: there was none.

        Raises
        ------
        Exception
            What the batch failed by.
        """
        if self._begun is None:
            return None
        while True:
            failure = self._query.failure()
            if failure is not None:
                raise failure.error
            rows = self._query.state_rows(self._begun)
            if rows is not None and self._reader.is_committed(self._begun):
                return rows
            time.sleep(_POLL_S)

    def release(self, writer: Writer, author: str) -> RunningQuery:
        """Let it write, by the driver that holds the lease; return it.

        Parameters
        ----------
        author
            For each table's history; see :data:`~streamwarden.driver.pipeline.outputs.AUTHOR`.
        """
        signed = _Signed(writer, author)
        self._query.write_by(signed)
        self._held.give(signed)
        # What has come since it looked last.
        self._query.wake()
        _log.info("the query that was started ahead writes from now on")
        return self._query

    def drop(self) -> None:
        """End it. The batch that it holds is left begun."""
        self._held.give(None)
        try:
            self._query.abandon()
        except Exception:
            # The JVM may be gone, and the query with it.
            _log.warning("the query that was started ahead did not end in order", exc_info=True)
