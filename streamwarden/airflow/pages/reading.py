"""What a stream's curves mean, in sentences: is it slow, since when, in which phase, and what happened before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from streamwarden.airflow.pages.events import Event
from streamwarden.airflow.pages.words import count, percent, rate, seconds
from streamwarden.formats.progress_history import Curves, Window
from streamwarden.model.spec import JobSpec
from streamwarden.supervision.health_rules import LATE_ROWS_FROM

__all__ = ["Reading", "read_curves", "since_when"]

_BUSY = 0.8
"""The share of time above which a job has little room left: the next larger batch makes it fall behind."""

_NEAR = timedelta(minutes=10)
"""How long before a change an event may be its cause."""

_FINE = 5.0
"""Seconds of a point that tells exactly enough when batches became long."""

_MIN_POINTS = 3

_MORE_INPUT = 1.5
"""From how many times the input before a change on it is named as a cause."""

Values = Sequence[float | None]


_ADVISED = "reading, computing and state"
"""The phase of which the advisor knows more."""

_REMEDIES = {
    _ADVISED: "cores, partitions, or a longer trigger.interval: see the",
    "commits of the tables": "a longer trigger.interval makes fewer; a slow disk or bucket makes each one slow.",
    "the checkpoint": "a longer trigger.interval writes it less often; see the disk or bucket of the checkpoints.",
}
"""The phases of a batch, each with what to do if it takes most of the time."""


@dataclass(frozen=True)
class Reading:
    """A sentence.

    Parameters
    ----------
    tone
        ``bad``, ``warn`` or ``good``.
    text
        The sentence.
    at
        Since when, if it is about a change.
    see
        The tab of the job that goes on from there: its name ends the sentence.
    """

    tone: str
    text: str
    at: datetime | None = None
    see: str = ""


def read_curves(
    curves: Curves,
    spec: JobSpec,
    events: list[Event],
    closer: Callable[[Window], Curves | None],
    took: float | None = None,
) -> list[Reading]:
    """Return what the curves of a job mean, the most important first.

    Parameters
    ----------
    closer
        Returns the curves of a shorter time: a point of a month is three hours long, too coarse for a *since*.
    took
        Seconds of the newest batches; default those of the last points.
    """
    interval = spec.trigger.interval.total_seconds()
    durations = _durations(curves)
    recent = [value for value in durations if value is not None][-_MIN_POINTS:]
    if not recent:
        return []
    found = []
    took = took if took is not None else sum(recent) / len(recent)
    start = since_when(durations, interval * _BUSY)
    if start is not None and took >= _BUSY * interval:
        change = _change(curves, start, interval * _BUSY, closer)
        text = f"Batches take {seconds(took)}; one is to start each {seconds(interval)}. So the job has no room left."
        if change.before is not None:
            text += f" Before, they took {seconds(change.before)}."
        found.append(Reading("bad" if took > interval else "warn", text, change.at))
        found += _causes(change.at, events, timedelta(seconds=change.within))
        found += _more_input(change, curves)
        found += _phases(curves, start)
    else:
        text = f"Batches take {seconds(took)}, {percent(took / interval)} of the interval of {seconds(interval)}."
        found.append(Reading("good", text))
    return [*found, *_backlog(curves), *_late(curves, spec)]


def since_when(values: Values, limit: float) -> int | None:
    """Return the first point of the last run of points at or above a limit; None if the newest is below it.

    A single point below the limit does not end the run: one small batch is no recovery.
    """
    start, below = None, 0
    for number in reversed(range(len(values))):
        value = values[number]
        if value is None:
            continue
        if value >= limit:
            start, below = number, 0
        else:
            below += 1
            if below > 1 or start is None:
                break
    return start


@dataclass(frozen=True)
class _Change:
    """When batches became long.

    Parameters
    ----------
    at, within
        The time, and how many seconds later it may be.
    before
        The seconds of the batches just before; None without any.
    input_before
        The input just before, in rows a second; None if unknown.
    """

    at: datetime
    within: float
    before: float | None = None
    input_before: float | None = None


def _change(curves: Curves, start: int, limit: float, closer: Callable[[Window], Curves | None]) -> _Change:
    while curves.window.step > _FINE:
        step = curves.window.step
        end = datetime.fromtimestamp(curves.window.times[start] + step, UTC)
        # Not the end itself: it is the first moment of the next point. Ten minutes, to have batches before a downtime.
        near = closer(Window.of(end - timedelta(milliseconds=1), max(timedelta(seconds=2 * step), _NEAR)))
        place = since_when(_durations(near), limit) if near is not None else None
        if near is None or place is None or near.window.step >= step:
            break
        curves, start = near, place
    durations, rows = _durations(curves), curves.columns["rows_in"]
    # Not all points: the driver may have been away.
    before = [number for number in range(start) if durations[number] is not None][-4 * _MIN_POINTS :]
    took = [durations[number] or 0.0 for number in before[-_MIN_POINTS:]]
    return _Change(
        datetime.fromtimestamp(curves.window.times[start], UTC),
        curves.window.step,
        sum(took) / len(took) if took else None,
        float(rows[before[1:]].sum()) / ((before[-1] - before[0]) * curves.window.step) if len(before) > 1 else None,
    )


def _durations(curves: Curves) -> list[float | None]:
    return [None if value is None else value / 1000 for value in curves.mean("duration_ms")]


def _input(curves: Curves, first: int, end: int) -> float:
    """Return the rows a second of some points."""
    return float(np.nansum(curves.columns["rows_in"][first:end])) / ((end - first) * curves.window.step)


def _more_input(change: _Change, curves: Curves) -> list[Reading]:
    """Return that the input has risen since then, if it has: the most usual reason for longer batches."""
    since = change.at.timestamp()
    # The last point is not over yet.
    first, end = sum(time < since for time in curves.window.times), curves.window.points - 1
    if change.input_before is None or end <= first:
        return []
    now = _input(curves, first, end)
    if now < _MORE_INPUT * max(change.input_before, 1):
        return []
    return [Reading("warn", f"The input has risen since then, from {rate(change.input_before)} to {rate(now)} rows/s.")]


def _phases(curves: Curves, start: int) -> list[Reading]:
    whole = float(curves.columns["duration_ms"][start:].sum())
    commit = float(curves.columns["commit_ms"][start:].sum())
    checkpoint = float(curves.columns["checkpoint_ms"][start:].sum())
    if not whole:
        return []
    parts = dict(
        zip(_REMEDIES, ((whole - commit) / whole, (commit - checkpoint) / whole, checkpoint / whole), strict=True)
    )
    names = sorted(parts, key=lambda name: parts[name], reverse=True)
    shares = ", ".join(f"{name} {percent(max(parts[name], 0))}" for name in names)
    remedy = Reading("warn", f"What to do: {_REMEDIES[names[0]]}", see="advice" if names[0] == _ADVISED else "")
    return [Reading("warn", f"Of that time: {shares}."), remedy]


def _causes(at: datetime | None, events: list[Event], step: timedelta) -> list[Reading]:
    if at is None:
        return []
    until = at + max(timedelta(minutes=1), step)
    near = [one for one in events if at - _NEAR <= one.at <= until and one.kind != "savepoint"]
    if not near:
        return []
    # An operation also ends a driver and starts one. An end alone is rarely a cause.
    cause = min(reversed(near), key=lambda one: (not one.link, one.kind == "end"))
    before = (at - cause.at).total_seconds()
    when = f"{seconds(before)} before that" if before > 0 else "at that time"
    return [Reading("warn", f"Probable cause, {when}: {cause.text}.")]


def _backlog(curves: Curves) -> list[Reading]:
    known = [(number, value) for number, value in enumerate(curves.values("source_pending")) if value is not None]
    if len(known) < _MIN_POINTS:
        return []
    values = [value for _, value in known]
    now, least = values[-1], min(values)
    if now > 2 * max(least, 1) and now >= max(values[:-1]) * 0.8:
        # The newest point at which the backlog was smallest: it has grown since then.
        start = max(number for number, value in known if value == least)
        at = datetime.fromtimestamp(curves.window.times[start], UTC)
        return [Reading("bad", f"The backlog has grown from {count(least)} to {count(now)}.", at)]
    if max(values[-_MIN_POINTS:]) > 0:
        return []
    return [Reading("good", "Nothing is left to read.")]


def _late(curves: Curves, spec: JobSpec) -> list[Reading]:
    """Return how many rows were late. The alarm looks at the last batches of a driver only, these curves at all."""
    late, rows = (np.nan_to_num(curves.columns[name]) for name in ("late_rows", "rows_in"))
    limit = spec.health.late_rows.warn
    if rows.sum() < LATE_ROWS_FROM or limit is None or late.sum() < limit * rows.sum():
        return []
    at = datetime.fromtimestamp(curves.window.times[int(np.flatnonzero(late)[0])], UTC)
    text = f"{count(late.sum())} of {count(rows.sum())} rows came after the watermark, and were dropped"
    ago = curves.window.times[-1] - curves.window.times[int(np.flatnonzero(late)[-1])]
    text += f", the last ones {seconds(ago)} ago." if ago >= _NEAR.total_seconds() else "."
    return [Reading("warn", f"{text} What to do: a larger watermark in the job's YAML, if they are to count.", at)]
