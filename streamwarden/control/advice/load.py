"""A job's load, measured from its batches."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = ["BatchSeen", "Cost", "arrivals", "busy_share", "cost", "pending_rows"]

ENOUGH = 5
"""Batches that a cost needs. 5: a line through fewer follows the noise."""

_WARM_UP = 3
"""Batches of a driver left out of its cost: its JVM is still compiling, and the first may be of what waited."""

_SPREAD = 0.2
"""How far the batches' rows must differ, as a share of their mean, to tell a batch's fixed time from its rows'."""


@dataclass(frozen=True)
class BatchSeen:
    """What is asked of one batch.

    Parameters
    ----------
    incarnation
        The driver's run.
    at
        When it was committed.
    seconds
        It took.
    fixed_seconds
        Of that, the checkpoint's commits, which don't depend on the rows.
    rows
        Read.
    taken, pending
        Files or versions of the source that it took, and that were left after it; None: unknown.
    """

    incarnation: str
    at: datetime
    seconds: float
    fixed_seconds: float
    rows: int
    taken: int | None = None
    pending: int | None = None


@dataclass(frozen=True)
class Cost:
    """What a batch costs on the cores that it had.

    Parameters
    ----------
    fixed
        Seconds of any batch, however few its rows.
    row
        Seconds more for each row.
    """

    fixed: float
    row: float

    def seconds(self, rows: float, *, slower: float = 1.0) -> float:
        """Return how long a batch takes whose rows take so many times as long."""
        return self.fixed + self.row * slower * rows


def cost(batches: Sequence[BatchSeen]) -> Cost | None:
    """Fit what a batch costs, or return None where there are too few.

    A line through the batches' rows and times (Theil and Sen's: the median of the slopes, which a few slow batches
    don't tilt). Where all batches have about as many rows no line can be told; then only the checkpoint's own time
    counts as fixed, so that more cores are promised too much rather than fewer too little.

    Parameters
    ----------
    batches
        Of one width. The first three of each driver are left out.
    """
    firsts: dict[str, int] = {}
    used = []
    for one in batches:
        firsts[one.incarnation] = firsts.get(one.incarnation, 0) + 1
        if firsts[one.incarnation] > _WARM_UP:
            used.append(one)
    if len(used) < ENOUGH or not any(one.rows for one in used):
        return None
    least = statistics.median(one.fixed_seconds for one in used)
    rows, seconds = [float(one.rows) for one in used], [one.seconds for one in used]
    if statistics.pstdev(rows) >= _SPREAD * statistics.fmean(rows):
        pairs = itertools.combinations(zip(rows, seconds, strict=True), 2)
        slope = statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if a[0] != b[0])
        fixed = statistics.median(took - slope * many for many, took in zip(rows, seconds, strict=True))
        if slope > 0 and fixed > least:
            return Cost(fixed, slope)
    total = sum(rows)
    return Cost(least, max(sum(seconds) - least * len(used), 0.0) / total)


def arrivals(batches: Sequence[BatchSeen], until: datetime, window: timedelta) -> float | None:
    """Return the rows a second that came to the source within a time, or None if less than half of it is known.

    What was read, and by how much the backlog has grown meanwhile.

    Parameters
    ----------
    batches
        Oldest first.
    until
        The end of the time.
    window
        Its length.
    """
    begin = until - window
    before = [one for one in batches if one.at <= begin]
    inside = [one for one in batches if begin < one.at <= until]
    # A batch's rows came before it: those of the first one known came at no known time.
    first = before[-1] if before else (inside.pop(0) if inside else None)
    if first is None:
        return None
    since = max(first.at, begin)
    known = (until - since).total_seconds()
    if known < window.total_seconds() / 2:
        return None
    read = sum(one.rows for one in inside)
    last = inside[-1] if inside else first
    grown = _rows_of((last.pending or 0) - (first.pending or 0), inside)
    # A batch that ended within the window may have begun before it.
    took = (until - first.at).total_seconds() if inside and before else known
    return max(read + grown, 0.0) / max(took, known)


def pending_rows(batches: Sequence[BatchSeen]) -> float | None:
    """Return the rows that wait, by what the batches' files or versions had; None: unknown."""
    if not batches or batches[-1].pending is None:
        return None
    return _rows_of(batches[-1].pending, batches)


def busy_share(batches: Sequence[BatchSeen]) -> float | None:
    """Return the share of the time that batches took, or None for fewer than two."""
    if len(batches) < 2:
        return None
    wall = (batches[-1].at - batches[0].at).total_seconds()
    return sum(one.seconds for one in batches[1:]) / wall if wall > 0 else None


def _rows_of(units: int, batches: Sequence[BatchSeen]) -> float:
    taken = sum(one.taken or 0 for one in batches)
    return units * sum(one.rows for one in batches) / taken if taken else 0.0
