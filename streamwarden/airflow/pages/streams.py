"""The list of streams: what each job does, and which one needs a person."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from streamwarden.airflow.pages.charts import sparkline
from streamwarden.airflow.pages.rates import Rates, rates_of
from streamwarden.airflow.pages.words import counted, seconds
from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_history import RATES, Curves, ProgressHistory, Window
from streamwarden.model.operation import Operation
from streamwarden.operations.overview import Overview, Trouble, overview
from streamwarden.store.each import for_each
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.backlog import pending
from streamwarden.supervision.health_rules import Level
from streamwarden.supervision.held_tables import last_decision

__all__ = ["TONES", "Stream", "StreamList", "list_streams", "operation_words", "slow_words"]

TONES = {
    Trouble.DOWN: "bad",
    Trouble.CRITICAL: "bad",
    Trouble.WARN: "warn",
    Trouble.BUSY: "busy",
    Trouble.OK: "good",
    Trouble.STOPPED: "off",
    Trouble.NOT_DEPLOYED: "off",
}
"""The colour of each kind of trouble."""

_POINTS = 60

_SLOW_FROM = 3
"""Batches that show a slow job. 3: one may have had a backlog."""


@dataclass(frozen=True)
class Stream:
    """A row of the list.

    Parameters
    ----------
    job
        The job.
    of
        What is known of it.
    reasons
        Why it needs a person, or what it does, in words; the worst first.
    rates
        What it does now.
    input_path, processed_path
        Input and processed rows a second over the list's time, as paths of small curves on one scale.
    slow
        How much longer than the interval its batches take, in words. It is no alarm while none of the input piles up.
    decided_at
        When the gate last decided about one of its tables; None: never.
    """

    job: str
    of: Overview
    reasons: list[str]
    rates: Rates
    input_path: str
    processed_path: str
    slow: str = ""
    decided_at: datetime | None = None

    @property
    def tone(self) -> str:
        """The colour of its state."""
        return "warn" if self.slow else TONES[self.of.trouble]

    @property
    def state(self) -> str:
        """Its state in a word or two."""
        return self.of.seen.phase.value if self.of.seen is not None else "unknown"

    @property
    def health(self) -> str:
        """Its health; empty where it says nothing."""
        if self.of.seen is None or self.of.trouble in (Trouble.STOPPED, Trouble.NOT_DEPLOYED):
            return ""
        return self.of.health.level.value

    @property
    def pending(self) -> str:
        """What it has left to read, in words."""
        left = pending(self.of.last)
        unit = self.of.last.source.unit if self.of.last is not None and self.of.last.source is not None else ""
        return counted(left, unit) if left is not None else ""

    @property
    def operation(self) -> str:
        """The operation that works on it, in words."""
        return operation_words(self.of.operation) if self.of.operation is not None else ""

    def matches(self, text: str, show: str) -> bool:
        """Return whether it passes the list's filter."""
        words = " ".join([self.job, self.state, self.health, *self.reasons, self.operation]).lower()
        wanted = all(part in words for part in text.lower().split())
        return wanted and (show != "trouble" or self.of.trouble <= Trouble.BUSY or self.slow != "")


@dataclass(frozen=True)
class StreamList:
    """All streams of a reader.

    Parameters
    ----------
    streams
        Worst first.
    window
        The time of the curves.
    problem
        Why there are no curves, if the table can't be read.
    """

    streams: list[Stream]
    window: Window
    problem: StreamwardenError | None = None

    def counts(self) -> list[tuple[str, str, int]]:
        """Return tone, words and number of streams, worst first, for the head of the page."""
        words = {
            "bad": "in trouble",
            "warn": "with a warning",
            "busy": "busy",
            "good": "running well",
            "off": "stopped or never deployed",
        }
        found = [(tone, text, sum(one.tone == tone for one in self.streams)) for tone, text in words.items()]
        return [one for one in found if one[2]]


def list_streams(workspace: Workspace, jobs: list[str], length: timedelta, now: datetime) -> StreamList:
    """Return the rows of jobs, worst first.

    Parameters
    ----------
    length
        The time of the curves, until now.
    """
    history = ProgressHistory(workspace)
    with ThreadPoolExecutor(1) as beside:
        # delta-rs takes tens of milliseconds to read a version that was just written, most of them outside Python.
        beside.submit(history.update)
        found = for_each(workspace, jobs, lambda job: overview(workspace, job))
    window = Window.of(now, length, points=_POINTS)
    curves: dict[str, Curves] = {}
    problem = None
    newer = {one.job: (one.seen.progress.incarnation, one.recent) for one in found if one.seen and one.seen.progress}
    try:
        curves = history.curves(window, jobs, columns=RATES, newer=newer)
    except StreamwardenError as error:
        problem = error
    streams = [_stream(workspace, one, curves.get(one.job), now) for one in found]
    return StreamList(sorted(streams, key=lambda one: (one.of.trouble, not one.slow, one.job)), window, problem)


def _stream(workspace: Workspace, one: Overview, curves: Curves | None, now: datetime) -> Stream:
    read = curves.per_second("rows_in") if curves is not None else []
    done = curves.while_busy("rows_in") if curves is not None else []
    top = max((value for value in [*read, *done] if value is not None), default=0)
    rates = rates_of(one, now)
    slow = slow_words(one, rates)
    desired = one.seen.desired if one.seen is not None else None
    return Stream(
        job=one.job,
        of=one,
        reasons=_reasons(one, slow),
        slow=slow,
        rates=rates,
        decided_at=last_decision(workspace, desired.spec) if desired is not None else None,
        input_path=sparkline(read, top=top),
        processed_path=sparkline(done, top=top),
    )


def _reasons(one: Overview, slow: str) -> list[str]:
    if one.seen is None:
        return [str(one.error.what) if one.error is not None else "its documents are damaged"]
    reasons = [f"{finding.rule}: {finding.what}" for finding in one.health.findings]
    if not one.described:
        reasons.append(f"config/jobs/{one.job}.yaml is gone: nobody supervises it")
    if one.health.level is Level.OK:
        reasons.append(slow or one.seen.reason)
    return [reason for reason in reasons if reason != one.seen.phase.value]


def slow_words(one: Overview, rates: Rates) -> str:
    """Return that batches take longer than the interval; empty if they don't."""
    desired = one.seen.desired if one.seen is not None else None
    if desired is None or rates.took is None or one.trouble is not Trouble.OK or len(one.recent) < _SLOW_FROM:
        return ""
    interval = desired.spec.trigger.interval.total_seconds()
    if rates.took <= interval:
        return ""
    return f"batches take {seconds(rates.took)}; one is to start each {seconds(interval)}"


def operation_words(one: Operation) -> str:
    """Return kind and step of an operation."""
    step = one.steps[-1].name if one.steps else "starting"
    return f"{one.kind}: {step}"
