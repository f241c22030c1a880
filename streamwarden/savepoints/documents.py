"""The keys of a savepoint's documents: the manifest (written last, immutable) and the record (mutable)."""

from __future__ import annotations

from datetime import timedelta

from streamwarden.model.savepoint import Manifest, Record
from streamwarden.model.status import utc_now
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["checkpoint_key", "folder_key", "is_interrupted", "manifest_document", "record_document"]

_STALE = timedelta(seconds=60)
"""Without a sign of life for this long, another machine's take or delete counts as interrupted. It writes every 5 s."""


def folder_key(job: str, savepoint: str) -> str:
    """Return a savepoint's folder."""
    return f"savepoints/{job}/{savepoint}"


def checkpoint_key(job: str, savepoint: str) -> str:
    """Return the folder of the copied checkpoint."""
    return f"{folder_key(job, savepoint)}/checkpoint"


def manifest_document(workspace: Workspace, job: str, savepoint: str) -> Document[Manifest]:
    """Return a savepoint's manifest document. The savepoint exists if and only if this document does."""
    return Document(workspace.storage, f"{folder_key(job, savepoint)}/manifest.json", Manifest)


def record_document(workspace: Workspace, job: str, savepoint: str) -> Document[Record]:
    """Return a savepoint's record document."""
    key = f"{JobDocuments(workspace.storage, job).base}/savepoints/{savepoint}.json"
    return Document(workspace.storage, key, Record, derived=True)


def is_interrupted(record: Record) -> bool:
    """Return whether the process that takes this savepoint is gone."""
    if record.state != "taking":
        return False
    alive = is_alive(record.process) if record.process else False
    return alive is False or (alive is None and utc_now() - (record.seen_at or record.at) > _STALE)
