"""What the gate has decided and published, read without a check."""

from __future__ import annotations

from dataclasses import dataclass

from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.published_log import PublishedAt, PublishedLog
from streamwarden.model.gate import GateRecord
from streamwarden.store.documents import Document
from streamwarden.store.layout import gate_key
from streamwarden.store.workspace import Workspace

__all__ = ["GateState", "gate_document", "gate_state"]


@dataclass(frozen=True)
class GateState:
    """What the gate says about a table now.

    Parameters
    ----------
    table
        Its name.
    latest
        The table's newest version; None if there is no table.
    published
        What its published table shows.
    record
        The gate's document.
    """

    table: str
    latest: int | None
    published: PublishedAt
    record: GateRecord

    @property
    def waiting(self) -> int:
        """Versions that are not published."""
        return max(0, (self.latest if self.latest is not None else -1) - self.published.content)


def gate_document(workspace: Workspace, table: str) -> Document[GateRecord]:
    """Return the gate's document of a table."""
    return Document(workspace.storage, gate_key(table), GateRecord)


def gate_state(workspace: Workspace, table: str) -> GateState:
    """Return what the gate says about a table, without a check."""
    return GateState(
        table,
        DeltaLog(workspace.files, table).latest,
        PublishedLog(workspace, table).at(),
        gate_document(workspace, table).read() or GateRecord(table=table),
    )
