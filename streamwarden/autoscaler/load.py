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
"""Batches that a cost needs. 5: a line through fewer follows the noise."""

_WARM_UP = 3
"""Batches of a driver left out of its cost: its JVM is still compiling, and the first may be of what waited."""

_LAST = 10
"""Batches that count as recent where a time has too few: they are long ones."""

_FITTED = 300
"""Batches that a line is fitted to, evenly taken from all. 300: 45,000 pairs, a twentieth of a second."""

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


def cost(batches: Sequence[BatchSeen], since: datetime) -> Cost | None:
    """Fit what a batch costs, or return None where there are too few.

    A line through the batches' rows and times, as steep as the median of the slopes between any two of them, which a
    few slow batches don't tilt; a slope counts by how far the two differ in rows (Theil and Sen, weighted as by
    Jaeckel, "Estimating regression coefficients by minimizing the dispersion of the residuals", 1972). It takes
    different loads to tell such a line, so it is told from all batches; then it is raised or lowered to what the recent
    ones took.

    Where all batches have about as many rows no line can be told; then only the checkpoint's own time counts as fixed,
    so that more cores are promised too much rather than fewer too little.

    Parameters
    ----------
    batches
        Of one width, oldest first. The first three of each driver are left out.
    since
        Those after this are recent; the last ten, where these are too few.
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
    fixed = statistics.median(took - slope * many for many, took in zip(rows, seconds, strict=True))
    if slope > 0 and fixed > statistics.median(one.fixed_seconds for one in batches):
        return Cost(fixed, slope)
    return None


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
    """Return the rows that wait, by what the newest batches' files or versions had; None: unknown."""
    if not batches or batches[-1].pending is None:
        return None
    # Those of the whole time would be of another load, after a step.
    return _rows_of(batches[-1].pending, [one for one in batches if one.taken][-ENOUGH:])


def busy_share(batches: Sequence[BatchSeen]) -> float | None:
    """Return the share of the time that batches took, or None for fewer than two."""
    if len(batches) < 2:
        return None
    wall = (batches[-1].at - batches[0].at).total_seconds()
    return sum(one.seconds for one in batches[1:]) / wall if wall > 0 else None


def _rows_of(units: int, batches: Sequence[BatchSeen]) -> float:
    taken = sum(one.taken or 0 for one in batches)
    return units * sum(one.rows for one in batches) / taken if taken else 0.0
