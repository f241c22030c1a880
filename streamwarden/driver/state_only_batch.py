"""Finish batches that another query has already written, only to compute their state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StateOperatorProgress

from streamwarden.driver.causes import headline
from streamwarden.driver.pipeline.module import load_module, output_mode
from streamwarden.driver.pipeline.source import job_rows, query_sources
from streamwarden.driver.start_checks import check_sources
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Replay", "run_batch", "write_nowhere"]

_log = logging.getLogger(__name__)


class Replay:
    """A job's query without its sinks.

    Parameters
    ----------
    session
        A session with the job's settings.
    workspace, spec
        The job.
    """

    def __init__(self, session: SparkSession, workspace: Workspace, spec: JobSpec) -> None:
        self._session = session
        self._workspace = workspace
        self._spec = spec

    @functools.cached_property
    def rows(self) -> DataFrame:
        """The job's streaming DataFrame, from which several queries can be started."""
        rows = job_rows(self._session, self._workspace, self._spec, load_module(self._spec))
        reference = JobDocuments(self._workspace.storage, self._spec.name).checkpoint.read()
        check_sources(self._spec, [one.name for one in query_sources(rows)], reference.sources if reference else [])
        return rows

    @property
    def mode(self) -> str:
        """Spark's output mode."""
        return output_mode(load_module(self._spec))

    def __call__(self, checkpoint: str) -> list[int]:
        """Finish the batch that was begun in a checkpoint, given by URI; return the rows of each operator's state.

        Its rows are computed and not written. If no batch was begun, this begins one: the caller must ensure a batch.

        Raises
        ------
        pyspark.errors.StreamingQueryException
            The batch's error.
        """
        operators = run_batch(self.rows, checkpoint, f"{self._spec.name} replay", self.mode)
        return [operator.numRowsTotal for operator in operators]


def run_batch(rows: DataFrame, checkpoint: str, name: str, mode: str) -> Sequence[StateOperatorProgress]:
    """Run exactly one batch of a query for its state, the one begun if there is one; discard its rows.

    Parameters
    ----------
    rows
        The query.
    checkpoint
        URI of its checkpoint.
    name
        The query's name.
    mode
        Spark's output mode.

    Returns
    -------
    Sequence
        The progress of its stateful operators.
    """
    query = (
        rows.writeStream.queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        # Exactly one batch; `availableNow` would continue after it.
        .trigger(once=True)
        .foreachBatch(write_nowhere)
        .start()
    )
    query.awaitTermination()
    last = query.lastProgress
    if last is None:
        return []
    # A copy that is slower than its job is explained by these.
    _log.info("%s: batch %d, in ms: %s", name, last.batchId, dict(last.durationMs))
    return last.stateOperators


def write_nowhere(batch: DataFrame, _: int) -> None:
    """Compute a batch's rows, and with them its state, and discard the rows."""
    try:
        # Compute all rows: the state is written as a side effect.
        batch.write.format("noop").mode("overwrite").save()
    except Exception as error:
        # Only one line: see RunningQuery about Spark and long texts.
        raise RuntimeError(headline(error)) from None
