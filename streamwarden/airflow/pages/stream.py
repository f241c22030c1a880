"""One stream over a time: its curves, its events, its batches, and what they mean in words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from streamwarden.airflow.pages.charts import Chart, Series
from streamwarden.airflow.pages.events import Event, events_of
from streamwarden.airflow.pages.rates import Rates, rates_of
from streamwarden.airflow.pages.reading import Reading, read_curves
from streamwarden.airflow.pages.streams import slow_words
from streamwarden.autoscaler.advise import advise
from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_history import Curves, ProgressHistory, Window
from streamwarden.model.progress import BatchProgress, Totals
from streamwarden.model.record import utc_now
from streamwarden.model.spec import JobSpec
from streamwarden.operations.diagnosis import Diagnosis, diagnose
from streamwarden.operations.overview import Overview, overview
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["StreamPage", "charts_of", "stream_page"]


_WITHOUT_ZEROS = frozenset({"state_rows", "state_bytes", "dropped"})
"""Charts that a job without state, or without such rows, does not need."""


@dataclass(frozen=True)
class StreamPage:
    """The page of a stream.

    Parameters
    ----------
    of
        What is known of the job.
    window
        Its time.
    live
        Whether the time ends now.
    charts
        The charts, those without a value left out.
    events
        What happened in the time, oldest first.
    batches
        The newest batches in the time, newest first.
    readings
        What the curves mean.
    diagnosis
        Why the job is down, and what to do.
    totals
        The sums of its generation.
    problem
        Why there are no curves, if the table can't be read.
    rates
        What it does now.
    slow
        How much longer than the interval its batches take, in words.
    """

    of: Overview
    window: Window
    live: bool
    charts: list[Chart]
    events: list[Event]
    batches: list[BatchProgress]
    readings: list[Reading]
    diagnosis: Diagnosis | None
    totals: Totals | None
    spec: JobSpec | None
    rates: Rates
    problem: StreamwardenError | None = None
    slow: str = ""


def stream_page(workspace: Workspace, job: str, length: timedelta, *, until: datetime, live: bool) -> StreamPage:
    """Return the page of a stream.

    Parameters
    ----------
    length, until
        Its time.
    live
        Whether `until` is now.
    """
    of = overview(workspace, job)
    documents = JobDocuments(workspace.storage, job)
    spec = of.seen.desired.spec if of.seen is not None and of.seen.desired is not None else None
    window = Window.of(until, length, least=spec.trigger.interval if spec is not None else timedelta(0))
    newer: Mapping[str, tuple[str, list[BatchProgress]]] = {}
    if of.seen is not None and of.seen.progress is not None:
        newer = {job: (of.seen.progress.incarnation, of.recent)}
    curves, problem = None, None
    history = ProgressHistory(workspace)
    try:
        curves = history.curves(window, [job], newer=newer).get(job)
    except StreamwardenError as error:
        problem = error
    rates = rates_of(of, utc_now())
    readings: list[Reading] = []
    events = events_of(workspace, job, window) if of.seen is not None else []
    wanted = of.seen is not None and of.seen.desired is not None and of.seen.desired.state == "running"
    # Of a suspended job, the last curves say nothing about now.
    if curves is not None and spec is not None and (wanted or not live):

        def closer(near: Window) -> Curves | None:
            # Otherwise the page tells the begin of a point.
            with suppress(StreamwardenError):
                return history.curves(near, [job], newer=newer).get(job)
            return None

        readings = read_curves(curves, spec, events, closer, rates.took if live else None)
    return StreamPage(
        of=of,
        window=window,
        live=live,
        charts=charts_of(curves) if curves is not None else [],
        events=events,
        batches=[one for one in reversed(of.recent) if window.since <= one.at < window.until],
        readings=_advised(workspace, job, readings) if live else readings,
        diagnosis=diagnose(workspace, of.seen) if of.seen is not None else None,
        totals=documents.current_totals() if of.seen is not None else None,
        spec=spec,
        problem=problem,
        rates=rates,
        slow=slow_words(of, rates) if live else "",
    )


def _advised(workspace: Workspace, job: str, readings: list[Reading]) -> list[Reading]:
    """Put the advice in place of what refers to it, if it has a remedy."""
    if not any(one.see for one in readings):
        return readings
    try:
        advice = advise(workspace, job)
    except StreamwardenError:
        # Its tab tells the error.
        return readings
    said = advice.recommendation
    if not said.changes and (said.expected_busy is None or said.expected_busy[0] < 1):
        return readings
    change = [f"rescale, {advice.change.replace('->', '→')}"] if said.changes else []
    text = f"What to do: {'. '.join([*change, *said.why[:1]])}. See the"
    return [replace(one, text=text) if one.see else one for one in readings]


def charts_of(curves: Curves) -> list[Chart]:
    """Return the charts of a job's curves; those without a value are left out."""
    compute = [
        None if whole is None or commit is None else max(whole - commit, 0) / 1000
        for whole, commit in zip(curves.mean("duration_ms"), curves.mean("commit_ms"), strict=True)
    ]
    tables = [
        None if commit is None or checkpoint is None else max(commit - checkpoint, 0) / 1000
        for commit, checkpoint in zip(curves.mean("commit_ms"), curves.mean("checkpoint_ms"), strict=True)
    ]
    checkpoint = [None if value is None else value / 1000 for value in curves.mean("checkpoint_ms")]
    longest = [float(value) / 1000 if value else None for value in curves.longest_ms]
    found = [
        Chart(
            "rates",
            "Rows per second",
            "rows/s",
            [Series("input", curves.per_second("rows_in")),
             Series("processed while busy", curves.while_busy("rows_in"))],
            "Input is what arrived, over all time. Processed is the speed while a batch runs: input above it piles up.",
        ),
        Chart(
            "phases",
            "Batch duration by phase",
            "s",
            [Series("compute", compute, fill=True), Series("table commits", tables, fill=True),
             Series("checkpoint", checkpoint, fill=True)],
            "Mean over the batches of a point. Compute includes reading, and the commits of the state.",
            stacked=True,
        ),
        Chart("longest", "Longest batch", "s", [Series("longest batch", longest)], "The longest batch of each point."),
        Chart(
            "backlog",
            "Backlog",
            "units",
            [Series("left to read", curves.values("source_pending"))],
            "Files, versions or offsets of the source that are not read yet.",
        ),
        Chart(
            "lag",
            "Watermark lag",
            "s",
            [Series("newest event less watermark", curves.values("watermark_lag_s"))],
            "How far the watermark is behind the newest event.",
        ),
        Chart("state_rows", "State rows", "rows", [Series("state rows", curves.values("state_rows"))],
              "Rows of state over all operators."),
        Chart("state_bytes", "State memory", "bytes", [Series("state memory", curves.values("state_bytes"))],
              "Memory that the state stores use."),
        Chart("memory", "Memory of the driver", "bytes", [Series("resident", curves.values("process_bytes"))],
              "Resident memory of its Python, its JVM and Python workers; without executors on other machines."),
        Chart(
            "dropped",
            "Late and quarantined rows",
            "rows/s",
            [Series("late", curves.per_second("late_rows")),
             Series("quarantined", curves.per_second("rows_quarantined"))],
            "Rows dropped as late, and rows written to the job's other tables.",
        ),
    ]  # fmt: skip
    return [
        chart for chart in found if not chart.is_empty and (chart.name not in _WITHOUT_ZEROS or chart.is_above_zero)
    ]
