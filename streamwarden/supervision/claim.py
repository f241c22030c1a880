"""Which Airflow task supervises a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from pydantic import BaseModel

from streamwarden.model.record import utc_now
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document
from streamwarden.store.layout import document_key
from streamwarden.store.workspace import Workspace

__all__ = ["Claim", "claim", "current_claim", "note_deferred"]


class Claim(BaseModel):
    """The current supervisor of a job. It fences late actions of an earlier supervisor off a later supervisor's job.

    Parameters
    ----------
    holder
        Names the supervisor; for Airflow its DAG run.
    attempt
        The number of the holder's try.
    granted
        How many tries the holder was granted. Grows only when a person requests another try.
    at
        When the claim was made.
    deferred
        Whether the holder's trigger watches the job now. Otherwise its task has work to do, or has yet to start.
    deferred_at
        When `deferred` last changed; None if it has not changed since `at`.
    """

    holder: str
    attempt: int
    granted: int = 0
    at: datetime
    deferred: bool = False
    deferred_at: datetime | None = None


def claim(workspace: Workspace, job: str, ours: Claim, *, over_own: bool = True) -> Claim | None:
    """Become the supervisor of a job, and return the previous claim.

    Does not ask the earlier supervisor: the newest claim wins.

    Parameters
    ----------
    over_own
        False keeps an existing claim of the same holder.
    """
    before: list[Claim | None] = []

    def take(found: Claim | None) -> Claim:
        before.append(found)
        return found if found is not None and found.holder == ours.holder and not over_own else ours

    _claim_document(workspace, job).update(take)
    return before[-1]


def current_claim(workspace: Workspace, job: str) -> Claim | None:
    """Return the claim on a job, or None if the job never had a supervisor."""
    return _claim_document(workspace, job).read()


def note_deferred(workspace: Workspace, job: str, *, holder: str, attempt: int, deferred: bool) -> None:
    """Record in the claim whether its holder's trigger watches the job. Skips a claim of another holder or try.

    Parameters
    ----------
    holder, attempt
        Identify the claim.
    deferred
        Whether the trigger watches the job.
    """
    document = _claim_document(workspace, job)
    found = document.read_versioned()
    if found is None or (found[0].holder, found[0].attempt) != (holder, attempt) or found[0].deferred == deferred:
        return
    # A conflict means that another supervisor claimed the job, or that the same trigger runs in a second triggerer.
    with suppress(Conflict):
        document.replace(found[0].model_copy(update={"deferred": deferred, "deferred_at": utc_now()}), found[1])


def _claim_document(workspace: Workspace, job: str) -> Document[Claim]:
    return Document(workspace.storage, document_key(job, "supervisor"), Claim, derived=True)
