"""Batches of the table ``job_progress`` over a time, as curves: few points, however many batches there are.

Reads the files of the time and of the jobs in question alone, and of these the columns of the curves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.formats.progress_table import COLUMNS, ProgressTable
from streamwarden.model.progress import BatchProgress

__all__ = ["RATES", "Curves", "ProgressHistory", "Window"]

Floats = npt.NDArray[np.float64]

_EPOCH_PER_S = 1_000_000

RATES = ("rows_in", "duration_ms")
"""The columns that input and processed rates need."""

_ALL = (
    *("rows_in", "rows_out", "rows_quarantined", "late_rows", "duration_ms", "commit_ms", "checkpoint_ms"),
    *("watermark_lag_s", "state_rows", "state_bytes", "source_pending"),
)
_SUMS = frozenset({"rows_in", "rows_out", "rows_quarantined", "late_rows", "duration_ms", "commit_ms", "checkpoint_ms"})
"""Added up over a point's batches. Of all other columns, a point has the last batch's value."""


@dataclass(frozen=True)
class Window:
    """A time, cut into points.

    Parameters
    ----------
    since, until
        Its begin and end.
    step
        Seconds of a point.
    """

    since: datetime
    until: datetime
    step: float

    @classmethod
    def of(cls, until: datetime, length: timedelta, *, points: int = 240, least: timedelta = timedelta(0)) -> Window:
        """Return the window of a length, in at most this number of points, each at least `least` long."""
        step = max(length.total_seconds() / points, least.total_seconds(), 1.0)
        # Points begin at multiples of the step: a curve that is drawn again does not tremble.
        end = (until.timestamp() // step + 1) * step
        count = max(round(length.total_seconds() / step), 1)
        zone = until.tzinfo
        return cls(datetime.fromtimestamp(end - count * step, zone), datetime.fromtimestamp(end, zone), step)

    @property
    def points(self) -> int:
        """The number of points."""
        return round((self.until.timestamp() - self.since.timestamp()) / self.step)

    @property
    def times(self) -> list[float]:
        """The begin of each point, in seconds since the epoch."""
        return [self.since.timestamp() + number * self.step for number in range(self.points)]


@dataclass(frozen=True)
class Curves:
    """The curves of one job.

    Parameters
    ----------
    window
        Their time.
    batches
        The number of batches of each point.
    longest_ms
        The longest batch of each point; 0 without one.
    columns
        A value for each point, by column; NaN without a value.
    """

    window: Window
    batches: Floats
    longest_ms: Floats
    columns: Mapping[str, Floats]

    def per_second(self, column: str) -> list[float | None]:
        """Return a sum as a rate over the time of each point; 0 without a batch."""
        return [round(float(value), 3) for value in np.nan_to_num(self.columns[column]) / self.window.step]

    def while_busy(self, column: str) -> list[float | None]:
        """Return a sum as a rate over the time in which batches ran; None without a batch."""
        busy = self.columns["duration_ms"] / 1000
        return _plain(np.divide(self.columns[column], busy, out=np.full_like(busy, np.nan), where=busy > 0))

    def mean(self, column: str) -> list[float | None]:
        """Return a sum as a mean over the batches of each point; None without a batch."""
        return _plain(
            np.divide(
                self.columns[column], self.batches, out=np.full_like(self.batches, np.nan), where=self.batches > 0
            )
        )

    def values(self, column: str) -> list[float | None]:
        """Return the values of a column; None without one."""
        return _plain(self.columns[column])


def _plain(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 3) for value in values]


class ProgressHistory(ProgressTable):
    """Reads curves of the table of one place."""

    def curves(
        self,
        window: Window,
        jobs: Collection[str],
        *,
        columns: Collection[str] = _ALL,
        newer: Mapping[str, tuple[str, Iterable[BatchProgress]]] | None = None,
    ) -> dict[str, Curves]:
        """Return the curves of jobs, by job; a job without a batch in the window has none.

        Parameters
        ----------
        window
            The time.
        jobs
            The jobs.
        columns
            Which columns.
        newer
            By job, its incarnation and batches that a driver may still have to write to the table.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_FAILED``.
        """
        rows = self._tried(lambda: self._rows(window, sorted(jobs), columns))
        late = _rows_of(newer or {}, rows, columns, window)
        if late is not None:
            rows = pa.concat_tables([rows, late])
        return _cut(rows, window, columns)

    def batches(self, job: str, *, since: datetime, last: int) -> list[dict[str, Any]]:
        """Return the newest batches of a job since a time, newest first, without their operators.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_FAILED``.
        """
        columns = ("generation", "tries", "rows_per_second", *_ALL)
        window = Window(since, since + timedelta(days=36500), 1)
        found = self._tried(lambda: self._rows(window, [job], columns))
        rows: list[dict[str, Any]] = found.sort_by([("at", "descending")]).slice(0, last).to_pylist()
        return rows

    def _rows(self, window: Window, jobs: list[str], columns: Collection[str]) -> pa.Table:
        wanted = ["job", "incarnation", "batch", "at", *columns]
        empty = pa.schema([(name, COLUMNS[name][0]) for name in wanted]).empty_table()
        table = self._open(make=False)
        if table is None or not jobs:
            return empty
        kind = pa.timestamp("us", "UTC")
        within = (pc.field("at") >= pa.scalar(window.since, kind)) & (pc.field("at") < pa.scalar(window.until, kind))
        data = table.to_pyarrow_dataset()
        there = [name for name in wanted if name in data.schema.names]
        found = data.to_table(columns=there, filter=within & pc.field("job").isin(jobs))
        for name in wanted:
            if name not in there:
                found = found.append_column(name, pa.nulls(len(found), COLUMNS[name][0]))
        return found.select(wanted).cast(empty.schema)


def _rows_of(
    newer: Mapping[str, tuple[str, Iterable[BatchProgress]]], rows: pa.Table, columns: Collection[str], window: Window
) -> pa.Table | None:
    """Return batches that are not among the rows, in the same form; None if there are none."""
    newest: dict[str, int] = {}
    if newer:
        wanted = pc.is_in(rows["incarnation"], pa.array([incarnation for incarnation, _ in newer.values()]))
        own = rows.select(["incarnation", "batch"]).filter(wanted)
        known = own.group_by("incarnation").aggregate([("batch", "max")])
        newest = dict(zip(known["incarnation"].to_pylist(), known["batch_max"].to_pylist(), strict=True))
    found = []
    for job, (incarnation, batches) in newer.items():
        for done in batches:
            if done.batch > newest.get(incarnation, -1) and window.since <= done.at < window.until:
                source = done.source
                own = {**done.__dict__, "source_pending": source.pending if source else None}
                head = {"job": job, "incarnation": incarnation, "batch": done.batch, "at": done.at}
                found.append({**head, **{name: own[name] for name in columns}})
    return pa.Table.from_pylist(found, schema=rows.schema) if found else None


def _cut(rows: pa.Table, window: Window, columns: Collection[str]) -> dict[str, Curves]:
    if not len(rows):
        return {}
    rows = rows.sort_by([("at", "ascending")])
    names = rows["job"].combine_chunks().dictionary_encode()
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    jobs = names.dictionary.to_pylist()
    at = rows["at"].cast(pa.int64()).to_numpy() / _EPOCH_PER_S
    point = np.clip(((at - window.since.timestamp()) / window.step).astype(np.int64), 0, window.points - 1)
    # One number for job and point: the rows of all jobs are added up at once.
    cell = names.indices.to_numpy().astype(np.int64) * window.points + point
    cells, shape = len(jobs) * window.points, (len(jobs), window.points)
    batches = np.bincount(cell, minlength=cells).astype(np.float64).reshape(shape)
    found: dict[str, Floats] = {}
    for name in columns:
        values = rows[name].cast(pa.float64()).to_numpy()
        if name in _SUMS:
            sums = np.bincount(cell, weights=np.nan_to_num(values), minlength=cells)
            found[name] = sums.astype(np.float64).reshape(shape)
        else:
            last = np.full(cells, np.nan)
            # Rows are in the order of time: of a cell's values, the last one stays.
            last[cell] = values
            found[name] = last.reshape(shape)
    longest = np.zeros(cells)
    if "duration_ms" in columns:
        np.maximum.at(longest, cell, np.nan_to_num(rows["duration_ms"].cast(pa.float64()).to_numpy()))
    longest = longest.reshape(shape)
    return {
        job: Curves(window, batches[number], longest[number], {name: one[number] for name, one in found.items()})
        for number, job in enumerate(jobs)
    }
