"""The Delta table ``quarantine_edits``: each replay of a quarantined row, with the row before and after.

It is the record of who corrected what, and what makes a replay happen once: a replay is entered here before its rows
are sent. An entry commits only on top of the version that was read. So of two replays of one row, one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from streamwarden.formats.appended_table import AppendedTable, schema_of
from streamwarden.model.record import utc_now
from streamwarden.model.spec import EDITS_TABLE

__all__ = ["COLUMNS", "EditsTable"]

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "table": (pa.string(), "The quarantine table. Rows are partitioned by it."),
    "row_id": (pa.string(), "The row, as `streamwarden quarantine show` names it; null: the replay's rows were sent."),
    "attempt": (pa.int32(), "1 for the first replay of the row."),
    "at": (pa.timestamp("us", tz="UTC"), "When the replay was asked for."),
    "by": (pa.string(), "Who asked."),
    "note": (pa.string(), "Why."),
    "before": (pa.string(), "The row as it was quarantined."),
    "after": (pa.string(), "The row as it is replayed: JSON."),
    "job": (pa.string(), "The job."),
    "source": (pa.string(), "The name of the job's source that it goes to."),
    "replay": (pa.string(), "The replay; its rows are sent together."),
    "sent_as": (pa.string(), "The landed file, or the table to which the rows are appended."),
    "number": (pa.int64(), "The row's position there, from 0."),
    "content": (pa.string(), "A hash of the row by the source's columns; null for files."),
    "seen": (pa.int64(), "Quarantined rows with this content before the replay; null for files."),
}
"""Column: (type, meaning), in the table's order."""


class EditsTable(AppendedTable):
    """The table of one place."""

    table = EDITS_TABLE
    schema = schema_of(COLUMNS, required="table")
    partition = "table"
    description = "One row per replay of a quarantined row; see Streamwarden's docs/quarantine.md"
    failed = "QUARANTINE_EDITS_FAILED"

    def of(self, table: str) -> list[dict[str, Any]]:
        """Return the entries of a quarantine table, oldest first; `sent` of each says whether its replay was sent.

        Raises
        ------
        StreamwardenError
            ``QUARANTINE_EDITS_FAILED``.
        """

        def read() -> list[dict[str, Any]]:
            opened = self._open(make=False)
            return [] if opened is None else _entries(opened, table)

        return self._tried(read)

    def enter(
        self, table: str, make: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Append what `make` returns for the entries that are there; return it.

        Parameters
        ----------
        table
            The quarantine table.
        make
            Called again if somebody else has appended meanwhile. Returns nothing if nothing is to be entered.

        Raises
        ------
        StreamwardenError
            ``QUARANTINE_EDITS_FAILED``, and what `make` raises.
        """

        def enter() -> list[dict[str, Any]]:
            opened = self._open(make=True)
            assert opened is not None
            new = list(make(_entries(opened, table)))
            if new:
                # A commit on top of another version could enter a row twice.
                alone = CommitProperties(max_commit_retries=0)
                write_deltalake(opened, pa.Table.from_pylist(new, self.schema), mode="append", commit_properties=alone)
            return new

        return self._tried(enter)

    def mark_sent(self, table: str, replay: str) -> None:
        """Enter that a replay's rows were sent: no later call sends them again.

        Raises
        ------
        StreamwardenError
            ``QUARANTINE_EDITS_FAILED``.
        """

        def mark() -> None:
            opened = self._open(make=True)
            assert opened is not None
            row = {"table": table, "at": utc_now(), "replay": replay}
            write_deltalake(opened, pa.Table.from_pylist([row], self.schema), mode="append")

        self._tried(mark)


def _entries(opened: DeltaTable, table: str) -> list[dict[str, Any]]:
    found = opened.to_pyarrow_dataset().to_table(filter=pc.field("table") == table)
    rows: list[dict[str, Any]] = found.sort_by([("at", "ascending"), ("number", "ascending")]).to_pylist()
    sent = {row["replay"] for row in rows if row["row_id"] is None}
    return [{**row, "sent": row["replay"] in sent} for row in rows if row["row_id"] is not None]
