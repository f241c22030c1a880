"""What a job does now, by its newest batches: the same figures in the list and on its page."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime, timedelta

from streamwarden.operations.overview import Overview

__all__ = ["Rates", "rates_of"]

_BATCHES = 10
"""How many of the newest batches count. 10: a single large or empty one does not show."""

_SPAN = timedelta(minutes=1)
"""The time over which input is counted, if the trigger's interval is short."""

_INTERVALS = 3
"""If it is long, over so many intervals."""


@dataclass(frozen=True)
class Rates:
    """The figures.

    Parameters
    ----------
    input
        Rows a second that arrived in the last minute, or three intervals; None while the job is down.
    processed
        Rows a second while a batch ran; None without input.
    took
        The median of the batches' durations, in seconds.
    lag_s
        The newest known distance of the watermark from the newest event, in seconds: an empty batch has none.
    """

    input: float | None = None
    processed: float | None = None
    took: float | None = None
    lag_s: float | None = None


def rates_of(one: Overview, now: datetime) -> Rates:
    """Return the figures of a job."""
    if one.seen is None or one.seen.desired is None or not one.recent:
        return Rates()
    newest = one.recent[-_BATCHES:]
    span = max(_SPAN, _INTERVALS * one.seen.desired.spec.trigger.interval)
    # Older batches than these may not be known.
    since = max(now - span, one.recent[0].at)
    arrived = sum(batch.rows_in for batch in one.recent if batch.at > since)
    length = (now - since).total_seconds()
    busy = [(batch.rows_in, batch.duration_ms / 1000) for batch in newest if batch.rows_in and batch.duration_ms]
    lags = [batch.watermark_lag_s for batch in one.recent if batch.watermark_lag_s is not None]
    return Rates(
        input=arrived / length if one.seen.phase.alive and length > 0 else None,
        processed=sum(rows for rows, _ in busy) / sum(took for _, took in busy) if busy else None,
        took=statistics.median(batch.duration_ms / 1000 for batch in newest),
        lag_s=lags[-1] if lags else None,
    )
