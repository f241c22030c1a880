"""A savepoint's documents: the manifest (written last, immutable) and the record (mutable)."""

from __future__ import annotations

from datetime import timedelta

from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Record
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import Document
from streamwarden.store.layout import RECORDS, document_key, savepoint_manifest_key
from streamwarden.store.workspace import Workspace

__all__ = ["is_interrupted", "manifest_document", "record_document"]

_STALE = timedelta(seconds=60)
"""Without a sign of life for this long, another machine's take or delete counts as interrupted. It writes every 5 s."""


def manifest_document(workspace: Workspace, job: str, savepoint: str) -> Document[Manifest]:
    """Return a savepoint's manifest document. The savepoint exists if and only if this document does."""
    return Document(workspace.storage, savepoint_manifest_key(job, savepoint), Manifest)


def record_document(workspace: Workspace, job: str, savepoint: str) -> Document[Record]:
    """Return a savepoint's record document."""
    return Document(workspace.storage, document_key(job, RECORDS, savepoint), Record, derived=True)


def is_interrupted(record: Record) -> bool:
    """Return whether the process that takes this savepoint is gone."""
    if record.state != "taking":
        return False
    alive = is_alive(record.process) if record.process else False
    return alive is False or (alive is None and utc_now() - (record.seen_at or record.at) > _STALE)
