"""Beginning a query's next batch before its interval is over.

Spark has triggers that wait for an interval, whatever waits in the source, and triggers that don't wait at all. A job
wants both: few batches where little comes, and all of the machine where a backlog is to be worked off. Spark waits by a
clock that it keeps to itself; see docs/decisions/0029.
"""

from __future__ import annotations

import logging
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Alarm"]

_log = logging.getLogger(__name__)

_SPARK = "4.2."
"""The versions whose ``ProcessingTimeExecutor`` was read: another one's may wait by something else."""


class Alarm:
    """Wakes a running query that waits for its interval.

    Where that is not possible, batches begin at the interval only, and the log says why.

    Parameters
    ----------
    query
        With a trigger of a processing time.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._clock = _clock(query)

    def wake(self) -> None:
        """Let the next batch begin at once, or as soon as the one in flight has ended; once."""
        if self._clock is None:
            return
        try:
            self._clock.wake()
        except (OSError, Py4JError):
            # Called beside the query: its end, or the JVM's, is somebody else's to tell.
            _log.warning("the next batch waits for its interval", exc_info=True)


def _clock(query: StreamingQuery) -> Any | None:
    if not pyspark.__version__.startswith(_SPARK):
        _log.warning("batches begin at the interval only, a backlog too: this is Spark %s", pyspark.__version__)
        return None
    jvm: Any = SparkContext._jvm
    try:
        return jvm.streamwarden.WakeableClock.of(query._jsq)
    except (Py4JError, TypeError):
        # Not a reason to stand still. Py4J says so also of a class that is not there.
        _log.warning("batches begin at the interval only, a backlog too", exc_info=True)
        return None
