"""A job's query that starts before its driver may write: it computes, and holds its first new batch until then.

When the driver takes the lease, the query has already started, loaded its state stores and replayed a batch that the
job has written before.
"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.pipeline.batches import release
from streamwarden.driver.pipeline.outputs import AUTHOR
from streamwarden.driver.pipeline.query import RunningQuery, Writer
from streamwarden.driver.pipeline.source import query_sources
from streamwarden.driver.state_only_batch import write_nowhere
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.model.spec import JobSpec
from streamwarden.store.workspace import Workspace

__all__ = ["QueryAhead"]

_log = logging.getLogger(__name__)

_POLL_S = 0.02


class _Held:
    """A placeholder for the writer of a query's batches until there is one.

    Parameters
    ----------
    written
        The last batch that the job has already written. Up to it, rows are computed for their state and not written.
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
        # Computed during the handover; the writer reads the kept rows.
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
    """A writer whose commits name their author, whichever batch it receives first.

    A query has its own session from its start on. Settings of the session that it was started from come too late for a
    query that started before the driver's lease.
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
    """A query of a standby driver, on the job's future checkpoint.

    Until it is released, it writes nothing; only Spark writes, into that checkpoint.

    Parameters
    ----------
    session
        A session with the job's settings.
    workspace, spec
        The job.
    rows
        Its streaming DataFrame.
    checkpoint
        The checkpoint's folder, relative to the storage's root. A batch that was begun there is one that the job has
        already written.
    mode
        Spark's output mode.
    """

    def __init__(
        self,
        session: SparkSession,
        workspace: Workspace,
        spec: JobSpec,
        rows: DataFrame,
        checkpoint: str,
        mode: str = "update",
    ) -> None:
        self.checkpoint = checkpoint
        self.sources = query_sources(rows)
        self._reader = CheckpointReader(workspace.storage, checkpoint)
        begun = self._reader.last_offset()
        self._begun = begun if begun != self._reader.last_commit() else None
        if session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true":
            begin_no_data_batch(workspace.storage, checkpoint)
        self._held = _Held(begun)
        self._query = RunningQuery(spec, rows, self._held, workspace.uri(checkpoint), self._reader, mode)

    def rows(self) -> list[int] | None:
        """Wait for the batch that was begun; return the rows of each operator's state after it. None if there was none.

        Raises
        ------
        Exception
            The batch's error.
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
        """Let the query write, for the driver that holds the lease; return the query.

        Parameters
        ----------
        author
            For each table's history; see :data:`~streamwarden.driver.pipeline.outputs.AUTHOR`.
        """
        signed = _Signed(writer, author)
        self._query.write_by(signed)
        self._held.give(signed)
        # Look for input that arrived since its last poll.
        self._query.wake()
        _log.info("the query that was started ahead writes from now on")
        return self._query

    def drop(self) -> None:
        """Stop the query. The batch that it holds stays begun."""
        self._held.give(None)
        try:
            self._query.abandon()
        except Exception:
            # The JVM may be gone, and the query with it.
            _log.warning("the query that was started ahead failed to stop", exc_info=True)
