"""The error of a damaged checkpoint, with the command that recovers the job."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Record
from streamwarden.storage import Storage
from streamwarden.store.documents import Document
from streamwarden.store.layout import CONTROL, RECORDS, job_key, job_of

__all__ = ["checkpoint_damaged"]


def checkpoint_damaged(storage: Storage, checkpoint: str, what: str) -> StreamwardenError:
    """Return ``CHECKPOINT_DAMAGED``, whose remedy names the newest verified savepoint of the job.

    Parameters
    ----------
    storage
        The storage of the documents.
    checkpoint
        The checkpoint's folder, ``checkpoints/JOB/gNNNNNN``.
    what
        The file, and its fault.
    """
    error = StreamwardenError("CHECKPOINT_DAMAGED", f"{checkpoint}: {what}")
    job = job_of(checkpoint)
    if job is None:
        # A rehearsal's copy has no savepoint.
        return error
    keys = storage.list(job_key(CONTROL, job, RECORDS))
    records = (Document(storage, key, Record, derived=True).read() for key in reversed(keys))
    for record in records:
        if record is not None and record.verification is not None and record.verification.verdict == "verified":
            command = f"streamwarden restore {job} --savepoint {record.id}"
            remedy = f"The job cannot continue from it: `{command}` (the newest verified savepoint)."
            return StreamwardenError(error.code, error.what, remedy=remedy)
    words = (
        f"The job cannot continue from it, and no savepoint is verified: `streamwarden savepoints verify {job} all`,"
        f" then `streamwarden restore {job}`. Without a savepoint, restore the file from a backup of the disk or"
        " bucket, or deploy the job under another name with its own tables: it starts from scratch."
    )
    return StreamwardenError(error.code, error.what, remedy=words)
