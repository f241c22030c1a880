"""The older files that may have a key of some new rows, by statistics and by what is remembered of files.

Nothing of a file is read if its statistics say that it has no such key. Otherwise one column of it is read, once: its
ranges of values are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.errors import StreamwardenError
from streamwarden.quality.table_versions import NewFile, TableVersions

__all__ = ["suspects"]

_WHOLE_TEXT = 32
"""Statistics of shorter texts are whole. Delta's default: delta-rs and Spark cut longer ones, each in its own way."""

_SPANS = 32
"""So many ranges of a file's values are kept: as many as PostgreSQL's minmax_multi keeps values for a block."""

_FILES = 100_000
"""Of so many files the ranges are kept: half a kilobyte for each, 50 MB at most."""

_spans_of: dict[tuple[str, str, str], tuple[Any, Any]] = {}
"""The ranges of values by table, file and column. A file never changes."""


def suspects(
    versions: TableVersions, version: int, older: Iterable[NewFile], keys: pa.Table
) -> tuple[list[NewFile], pa.Table]:
    """Return the files that may have one of the keys, and the keys that one of them may have.

    Parameters
    ----------
    versions, version
        The table at a version.
    older
        Files of it.
    keys
        The new rows' keys.

    Raises
    ------
    UnreadableHereError
        Only Spark can read the files.
    StreamwardenError
        ``TABLE_DAMAGED``: a file is missing or is no Parquet.
    """
    files, some = _by_statistics(older, keys)
    try:
        return _with_a_value(versions, version, files, some)
    except (OSError, pa.ArrowException) as error:
        raise StreamwardenError("TABLE_DAMAGED", f"{versions.name} at version {version}: {error}") from error


def _by_statistics(older: Iterable[NewFile], keys: pa.Table) -> tuple[list[NewFile], pa.Table]:
    """Return the files that may have one of the keys, and the keys that one of them may have."""
    # The expectation leaves out a key of nulls only.
    some = [pc.is_valid(column) for column in keys.columns]
    keys = keys.filter(_all_of(some, pc.or_))
    # A null has no place in a range: an older key may have one, too.
    bounds = {name: pc.min_max(keys[name]).as_py() for name in keys.schema.names if not keys[name].null_count}
    files, among = [], []
    for one in older:
        ranges = _ranges(one, keys.schema)
        if any(_apart(bounds[name], *limits) for name, limits in ranges.items() if name in bounds):
            continue
        # A few odd rows, such as trips of 2009, must not make every older file a suspect for all rows.
        inside = _all_of([_inside(keys[name], *limits) for name, limits in ranges.items()], pc.and_)
        if inside is None or pc.any(inside).as_py():
            files.append(one)
            among.append(inside)
    if any(one is None for one in among):
        return files, keys
    return files, keys.filter(_all_of(among, pc.or_)) if among else keys.slice(0, 0)


def _with_a_value(
    versions: TableVersions, version: int, files: Sequence[NewFile], keys: pa.Table
) -> tuple[list[NewFile], pa.Table]:
    """Return the files and keys that are left if the ranges of the most telling column are known more closely."""
    there = {field.name for field in versions.opened(version).schema().fields}
    values = {
        field.name: pc.count_distinct(keys[field.name]).as_py()
        for field in keys.schema
        if field.name in there
        and keys[field.name].null_count == 0
        and (pa.types.is_temporal(field.type) or pa.types.is_integer(field.type))
    }
    if not files or not values:
        return list(files), keys
    # As many different values as possible: a zone is in every file, a moment in few.
    name = max(values, key=lambda one: values[one])
    wanted = _numbers(keys[name])
    dataset = versions.scan(files, version)
    found, some = [], np.zeros(len(wanted), dtype=bool)
    for one, fragment in zip(files, dataset.get_fragments(), strict=True):
        place = (versions.folder, one.path, name)
        if place not in _spans_of:
            while len(_spans_of) >= _FILES:
                del _spans_of[next(iter(_spans_of))]
            column = fragment.to_table(schema=dataset.schema, columns=[name])[name]
            _spans_of[place] = _spans(_numbers(column.cast(keys[name].type).drop_null()))
        starts, ends = _spans_of[place]
        # The last range that begins before a value is the only one that may hold it.
        inside = np.searchsorted(starts, wanted, side="right") > np.searchsorted(ends, wanted, side="left")
        if inside.any():
            found.append(one)
            some |= inside
    return found, keys.filter(pa.array(some))


def _numbers(column: pa.ChunkedArray) -> Any:
    kind = pa.int64() if pa.types.is_timestamp(column.type) or column.type.bit_width == 64 else pa.int32()
    return column.cast(kind).to_numpy().astype(np.int64)


def _spans(values: Any) -> tuple[Any, Any]:
    """Return the ranges that hold values: the gaps between them are the widest.

    PostgreSQL's index BRIN does so for columns with outliers (minmax_multi).
    """
    values = np.unique(values)
    if not len(values):
        return values, values
    gaps = np.diff(values)
    cuts = np.sort(np.argsort(gaps)[-(_SPANS - 1) :]) if len(gaps) else np.array([], dtype=np.int64)
    return values[np.r_[0, cuts + 1]], values[np.r_[cuts, len(values) - 1]]


def _ranges(file: NewFile, schema: pa.Schema) -> dict[str, tuple[pa.Scalar, pa.Scalar]]:
    """Return the columns' smallest and largest values in a file, where its statistics tell."""
    low, high = file.action.get("min") or {}, file.action.get("max") or {}
    found = {}
    for field in schema:
        least, most = low.get(field.name), high.get(field.name)
        if least is None or most is None or pa.types.is_floating(field.type):
            # NaN is a key, and in no statistics.
            continue
        if isinstance(most, str) and max(len(least), len(most)) >= _WHOLE_TEXT:
            continue
        if isinstance(most, datetime):
            # Statistics have milliseconds.
            most += timedelta(milliseconds=1)
        try:
            found[field.name] = pa.scalar(least).cast(field.type), pa.scalar(most).cast(field.type)
        except pa.ArrowException:
            # Statistics of another type: they tell nothing.
            continue
    return found


def _apart(bounds: dict[str, Any], least: pa.Scalar, most: pa.Scalar) -> bool:
    return bounds["min"] is not None and bool(bounds["min"] > most.as_py() or least.as_py() > bounds["max"])


def _inside(column: pa.ChunkedArray, least: pa.Scalar, most: pa.Scalar) -> Any:
    inside = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
    return pc.fill_null(inside, True)


def _all_of(masks: Sequence[Any], both: Any) -> Any:
    """Return masks joined by `both`, None if there are none."""
    joined = None
    for mask in masks:
        joined = mask if joined is None else both(joined, mask)
    return joined
