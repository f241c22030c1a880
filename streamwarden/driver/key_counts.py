"""Count the keys of keyed state (:mod:`streamwarden.keyed_state`), of which Spark itself counts the buckets."""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from streamwarden.driver.state_rows import count_keys
from streamwarden.keyed_state.dataframe import KEYED_STATE

__all__ = ["KeyCounts"]

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
            except (PySparkException, Py4JError):
                # The batch must be reported all the same; the next one tries again.
                _log.warning("the keys of the state could not be counted", exc_info=True)
                return None
        self._batch = progress.batchId
        return self._keys
