"""The files of the table ``job_progress``, read one by one: those of some jobs and of a time.

delta-rs would make an expression of each file's statistics before it reads any: with thousands of small files that
takes seconds. Here the log's statistics choose the files, and only these are opened. A file never changes: what was
computed from it is kept.

Read against delta-rs 1.6: the table has no deletion vectors, because delta-rs rewrites files when it deletes rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from streamwarden.formats.progress_table import COLUMNS
from streamwarden.model.spec import PROGRESS_TABLE
from streamwarden.store.layout import table_key
from streamwarden.store.workspace import Workspace

__all__ = ["File", "KeptResults", "files_of", "read_file", "read_several"]

T = TypeVar("T")

_TIME = pa.timestamp("us", "UTC")
_READERS = 8


@dataclass(frozen=True)
class File:
    """A file of the table.

    Parameters
    ----------
    path
        Its path in the table.
    job
        The job of its rows.
    oldest, newest
        The times of its oldest and newest row, in microseconds since the epoch; None: unknown. Thousands of datetimes
        would take as long as the rest of a page.
    """

    path: str
    job: str
    oldest: int | None
    newest: int | None


def files_of(table: DeltaTable, jobs: Collection[str], since: datetime, until: datetime) -> list[File]:
    """Return the files of jobs that may have rows of a time: at or after `since`, and before `until`."""
    adds = table.get_add_actions(flatten=True)
    wanted = ["path", "partition.job", "min.at", "max.at"]
    chosen = pa.table(adds.select(wanted)) if set(wanted) <= set(adds.schema.names) else None
    if chosen is None:
        # A table without rows has no statistics.
        return []
    low, high = (chosen[name].cast(_TIME) for name in ("min.at", "max.at"))
    late = pc.fill_null(pc.less(high, pa.scalar(since, _TIME)), False)
    early = pc.fill_null(pc.greater_equal(low, pa.scalar(until, _TIME)), False)
    mine = pc.is_in(chosen["partition.job"].cast(pa.string()), pa.array(sorted(jobs), pa.string()))
    found = chosen.filter(pc.and_(mine, pc.invert(pc.or_(late, early))))
    oldest, newest = (found[name].cast(_TIME).cast(pa.int64()).to_pylist() for name in ("min.at", "max.at"))
    return list(map(File, found["path"].to_pylist(), found["partition.job"].to_pylist(), oldest, newest))


def read_file(workspace: Workspace, file: File, columns: Iterable[str], since: datetime) -> pa.Table:
    """Return columns of a file, with the table's types; nulls for a column that its driver did not know.

    Row groups that are older than `since` are left out: a joined file has all weeks of a job.
    """
    data = workspace.files.read(f"{table_key(PROGRESS_TABLE)}/{unquote(file.path)}")
    parquet = pq.ParquetFile(pa.BufferReader(data))
    names = [name for name in columns if name != "job"]
    there = set(parquet.schema_arrow.names)
    groups = _row_groups(parquet, since)
    found = parquet.read_row_groups(groups, columns=[name for name in names if name in there], use_threads=False)
    arrays = {
        name: found[name].cast(COLUMNS[name][0]) if name in there else pa.nulls(found.num_rows, COLUMNS[name][0])
        for name in names
    }
    return pa.table(arrays)


def _row_groups(parquet: pq.ParquetFile, since: datetime) -> list[int]:
    """Return the row groups of a file that may have rows at or after a time."""
    data = parquet.metadata
    place = next(number for number, column in enumerate(parquet.schema) if column.path == "at")
    statistics = [data.row_group(group).column(place).statistics for group in range(data.num_row_groups)]
    return [group for group, one in enumerate(statistics) if one is None or not one.has_min_max or one.max >= since]


class KeptResults(Generic[T]):
    """Results of files, kept while there is room; those that were not used for longest are dropped first.

    Parameters
    ----------
    room
        The size of all results.
    size_of
        Returns the size of one.
    """

    def __init__(self, room: int, size_of: Callable[[T], int]) -> None:
        self._room, self._size_of = room, size_of
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The size of all kept results."""
        return self._size

    def get(self, keys: list[Hashable], compute: Callable[[list[int]], Iterable[T]]) -> list[T]:
        """Return the results of keys. Those that are not kept are computed, all in one call, and kept.

        Parameters
        ----------
        compute
            Called with the places of keys; returns a result for each.
        """
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        missing = [place for place, key in enumerate(keys) if key not in found]
        if not missing:
            return [found[key] for key in keys]
        made = dict(zip((keys[place] for place in missing), compute(missing), strict=True))
        with self._lock:
            for key, value in made.items():
                if key not in self._kept:
                    self._kept[key] = value
                    self._size += self._size_of(value)
            while self._size > self._room and len(self._kept) > 1:
                self._size -= self._size_of(self._kept.popitem(last=False)[1])
        return [found[key] if key in found else made[key] for key in keys]


def read_several(read: Callable[[int], T], places: list[int]) -> list[T]:
    """Return what is read at each place, several at a time: a bucket answers each request after some milliseconds."""
    with ThreadPoolExecutor(min(len(places), _READERS)) as pool:
        return list(pool.map(read, places))
