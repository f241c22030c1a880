"""Functions over the rows of many keys that are hard to write with expressions of polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from streamwarden.keyed_state.chunks import distinct
from streamwarden.keyed_state.job import KEY_ID

__all__ = [
    "session_ids",
    "sliding_windows",
    "union_of_lists",
]

_LIFT = 2**31
_MAX_INT64 = 2**63 - 1

_Integers = NDArray[np.int64]


def session_ids(rows: pl.DataFrame, *, start: str, end: str, gap: int) -> pl.Series:
    """Number the sessions of each key: intervals of the same key that are at most `gap` apart belong together.

    Does not depend on the order of the rows.

    Parameters
    ----------
    rows
        ``key_id`` and the intervals; an event is an interval whose start is its end.
    start, end
        Columns of integers, in one unit.
    gap
        In the same unit.

    Returns
    -------
    polars.Series
        For each row its session's number, counted over all keys in the order of ``key_id`` and start.
    """
    keys, begin, until = (_integers(rows[name]) for name in (KEY_ID, start, end))
    ids, sessions = np.empty(len(rows), np.int64), 0
    for line in _lines([keys], begin, until + gap):
        (part,), (lift,) = line.parts, line.lifts
        starts, ends = begin[part] + lift, until[part] + lift
        # Stable: quick for the state, which is in order already.
        order = np.argsort(starts, kind="stable")
        is_first = np.ones(len(order), bool)
        np.greater(starts[order][1:] - np.maximum.accumulate(ends[order])[:-1], gap, out=is_first[1:])
        of_part = np.empty(len(order), np.int64)
        of_part[order] = np.cumsum(is_first) - 1 + sessions
        ids[part] = of_part
        sessions += int(is_first.sum())
    return pl.Series("session", ids)


def sliding_windows(
    changed: pl.DataFrame, rows: pl.DataFrame, *, at: str, size: int, every: int, sums: Sequence[str] = ()
) -> pl.DataFrame:
    """Return the sliding windows that some rows lie in, and what all rows of the key add up to in each.

    Parameters
    ----------
    changed
        ``key_id`` and `at`, without nulls: the rows whose windows are wanted.
    rows
        ``key_id``, `at` and `sums`, without nulls: the rows that count, the changed ones among them.
    at
        The column of times: integers.
    size, every
        Length of a window and distance of two, in the same unit. Windows begin at multiples of `every`.
    sums
        Columns of integers to add up.

    Returns
    -------
    polars.DataFrame
        ``key_id``, ``window_start``, ``rows`` and the sums: each window once, by key and start.
    """
    times, keys = _integers(changed[at]), _integers(changed[KEY_ID])
    found = [pl.DataFrame(schema={KEY_ID: pl.Int64, "window_start": pl.Int64})]
    for line in _lines([keys], times - size - every, times):
        part = line.parts[0]
        # All that may hold a row; if `every` does not divide `size`, the earliest may end before it.
        starts = (times[part] // every * every)[:, None] - every * np.arange(-(-size // every))
        holds = starts + size > times[part][:, None]
        # Numbers are sorted quicker than rows, and are in the order of key and start.
        places = distinct((starts + line.lifts[0][:, None])[holds])
        found.append(pl.DataFrame(dict(zip((KEY_ID, "window_start"), line.back(places), strict=True))))
    windows = pl.concat(found)
    begin = _integers(windows["window_start"])
    return windows.hstack(_totals(_integers(windows[KEY_ID]), begin, begin + size, rows, at, sums))


def union_of_lists(ids: pl.Series, values: pl.Series, number: int) -> pl.Series:
    """Return for each id the sorted set of the values in its rows' lists.

    Ten times as fast as ``explode().unique().sort()`` in a ``group_by``, which makes a frame for each group.

    Parameters
    ----------
    ids
        Of each row, from 0.
    values
        Lists of integers that fit into 32 bits. Nulls within a list are left out.
    number
        The number of ids.
    """
    lengths = values.list.len().fill_null(0).to_numpy()
    flat = values.list.explode(keep_nulls=False, empty_as_null=False)
    pairs = pl.DataFrame({"id": np.repeat(_integers(ids), lengths), "value": flat}).drop_nulls()
    # The id above 32 bits, and below it the value, lifted so that it is not negative.
    codes = distinct((pairs["id"].to_numpy() << 32) | (pairs["value"].cast(pl.Int64).to_numpy() + _LIFT))
    members = ((codes & 0xFFFFFFFF) - _LIFT).astype(np.int32)
    ends = np.searchsorted(codes >> 32, np.arange(number), "right")
    return _lists(members, ends, values.dtype)


def _lists(values: np.ndarray, ends: np.ndarray, dtype: pl.DataType) -> pl.Series:
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    made = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)))
    assert isinstance(made, pl.Series)
    return made.cast(dtype)


def _integers(column: pl.Series) -> _Integers:
    return column.cast(pl.Int64).to_numpy()


def _totals(
    keys: _Integers, begin: _Integers, end: _Integers, rows: pl.DataFrame, at: str, sums: Sequence[str]
) -> pl.DataFrame:
    """Count and add up, for each range of a key, the rows of that key with ``begin <= at < end``."""
    times = _integers(rows[at])
    found = np.zeros((len(sums) + 1, len(keys)), np.int64)
    for line in _lines([_integers(rows[KEY_ID]), keys], np.append(times, begin), np.append(times, end)):
        parts, lifts = line.parts, line.lifts
        places = times[parts[0]] + lifts[0]
        order = np.argsort(places, kind="stable")
        places = places[order]
        first = np.searchsorted(places, begin[parts[1]] + lifts[1])
        last = np.searchsorted(places, end[parts[1]] + lifts[1])
        found[0, parts[1]] = last - first
        for number, name in enumerate(sums, 1):
            until = np.concatenate([[0], np.cumsum(_integers(rows[name])[parts[0]][order])])
            found[number, parts[1]] = until[last] - until[first]
    return pl.DataFrame(dict(zip(("rows", *sums), found, strict=True)))


_Part = slice | NDArray[np.bool_]


@dataclass(frozen=True)
class _Line:
    """The times of some keys on one line, each key's above those of the key before.

    Parameters
    ----------
    parts, lifts
        For each array of keys: its rows on this line, and what to add to their times.
    first, width, least
        The first key, the length of a key's part, and the earliest time.
    """

    parts: list[_Part]
    lifts: list[_Integers]
    first: int
    width: int
    least: int

    def back(self, places: _Integers) -> tuple[_Integers, _Integers]:
        """Return the keys and times of places."""
        keys = places // self.width
        return keys + self.first, places - keys * self.width + self.least


def _lines(keys: Sequence[_Integers], begin: _Integers, end: _Integers) -> Iterator[_Line]:
    """Put the times of all keys on one line, so that one sort or search serves all keys.

    Where a line of 64 bits is too short, there are several of some keys each.

    Parameters
    ----------
    keys
        The keys of some arrays of rows.
    begin, end
        Times, of which the earliest and the latest count.
    """
    every = np.concatenate(keys)
    if not len(every):
        return
    # Python's integers do not overflow.
    least, low, high = int(begin.min()), int(every.min()), int(every.max())
    width = int(end.max()) - least + 1
    together = max(_MAX_INT64 // width, 1)
    for first in range(low, high + 1, together):
        parts: list[_Part] = [slice(None)] * len(keys)
        if high - low >= together:
            parts = [(some >= first) & (some - first < together) for some in keys]
        lifts = [(some[part] - first) * width - least for some, part in zip(keys, parts, strict=True)]
        yield _Line(parts, lifts, first, width, least)
