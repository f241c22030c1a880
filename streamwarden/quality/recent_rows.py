"""The rows of the last days of a table, without Spark: for rules about more than the new rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.quality.in_memory import check_size
from streamwarden.quality.table_versions import NewFile, TableVersions

__all__ = ["MissingColumnError", "all_rows", "begin_of", "files_since", "rows_since"]

_CUT = timedelta(milliseconds=1)
"""Delta cuts the greatest time in a file's statistics to milliseconds."""


class MissingColumnError(Exception):
    """The table has no such column."""


def begin_of(versions: TableVersions, version: int, column: str, days: int) -> Any:
    """Return the value from which on rows are recent; None for a table without such a value.

    Read from the files' statistics; from the rows of those files that have none.

    Raises
    ------
    MissingColumnError
        There is no such column.
    UnreadableHereError
        Only Spark can read the rows.
    StreamwardenError
        ``TABLE_DAMAGED``.
    """
    _check_column(versions, version, column)
    values, unknown = [], []
    for one in versions.whole(version).files:
        last = _greatest(one, column)
        if last is not None:
            values.append(last)
        elif one.rows != 0:
            unknown.append(one)
    if unknown:
        check_size(unknown)
        read = pc.max(versions.read(unknown, version, [column])[column]).as_py()
        values += [] if read is None else [read]
    newest = max(values, default=None)
    return None if newest is None else newest - timedelta(days=days)


def files_since(versions: TableVersions, version: int, column: str, begin: Any) -> list[NewFile]:
    """Return the files that may have rows from `begin` on."""
    found = []
    for one in versions.whole(version).files:
        last = _greatest(one, column)
        if isinstance(last, datetime):
            last += _CUT
        if last is None or last >= begin:
            found.append(one)
    return found


def rows_since(versions: TableVersions, version: int, column: str, begin: Any) -> pa.Table:
    """Return the rows of a version whose value in a column is at least `begin`. For errors see :func:`begin_of`."""
    _check_column(versions, version, column)
    files = files_since(versions, version, column, begin)
    check_size(files)
    rows = versions.read(files, version)
    return rows.filter(pc.greater_equal(rows[column], pa.scalar(begin).cast(rows[column].type)))


def all_rows(versions: TableVersions, version: int) -> pa.Table:
    """Return all rows of a version. For errors see :func:`begin_of`."""
    files = versions.whole(version).files
    check_size(files)
    return versions.read(files, version)


def _check_column(versions: TableVersions, version: int, column: str) -> None:
    if column not in {field.name for field in versions.opened(version).schema().fields}:
        raise MissingColumnError(f'The column "{column}" does not exist')


def _greatest(file: NewFile, column: str) -> Any:
    return (file.action.get("max") or {}).get(column)
