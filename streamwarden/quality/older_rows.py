"""Older rows with the keys of new ones: a rule that keys are unique concerns both.

Only the key columns of older files are read, and only of files whose statistics say that they may have such a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.quality.failing_rows import UNIQUE, quoted
from streamwarden.quality.sql import BATCH, run
from streamwarden.quality.suites import Expectation, Suite
from streamwarden.quality.table_versions import NewFile, NewFiles, TableVersions

__all__ = ["with_repeated_keys"]


def with_repeated_keys(
    suite: Suite, versions: TableVersions, added: NewFiles, rows: pa.Table, version: int
) -> Iterator[tuple[Expectation, pa.Table]]:
    """Yield the expectations of unique keys that older rows break, each with the new rows and those older ones.

    The tables have the columns of the expectation and of the suite's keys only.
    """
    rules = [
        (expectation, list(expectation.columns))
        for expectation in suite.expectations
        if expectation.type in UNIQUE and set(expectation.columns) <= set(rows.schema.names)
    ]
    if not rules:
        return
    new = {one.path for one in added.files}
    older = [one for one in versions.whole(version).files if one.path not in new]
    for expectation, columns in rules:
        files = [one for one in older if _may_share(one, rows, columns)]
        if not files:
            continue
        wanted = list(dict.fromkeys([*columns, *(key for key in suite.meta.keys if key in rows.schema.names)]))
        fresh = rows.select(wanted)
        names = ", ".join(map(quoted, columns))
        # A scan, not a table: the older rows need not fit into memory.
        shared = run(
            f"SELECT {', '.join(map(quoted, wanted))} FROM older"
            f" SEMI JOIN (SELECT DISTINCT {names} FROM {BATCH}) USING ({names})",
            {"older": versions.scan(files, version), BATCH: fresh},
        )
        if shared.num_rows:
            yield expectation, pa.concat_tables([fresh, shared.cast(fresh.schema)])


def _may_share(file: NewFile, rows: pa.Table, columns: Sequence[str]) -> bool:
    low, high = file.action.get("min") or {}, file.action.get("max") or {}
    for name in columns:
        if low.get(name) is None or high.get(name) is None or pa.types.is_string(rows.schema.field(name).type):
            # Statistics of text are cut.
            continue
        bounds: Any = pc.min_max(rows[name]).as_py()
        if bounds["min"] is None:
            return False
        if _later(bounds["min"], high[name]) or _later(low[name], bounds["max"]):
            return False
    return True


def _later(one: Any, other: Any) -> bool:
    try:
        return bool(one > other)
    except TypeError:
        # Statistics of another type: the file is read.
        return False
