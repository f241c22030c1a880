"""What a stream's curves mean, in sentences: is it slow, since when, in which phase, and what happened before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from streamwarden.airflow.pages.events import Event
from streamwarden.airflow.pages.words import count, percent, seconds
from streamwarden.formats.progress_history import Curves
from streamwarden.model.spec import JobSpec
from streamwarden.supervision.health_rules import LATE_ROWS_FROM

__all__ = ["Reading", "read_curves", "since_when"]

_BUSY = 0.8
"""The share of time above which a job has little room left: the next larger batch makes it fall behind."""

_NEAR = timedelta(minutes=10)
"""How long before a change an event may be its cause."""

_MIN_POINTS = 3

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


def read_curves(curves: Curves, spec: JobSpec, events: list[Event]) -> list[Reading]:
    """Return what the curves of a job mean, the most important first."""
    interval = spec.trigger.interval.total_seconds()
    durations = [None if value is None else value / 1000 for value in curves.mean("duration_ms")]
    recent = [value for value in durations if value is not None][-_MIN_POINTS:]
    if not recent:
        return []
    found = []
    mean = sum(recent) / len(recent)
    start = since_when(durations, interval * _BUSY)
    at = datetime.fromtimestamp(curves.window.times[start], UTC) if start is not None else None
    if start is not None and mean >= _BUSY * interval:
        text = f"Batches take {seconds(mean)}; one is to start each {seconds(interval)}. So the job has no room left."
        before = [value for value in durations[:start] if value is not None][-_MIN_POINTS:]
        if before:
            text += f" Before, they took {seconds(sum(before) / len(before))}."
        found.append(Reading("bad" if mean > interval else "warn", text, at))
        found += _phases(curves, start)
        found += _causes(at, events, timedelta(seconds=curves.window.step))
    else:
        text = f"Batches take {seconds(mean)}, {percent(mean / interval)} of the interval of {seconds(interval)}."
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
    return [Reading("warn", f"{f'{seconds(before)} before that' if before > 0 else 'At that time'}: {cause.text}.")]


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
    if now > 0:
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
