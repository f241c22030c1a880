"""What the gate has decided and published, read without a check."""

from __future__ import annotations

from dataclasses import dataclass

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.published_log import NOTHING, PublishedAt, PublishedLog
from streamwarden.model.gate import GateRecord, Hold
from streamwarden.store.documents import Document
from streamwarden.store.invalid_documents import is_damaged
from streamwarden.store.layout import gate_key
from streamwarden.store.workspace import Workspace

__all__ = ["GateState", "gate_document", "gate_state", "remove_damaged"]


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
    error
        Why the published log cannot be read; `published` is then nothing.
    """

    table: str
    latest: int | None
    published: PublishedAt
    record: GateRecord
    error: StreamwardenError | None = None

    @property
    def hold(self) -> Hold | None:
        """What waits for a person."""
        held = self.record.hold
        return None if held is None or held.is_over(self.published.content) else held

    @property
    def waiting(self) -> int:
        """Versions that are not published."""
        return max(0, (self.latest if self.latest is not None else -1) - self.published.content)


def gate_document(workspace: Workspace, table: str) -> Document[GateRecord]:
    """Return the gate's document of a table."""
    return Document(workspace.storage, gate_key(table), GateRecord)


def remove_damaged(workspace: Workspace, table: str) -> bool:
    """Remove the gate's document of a table if it can't be read; return whether it was removed.

    What is published is in the published log. Lost are the list of decisions, which the table of results has too, and a
    hold: the gate decides again.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID`` if a later version wrote it.
    """
    document = gate_document(workspace, table)
    if not is_damaged(workspace.storage, document.key, GateRecord):
        return False
    document.delete()
    return True


def gate_state(workspace: Workspace, table: str) -> GateState:
    """Return what the gate says about a table, without a check."""
    published, found = NOTHING, None
    try:
        published = PublishedLog(workspace, table).at()
    except StreamwardenError as error:
        found = error
    record = gate_document(workspace, table).read() or GateRecord(table=table)
    return GateState(table, DeltaLog(workspace.files, table).latest, published, record, found)
