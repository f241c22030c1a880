"""Which Airflow task supervises a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from pydantic import BaseModel

from streamwarden.model.status import (
    utc_now,
)
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Claim", "claim", "current_claim", "note_deferred"]


class Claim(BaseModel):
    """Who supervises a job now. A fence: what an earlier supervisor still does late must not hit a later one's job.

    Parameters
    ----------
    holder
        Names the supervisor; for Airflow its DAG run.
    attempt
        Which try of the holder's it is.
    granted
        How many tries the holder was granted. It grows when a person asks for another one, and only then.
    at
        Since when.
    deferred
        Whether the holder's trigger watches the job now. Otherwise its task is to do something, or has yet to begin.
    deferred_at
        Since when that is so or not; None where it has not changed since `at`.
    """

    holder: str
    attempt: int
    granted: int = 0
    at: datetime
    deferred: bool = False
    deferred_at: datetime | None = None


def claim(workspace: Workspace, job: str, ours: Claim, *, over_own: bool = True) -> Claim | None:
    """Become the supervisor of a job, and return the claim that stood before.

    Does not ask whether the earlier one agrees: the newest supervisor is the one.

    Parameters
    ----------
    over_own
        False leaves a claim alone that this very holder has already.
    """
    before: list[Claim | None] = []

    def take(found: Claim | None) -> Claim:
        before.append(found)
        return found if found is not None and found.holder == ours.holder and not over_own else ours

    _claim_document(workspace, job).update(take)
    return before[-1]


def current_claim(workspace: Workspace, job: str) -> Claim | None:
    """Return who supervises a job, or None if nobody ever did."""
    return _claim_document(workspace, job).read()


def note_deferred(workspace: Workspace, job: str, *, holder: str, attempt: int, deferred: bool) -> None:
    """Keep in the claim whether its holder's trigger watches the job; a claim of another holder or try is left alone.

    Parameters
    ----------
    holder, attempt
        Of the claim that is meant.
    deferred
        Whether it does.
    """
    document = _claim_document(workspace, job)
    found = document.read_versioned()
    if found is None or (found[0].holder, found[0].attempt) != (holder, attempt) or found[0].deferred == deferred:
        return
    # Who was faster has claimed the job, or is the same trigger in a second triggerer.
    with suppress(Conflict):
        document.replace(found[0].model_copy(update={"deferred": deferred, "deferred_at": utc_now()}), found[1])


def _claim_document(workspace: Workspace, job: str) -> Document[Claim]:
    return Document(
        workspace.storage, f"{JobDocuments(workspace.storage, job).base}/supervisor.json", Claim, derived=True
    )
