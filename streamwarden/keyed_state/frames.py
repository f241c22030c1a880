"""Functions over the rows of many keys that are hard to write with expressions of polars."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from streamwarden.keyed_state.job import KEY_ID

__all__ = ["session_ids", "union_of_lists"]

_LIFT = 2**31
_MAX_INT64 = 2**63 - 1


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
    ids = _session_ids(rows[KEY_ID].to_numpy(), rows[start].to_numpy(), rows[end].to_numpy(), gap)
    return pl.Series("session", ids)


def _session_ids(
    keys: NDArray[np.int64], begin: NDArray[np.int64], until: NDArray[np.int64], gap: int
) -> NDArray[np.int64]:
    if not len(keys):
        return np.empty(0, np.int64)
    # Python's integers do not overflow.
    least, key, last_key = int(begin.min()), int(keys.min()), int(keys.max())
    width = int(until.max()) - least + gap + 2
    if (last_key - key + 1) * width > _MAX_INT64 and key < last_key:
        # Times too far apart for so many keys: each half by itself.
        ids = np.empty(len(keys), np.int64)
        low = keys <= (key + last_key) // 2
        ids[low] = _session_ids(keys[low], begin[low], until[low], gap)
        ids[~low] = _session_ids(keys[~low], begin[~low], until[~low], gap) + ids[low].max() + 1
        return ids
    # One line of time for all keys, each lifted above the one before: one sort, and one running maximum of the ends.
    lift = (keys - key) * width - least
    begin, until = begin + lift, until + lift
    # Stable: quick for the state, which is in order already.
    order = np.argsort(begin, kind="stable")
    is_first = np.ones(len(keys), bool)
    np.greater(begin[order][1:] - np.maximum.accumulate(until[order])[:-1], gap, out=is_first[1:])
    ids = np.empty(len(keys), np.int64)
    ids[order] = np.cumsum(is_first) - 1
    return ids


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
    pairs = pl.DataFrame({"id": np.repeat(ids.cast(pl.Int64).to_numpy(), lengths), "value": flat}).drop_nulls()
    # The id above 32 bits, and below it the value, lifted so that it is not negative.
    codes = np.sort((pairs["id"].to_numpy() << 32) | (pairs["value"].cast(pl.Int64).to_numpy() + _LIFT))
    codes = codes[np.concatenate([[True], codes[1:] != codes[:-1]])] if len(codes) else codes
    distinct = ((codes & 0xFFFFFFFF) - _LIFT).astype(np.int32)
    ends = np.searchsorted(codes >> 32, np.arange(number), "right")
    return _lists(distinct, ends, values.dtype)


def _lists(values: np.ndarray, ends: np.ndarray, dtype: pl.DataType) -> pl.Series:
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    made = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)))
    assert isinstance(made, pl.Series)
    return made.cast(dtype)
