"""The Delta table ``quality_results``: one row for each expectation and checked range, for trends.

A row's counts can be added up: over the ranges of a day, ``unexpected`` over ``checked`` is the day's share of failing
rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from streamwarden.formats.appended_table import AppendedTable, schema_of
from streamwarden.model.spec import QUALITY_TABLE

__all__ = ["COLUMNS", "QualityTable"]

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "table": (pa.string(), "The checked table. Rows are partitioned by it."),
    "at": (pa.timestamp("us", tz="UTC"), "When the check began."),
    "run": (pa.string(), "The check's run, as in the folder of reports."),
    "after": (pa.int64(), "Only rows of later versions were checked; null: all rows, -1: the first range."),
    "version": (pa.int64(), "The last version of the range."),
    "rows": (pa.int64(), "Rows of the range."),
    "passed": (pa.bool_(), "Whether the range passed as a whole."),
    "expectation": (pa.string(), "The expectation's id."),
    "severity": (pa.string(), "Its severity."),
    "success": (pa.bool_(), "Whether it was met."),
    "checked": (pa.int64(), "Rows that it judged; null: it is about no rows."),
    "unexpected": (pa.int64(), "Failing rows."),
    "observed": (pa.string(), "The observed value as JSON, if it is one value."),
    "error": (pa.string(), "Why it could not be evaluated."),
    "seconds": (pa.float64(), "Duration of the table's check."),
}
"""Column: (type, meaning), in the table's order."""


class QualityTable(AppendedTable):
    """The results of all checks of one place."""

    table = QUALITY_TABLE
    schema = schema_of(COLUMNS, required="table")
    partition = "table"
    description = "One row per expectation and checked range; see Streamwarden's docs/gate.md"
    failed = "QUALITY_TABLE_FAILED"

    def append(self, rows: Iterable[dict[str, Any]]) -> int:
        """Append rows with these columns; return how many. Creates the table if there is none.

        A repeated call appends them again: a reader takes one row for each run and expectation.

        Raises
        ------
        StreamwardenError
            ``QUALITY_TABLE_FAILED``.
        """
        chosen = list(rows)
        if not chosen:
            return 0

        def append() -> int:
            table = self._open(make=True)
            assert table is not None
            write_deltalake(table, pa.Table.from_pylist(chosen, self.schema), mode="append", schema_mode="merge")
            return len(chosen)

        return self._tried(append)

    def since(self, since: datetime, *, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return these columns of the rows of all tables since a time, oldest first; empty if there are none.

        Raises
        ------
        StreamwardenError
            ``QUALITY_TABLE_FAILED``.
        """

        def read() -> list[dict[str, Any]]:
            opened = self._open(make=False)
            if opened is None:
                return []
            wanted = pc.field("at") >= pa.scalar(since, pa.timestamp("us", "UTC"))
            found = opened.to_pyarrow_dataset().to_table(columns=list(columns), filter=wanted)
            rows: list[dict[str, Any]] = found.sort_by([("at", "ascending")]).to_pylist()
            return rows

        return self._tried(read)

    def read(self, table: str, *, since: datetime | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table, oldest first, one for each run and expectation; empty if there are none.

        Raises
        ------
        StreamwardenError
            ``QUALITY_TABLE_FAILED``.
        """

        def read() -> list[dict[str, Any]]:
            opened = self._open(make=False)
            if opened is None:
                return []
            wanted = pc.field("table") == table
            if since is not None:
                wanted &= pc.field("at") >= pa.scalar(since, pa.timestamp("us", "UTC"))
            rows = opened.to_pyarrow_dataset().to_table(filter=wanted).sort_by([("at", "ascending")]).to_pylist()
            return list({(row["run"], row["expectation"]): row for row in rows}.values())

        return self._tried(read)
