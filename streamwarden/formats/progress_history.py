"""Batches of the table ``job_progress`` over a time, as curves: few points, however many batches there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_files import KeptResults, files_of, read_file, read_several
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.progress import BatchProgress
from streamwarden.store.layout import delta_log_key
from streamwarden.store.workspace import Workspace

__all__ = ["RATES", "Curves", "ProgressHistory", "Window"]

Floats = npt.NDArray[np.float64]
T = TypeVar("T")

RATES = ("rows_in", "duration_ms")
"""The columns that input and processed rates need."""

_ALL = (
    *("rows_in", "rows_out", "rows_quarantined", "late_rows", "duration_ms", "commit_ms", "checkpoint_ms"),
    *("watermark_lag_s", "state_rows", "state_bytes", "source_pending", "process_bytes"),
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
        rates: list[float | None] = np.round(np.nan_to_num(self.columns[column]) / self.window.step, 3).tolist()
        return rates

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
    # Only NaN differs from itself. numpy's function takes ten times as long for one number.
    return [None if value != value else value for value in np.round(values, 3).tolist()]


@dataclass(frozen=True)
class _Cells:
    """The batches of some files, added up by cells of time.

    A cell is a step of the time since the epoch; a window's points are cells. Of a value that is no sum, a cell has
    that of its last batch. Each file has its own cells.
    """

    cell: npt.NDArray[np.int64]
    batches: Floats
    longest_ms: Floats
    last_at: Floats
    columns: dict[str, Floats]
    newest: dict[str, int]
    """The newest batch, by incarnation."""


_NUMBERS = ("cell", "batches", "longest_ms", "last_at")


def _size(cells: _Cells) -> int:
    return len(cells.cell) * (len(cells.columns) + 4)


_kept: KeptResults[_Cells] = KeptResults(4_000_000, _size)
"""By file. 4 million numbers are 32 MB: a day's files of a hundred jobs, for each of the times that one can choose."""

_joined_of: KeptResults[_Cells] = KeptResults(4_000_000, _size)
"""By a job's files. A list of a hundred jobs joins thousands of files else, each time that it is drawn."""


_OPEN_FOR_S = 600.0
"""How long an opened table is kept. It grows by megabytes within hours; bringing it up to date takes a millisecond,
opening it anew fifty, a third of the list of a hundred jobs."""


class _OpenedTables:
    """Tables that were opened lately, by address and access."""

    def __init__(self) -> None:
        self._opened: dict[Hashable, tuple[float, DeltaTable]] = {}
        self._lock = threading.Lock()

    def newest(
        self, key: Hashable, there: Callable[[int], object], anew: Callable[[], DeltaTable | None]
    ) -> DeltaTable | None:
        """Return a table as of its newest version; `there` reads a version of its log, `anew` opens it."""
        now = time.monotonic()
        with self._lock:
            self._opened = {name: one for name, one in self._opened.items() if now - one[0] < _OPEN_FOR_S}
            found = self._opened.pop(key, None)
            if found is not None:
                # A table whose log was deleted or cleaned in the meantime can't go on.
                with suppress(DeltaError, OSError):
                    there(found[1].version())
                    found[1].update_incremental()
                    self._opened[key] = found
                    return found[1]
            table = anew()
            if table is not None:
                self._opened[key] = (now, table)
            return table

    def forget(self, key: Hashable) -> bool:
        """Forget a table; return whether it was known."""
        with self._lock:
            return self._opened.pop(key, None) is not None


_tables = _OpenedTables()


class ProgressHistory(ProgressTable):
    """Reads curves of the table of one place.

    Parameters
    ----------
    workspace
        The workspace of the place.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._workspace = workspace
        self._key = (self._uri, *sorted((self._options or {}).items()))

    def update(self) -> None:
        """Read what is new in the table's log, so that the next curves don't wait; they raise what fails here."""
        with suppress(StreamwardenError):
            self._tried(self._newest_version)

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
        names = tuple(columns)
        found = self._retried(lambda: self._cells(window, jobs, names))
        written = {job: one.newest for job, one in found}
        for job, (incarnation, batches) in (newer or {}).items():
            new = [done for done in batches if done.batch > written.get(job, {}).get(incarnation, -1)]
            if new:
                found.append((job, _of_batches(new, names, {incarnation: new[-1].batch}, window.step)))
        return _curves(found, window, names)

    def batches(self, job: str, *, since: datetime, last: int) -> list[dict[str, Any]]:
        """Return the newest batches of a job since a time, newest first, without their operators.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_FAILED``.
        """
        return self._retried(lambda: self._batches(job, since, last))

    def _batches(self, job: str, since: datetime, last: int) -> list[dict[str, Any]]:
        table = self._newest_version()
        files = files_of(table, [job], since, _NEVER.replace(tzinfo=since.tzinfo)) if table is not None else []
        found: list[dict[str, Any]] = []
        wanted = ("incarnation", "batch", "at", "generation", "tries", "rows_per_second", *_ALL)
        # The newest first: often two small files have all that is asked for.
        for file in sorted(files, key=lambda file: file.newest or _micros(since), reverse=True):
            enough = len(found) >= last and file.newest is not None and file.newest < _micros(found[last - 1]["at"])
            if enough:
                break
            rows = read_file(self._workspace, file, wanted, since)
            rows = rows.filter(pc.greater_equal(rows["at"], pa.scalar(since, rows["at"].type)))
            # A joined file has thousands.
            found += rows.take(pc.select_k_unstable(rows["at"], last, [("", "descending")])).to_pylist()
            found.sort(key=lambda row: row["at"], reverse=True)
        return found[:last]

    def _newest_version(self) -> DeltaTable | None:
        def there(version: int) -> object:
            return self._workspace.files.read(f"{delta_log_key(self.table)}/{version:020d}.json")

        return _tables.newest(self._key, there, lambda: self._open(make=False))

    def _retried(self, work: Callable[[], T]) -> T:
        try:
            return self._tried(work)
        except StreamwardenError:
            # The table may have been deleted and made anew since it was opened.
            if not _tables.forget(self._key):
                raise
            return self._tried(work)

    def _cells(self, window: Window, jobs: Collection[str], columns: tuple[str, ...]) -> list[tuple[str, _Cells]]:
        table = self._newest_version()
        files = files_of(table, jobs, window.since, window.until) if table is not None else []

        # Cut at a day, so that what is kept of a joined file serves until tomorrow.
        day = window.since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begin = _micros(day)
        parts = [(file.path, day if file.oldest is None or file.oldest < begin else None) for file in files]

        def key(what: Hashable) -> Hashable:
            return self._uri, window.step, columns, what

        def read(place: int) -> _Cells:
            rows = read_file(self._workspace, files[place], ("incarnation", "batch", "at", *columns), day)
            rows = rows.filter(pc.greater_equal(rows["at"], pa.scalar(day, rows["at"].type)))
            return _added_up(_of_rows(rows, columns), _newest(rows), window.step)

        def join(missing: list[int]) -> Iterable[_Cells]:
            # Read together, whatever job they are of.
            wanted = [place for job in missing for place in by_job[names[job]]]
            keys = [key(parts[place]) for place in wanted]
            cells = iter(_kept.get(keys, lambda places: read_several(lambda at: read(wanted[at]), places)))
            return [_joined(list(islice(cells, len(by_job[names[job]])))) for job in missing]

        by_job: dict[str, list[int]] = {}
        for place, file in enumerate(files):
            by_job.setdefault(file.job, []).append(place)
        names = list(by_job)
        joined = _joined_of.get([key(tuple(parts[place] for place in by_job[job])) for job in names], join)
        return list(zip(names, joined, strict=True))


_EPOCH_PER_S = 1_000_000

_NEVER = datetime(9999, 1, 1)


def _micros(at: datetime) -> int:
    return round(at.timestamp() * _EPOCH_PER_S)


def _of_rows(rows: pa.Table, columns: Iterable[str]) -> dict[str, Floats]:
    """Return columns of rows, and their times in seconds as ``at``; NaN for null."""
    found = {name: rows[name].cast(pa.float64()).to_numpy().astype(np.float64) for name in columns}
    return {**found, "at": rows["at"].cast(pa.int64()).to_numpy() / _EPOCH_PER_S}


def _of_batches(
    batches: Sequence[BatchProgress], columns: Iterable[str], newest: dict[str, int], step: float
) -> _Cells:
    """Return batches as cells, one for each. A table made of them would take as long as all else on a large page."""
    at = np.array([done.at.timestamp() for done in batches])
    found = {}
    for name in columns:
        if name == "source_pending":
            values = [done.source.pending if done.source is not None else None for done in batches]
        else:
            values = [getattr(done, name) for done in batches]
        # None becomes NaN, which would make a sum NaN.
        numbers = np.array(values, np.float64)
        found[name] = np.where(np.isnan(numbers), 0, numbers) if name in _SUMS else numbers
    longest = found.get("duration_ms", np.zeros(len(batches)))
    return _Cells(np.floor(at / step).astype(np.int64), np.ones(len(batches)), longest, at, found, newest)


def _added_up(values: dict[str, Floats], newest: dict[str, int], step: float) -> _Cells:
    """Return batches, given as columns, added up by cells."""
    order = np.argsort(values["at"], kind="stable")
    at = values["at"][order]
    # They are in the order of time, and so are their cells: each cell is a run of them.
    cells = np.floor(at / step).astype(np.int64)
    begins = np.flatnonzero(np.diff(cells, prepend=cells[:1] - 1)) if len(cells) else np.zeros(0, np.int64)
    ends = np.append(begins[1:], len(cells)) - 1 if len(begins) else begins
    found: dict[str, Floats] = {}
    longest = np.zeros(len(begins))
    for name, column in values.items():
        if name == "at":
            continue
        column = column[order]
        if name in _SUMS:
            found[name] = np.add.reduceat(np.nan_to_num(column), begins) if len(begins) else longest
        else:
            found[name] = column[ends]
        if name == "duration_ms" and len(begins):
            longest = np.maximum.reduceat(np.nan_to_num(column), begins)
    counts = (ends - begins + 1).astype(np.float64)
    return _Cells(cells[begins], counts, longest, at[ends], found, newest)


def _joined(parts: list[_Cells]) -> _Cells:
    """Return the cells of several files as one."""
    if len(parts) == 1:
        return parts[0]
    newest: dict[str, int] = {}
    for one in parts:
        for incarnation, batch in one.newest.items():
            newest[incarnation] = max(newest.get(incarnation, -1), batch)

    numbers = {name: np.concatenate([getattr(one, name) for one in parts]) for name in _NUMBERS}
    columns = {name: np.concatenate([one.columns[name] for one in parts]) for name in parts[0].columns}
    return _Cells(**numbers, columns=columns, newest=newest)


def _newest(rows: pa.Table) -> dict[str, int]:
    """Return the newest batch of each incarnation. Arrow's own grouping starts threads, which costs more than this."""
    names = rows["incarnation"].combine_chunks().dictionary_encode()
    if len(names) == 0:
        return {}
    most = np.full(len(names.dictionary), -1, np.int64)
    np.maximum.at(most, names.indices.to_numpy(), rows["batch"].to_numpy())
    return dict(zip(names.dictionary.to_pylist(), most.tolist(), strict=True))


def _curves(found: list[tuple[str, _Cells]], window: Window, columns: Iterable[str]) -> dict[str, Curves]:
    """Return the curves of the cells of many files. One pass for all jobs: a page may have a hundred of them."""
    if not found:
        return {}
    jobs = sorted({job for job, _ in found})
    number = {job: place for place, job in enumerate(jobs)}
    first = round(window.since.timestamp() / window.step)
    owner = np.repeat([number[job] for job, _ in found], [len(one.cell) for _, one in found])
    point = np.concatenate([one.cell for _, one in found]) - first
    inside = (point >= 0) & (point < window.points)
    last_at = np.concatenate([one.last_at for _, one in found])
    # Of several files in a point, the latest batch's values count.
    order = np.flatnonzero(inside)[np.argsort(last_at[inside], kind="stable")]
    place = (owner[order] * window.points + point[order]).astype(np.int64)
    cells, shape = len(jobs) * window.points, (len(jobs), window.points)

    def total(parts: list[Floats]) -> Floats:
        summed = np.bincount(place, weights=np.concatenate(parts)[order], minlength=cells)
        return summed.astype(np.float64).reshape(shape)

    values: dict[str, Floats] = {}
    for name in columns:
        parts = [one.columns[name] for _, one in found]
        if name in _SUMS:
            values[name] = total(parts)
        else:
            last = np.full(cells, np.nan)
            last[place] = np.concatenate(parts)[order]
            values[name] = last.reshape(shape)
    longest = np.zeros(cells)
    np.maximum.at(longest, place, np.concatenate([one.longest_ms for _, one in found])[order])
    batches, longest = total([one.batches for _, one in found]), longest.reshape(shape)
    return {
        job: Curves(window, batches[row], longest[row], {name: one[row] for name, one in values.items()})
        for row, job in enumerate(jobs)
        if batches[row].any()
    }
