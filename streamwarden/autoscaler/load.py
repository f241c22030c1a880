"""A job's load, measured from its batches."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = ["BatchSeen", "Cost", "arrivals", "busy_share", "cost", "pending_rows"]

ENOUGH = 5
"""Batches needed for a cost. 5: a line through fewer follows the noise."""

_WARM_UP = 3
"""First batches of a driver, excluded from its cost: the JVM still compiles, and the first may hold a backlog."""

_LAST = 10
"""Batches that count as recent if a window has too few, because they are long."""

_FITTED = 300
"""Batches that a line is fitted to, sampled evenly from all. 300: 45,000 pairs, a twentieth of a second."""

_SPREAD = 0.2
"""Minimum spread of the batches' rows, as a share of their mean, to separate fixed time from row time."""


@dataclass(frozen=True)
class BatchSeen:
    """The advisor's data on one batch.

    Parameters
    ----------
    incarnation
        The driver's run.
    at
        Commit time.
    seconds
        Duration.
    fixed_seconds
        The part of it for the checkpoint's commits, which does not depend on the rows.
    rows
        Rows read.
    taken, pending
        Files or versions of the source: read by the batch, and left after it; None: unknown.
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
    """A batch's cost on the cores that it had.

    Parameters
    ----------
    fixed
        Seconds of any batch, independent of its rows.
    row
        Additional seconds for each row.
    """

    fixed: float
    row: float

    def seconds(self, rows: float, *, slower: float = 1.0) -> float:
        """Return a batch's duration if its rows take `slower` times as long."""
        return self.fixed + self.row * slower * rows


def cost(batches: Sequence[BatchSeen], since: datetime) -> Cost | None:
    """Fit the cost of a batch; None if there are too few batches.

    The line's slope is the median of the slopes between all pairs of batches, which a few slow batches don't change.
    Each slope is weighted by the pair's difference in rows (Theil and Sen, weighted as by Jaeckel, "Estimating
    regression coefficients by minimizing the dispersion of the residuals", 1972). A slope needs different loads, so all
    batches give it. The recent batches give the line's height.

    If batches with more rows take no longer, rows cost nothing, and all of the time is fixed.

    If all batches have about as many rows, there is no slope. Then only the checkpoint's time counts as fixed, which
    overestimates the benefit of more cores rather than underestimating it.

    Parameters
    ----------
    batches
        Of one parallelism, oldest first. The first three of each driver are excluded.
    since
        Later batches are recent; if there are too few, the last ten are.
    """
    firsts: dict[str, int] = {}
    used = []
    for one in batches:
        firsts[one.incarnation] = firsts.get(one.incarnation, 0) + 1
        if firsts[one.incarnation] > _WARM_UP:
            used.append(one)
    recent = [one for one in used if one.at > since]
    if len(recent) < ENOUGH:
        recent = used[-_LAST:]
    if len(recent) < ENOUGH or not any(one.rows for one in recent):
        return None
    line = _line(used[:: math.ceil(len(used) / _FITTED)])
    if line is not None:
        level = statistics.median(one.seconds / line.seconds(one.rows) for one in recent)
        return Cost(line.fixed * level, line.row * level)
    least = statistics.median(one.fixed_seconds for one in recent)
    rows, seconds = sum(one.rows for one in recent), sum(one.seconds for one in recent)
    return Cost(least, max(seconds - least * len(recent), 0.0) / rows)


def _line(batches: Sequence[BatchSeen]) -> Cost | None:
    rows, seconds = [float(one.rows) for one in batches], [one.seconds for one in batches]
    if statistics.pstdev(rows) <= _SPREAD * statistics.fmean(rows):
        return None
    pairs = itertools.combinations(zip(rows, seconds, strict=True), 2)
    slopes = sorted(((b[1] - a[1]) / (b[0] - a[0]), abs(b[0] - a[0])) for a, b in pairs if a[0] != b[0])
    halfway = sum(weight for _, weight in slopes) / 2
    reached = itertools.accumulate(weight for _, weight in slopes)
    slope = next(slope for (slope, _), weight in zip(slopes, reached, strict=True) if weight >= halfway)
    slope = max(slope, 0.0)
    fixed = statistics.median(took - slope * many for many, took in zip(rows, seconds, strict=True))
    if fixed > statistics.median(one.fixed_seconds for one in batches):
        return Cost(fixed, slope)
    return None


def arrivals(batches: Sequence[BatchSeen], until: datetime, window: timedelta) -> float | None:
    """Return the source's arrival rate in rows a second, or None if less than half of the window is known.

    Arrivals are the rows read plus the growth of the backlog.

    Parameters
    ----------
    batches
        Oldest first.
    until
        The end of the window.
    window
        The window's length.
    """
    begin = until - window
    before = [one for one in batches if one.at <= begin]
    inside = [one for one in batches if begin < one.at <= until]
    # A batch's rows arrived before it: those of the first known batch arrived at an unknown time.
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
    # A batch that ended within the window may have begun earlier.
    took = (until - first.at).total_seconds() if inside and before else known
    return max(read + grown, 0.0) / max(took, known)


def pending_rows(batches: Sequence[BatchSeen]) -> float | None:
    """Return the waiting rows, estimated from the rows per file or version of the newest batches; None: unknown."""
    if not batches or batches[-1].pending is None:
        return None
    # After a step of the load, older batches would give another load's average.
    return _rows_of(batches[-1].pending, [one for one in batches if one.taken][-ENOUGH:])


def busy_share(batches: Sequence[BatchSeen]) -> float | None:
    """Return the batches' share of the time, or None for fewer than two."""
    if len(batches) < 2:
        return None
    wall = (batches[-1].at - batches[0].at).total_seconds()
    return sum(one.seconds for one in batches[1:]) / wall if wall > 0 else None


def _rows_of(units: int, batches: Sequence[BatchSeen]) -> float:
    taken = sum(one.taken or 0 for one in batches)
    return units * sum(one.rows for one in batches) / taken if taken else 0.0
