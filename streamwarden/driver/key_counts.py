"""Count the keys of keyed state (:mod:`streamwarden.keyed_state`), of which Spark itself counts the buckets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

from streamwarden.driver.state_rows import plain_path
from streamwarden.keyed_state.dataframe import KEYED_STATE
from streamwarden.keyed_state.processor import STATE_NAME

__all__ = ["KeyCounts", "count_keys"]

_log = logging.getLogger(__name__)


class KeyCounts:
    """The number of keys after each batch of a query.

    Each batch reports how many keys it added. Where the batch before is unknown, such as after a start, the state is
    read once.

    Parameters
    ----------
    session
        The query's session.
    checkpoint
        The checkpoint's folder, in the form that Spark reads.
    """

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        self._session = session
        self._checkpoint = checkpoint
        self._batch = -1
        self._keys = 0

    def after(self, progress: StreamingQueryProgress) -> int | None:
        """Return the number of keys after a batch that is committed; None for a job without keyed state."""
        observed = (progress.observedMetrics or {}).get(KEYED_STATE)
        if observed is None:
            return None
        if self._batch == progress.batchId - 1:
            self._keys += observed["added"] or 0
        else:
            try:
                self._keys = sum(count_keys(self._session, self._checkpoint, progress.batchId).values())
            except PySparkException:
                # Only a report: the next batch tries again.
                _log.warning("the keys of the state could not be counted", exc_info=True)
                return None
        self._batch = progress.batchId
        return self._keys


def count_keys(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    """Return the number of keys by operator, for the operators with keyed state.

    Parameters
    ----------
    session
        A session.
    checkpoint
        The checkpoint's folder, in the form that Spark reads.
    batch
        The batch after which the keys are counted.
    """
    # State stores report to a coordinator that is created with the session's streaming side.
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        return {operator: _count(session, path, batch, operator) for operator in _operators(session, path)}


def _operators(session: SparkSession, checkpoint: str) -> Iterator[int]:
    for described in session.read.format("state-metadata").load(checkpoint).collect():
        variables = json.loads(described.operatorProperties or "{}").get("stateVariables", [])
        if STATE_NAME in (variable["stateName"] for variable in variables):
            yield described.operatorId


def _count(session: SparkSession, checkpoint: str, batch: int, operator: int) -> int:
    reader = session.read.format("statestore").option("batchId", batch).option("operatorId", operator)
    options = {"stateVarName": STATE_NAME, "flattenCollectionTypes": "false"}
    rows = reader.options(**options).load(checkpoint)
    found = rows.agg(F.sum(F.element_at("list_value", -1)["keys"])).first()
    assert found is not None
    return int(found[0] or 0)
