"""Quarantined rows of a table: how many by rule or reason, and the newest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.row_rules import quarantine_of
from streamwarden.model.spec import EDITS_TABLE
from streamwarden.operations.quarantine import Cause, Quarantined, RowState, counted, quarantined_rows
from streamwarden.operations.source_rows import content_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Quarantine", "Versions", "quarantine_of_table", "quarantine_versions", "shortened"]

Versions = tuple[int, int]
"""The versions of a quarantine table and of ``quarantine_edits``: as long as they stay, so do the rows."""

_SHOWN = 20

_MOST = 20_000
"""Rows that are read for a page. More take seconds: then the page names the command."""

_LONGEST = 300


@dataclass(frozen=True)
class Quarantine:
    """The quarantined rows of a table.

    Parameters
    ----------
    table
        The quarantine table.
    rows
        How many rows are stored there.
    causes
        Rows by rule or reason; empty if there are too many to read.
    newest
        The newest rows that are not replayed, newest first.
    """

    table: str
    rows: int
    causes: list[Cause] = field(default_factory=list)
    newest: list[Quarantined] = field(default_factory=list)

    @property
    def too_many(self) -> bool:
        """Whether there are too many to read."""
        return self.rows > _MOST


def quarantine_versions(workspace: Workspace, table: str) -> Versions | None:
    """Return the versions for a table, -1 for edits that are not there; None without a quarantine."""
    there = DeltaLog(workspace.files, quarantine_of(table)).latest
    edits = DeltaLog(workspace.files, EDITS_TABLE).latest
    return None if there is None else (there, -1 if edits is None else edits)


def quarantine_of_table(workspace: Workspace, table: str, jobs: list[str]) -> Quarantine:
    """Return the quarantined rows of a table.

    Parameters
    ----------
    jobs
        The jobs that write it.

    Raises
    ------
    StreamwardenError
        ``TABLE_NOT_FOUND`` if they can't be read, ``QUARANTINE_EDITS_FAILED``, ``DOCUMENT_INVALID``.
    """
    name = quarantine_of(table)
    rows = _count(workspace, name)
    if rows > _MOST:
        return Quarantine(name, rows)
    desired = JobDocuments(workspace.storage, jobs[0]).desired.read() if jobs else None
    content = content_of(workspace, desired.spec) if desired is not None else None
    found = quarantined_rows(workspace, name, content=content)
    newest = [one for one in reversed(found) if one.state is not RowState.REPLAYED][:_SHOWN]
    return Quarantine(name, rows, counted(found), newest)


def shortened(text: str | None) -> str:
    """Return a row's text, cut if it is long."""
    return "" if text is None else text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _count(workspace: Workspace, table: str) -> int:
    address, options = workspace.delta_rs(table)
    try:
        adds = DeltaTable(address, storage_options=options).get_add_actions(flatten=True)
    except (DeltaError, OSError) as error:
        raise StreamwardenError("TABLE_NOT_FOUND", f"{table}: {error}") from error
    counts: Any = adds.column("num_records").to_pylist() if "num_records" in adds.schema.names else []
    return sum(count or 0 for count in counts)
