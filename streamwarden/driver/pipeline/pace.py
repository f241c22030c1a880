"""Begin a query's next batch before its interval is over.

Some of Spark's triggers always wait for an interval, whatever input is pending; the others never wait. A job needs
both: few batches for little input, and the machine's full speed for a backlog. Spark's waiting clock is private; see
docs/decisions/0029.
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
"""The versions whose ``ProcessingTimeExecutor`` was checked: another version may wait differently."""


class Alarm:
    """Wakes a running query that waits for its interval.

    If that is not possible, batches begin at the interval only, and the log gives the reason.

    Parameters
    ----------
    query
        A query with a processing-time trigger.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._clock = _clock(query)

    def wake(self) -> None:
        """Begin the next batch at once, or as soon as the batch in flight has ended; once."""
        if self._clock is None:
            return
        try:
            self._clock.wake()
        except (OSError, Py4JError):
            # Called beside the query: others report its end, or the JVM's.
            _log.warning("the next batch waits for its interval", exc_info=True)


def _clock(query: StreamingQuery) -> Any | None:
    if not pyspark.__version__.startswith(_SPARK):
        _log.warning("batches start at the interval only, also for a backlog: this is Spark %s", pyspark.__version__)
        return None
    jvm: Any = SparkContext._jvm
    try:
        return jvm.streamwarden.WakeableClock.of(query._jsq)
    except (Py4JError, TypeError):
        # No reason to fail. Py4J also raises this for a missing class.
        _log.warning("batches start at the interval only, also for a backlog", exc_info=True)
        return None
