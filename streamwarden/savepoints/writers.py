"""Which versions of Spark, Delta, Streamwarden and the job wrote a checkpoint."""

from __future__ import annotations

from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.documents import manifest_document
from streamwarden.savepoints.reports import newest_reports
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["writer_versions"]


def writer_versions(workspace: Workspace, job: str) -> dict[str, str]:
    """Return the versions of the checkpoint's writer; empty if they are not known.

    The writer is the newest driver that committed a batch to it, or else the writer of the savepoint that it came from.
    Only if neither is known, it is the newest driver that reported versions: a driver may report them and then refuse
    the checkpoint. The version of the job is the checkpoint's own, if it has one.
    """
    documents = JobDocuments(workspace.storage, job)
    reference = documents.checkpoint.read()
    found = _committed_by(documents, reference) or _saved_by(workspace, reference) or _reported(documents)
    own = reference.version if reference is not None else None
    return found if own is None else {**found, "job": str(own)}


def _committed_by(documents: JobDocuments, reference: CheckpointRef | None) -> dict[str, str]:
    reports = newest_reports(documents, reference.generation) if reference is not None else ()
    return next((beat.versions for beat, progress in reports if progress.last is not None), {})


def _saved_by(workspace: Workspace, reference: CheckpointRef | None) -> dict[str, str]:
    """Return the versions of the savepoint that a checkpoint came from; empty for a clone's, which is another job's."""
    if reference is None or reference.savepoint is None:
        return {}
    manifest = manifest_document(workspace, reference.job, reference.savepoint).read()
    return manifest.versions if manifest is not None else {}


def _reported(documents: JobDocuments) -> dict[str, str]:
    for incarnation in reversed(documents.incarnations()[-5:]):
        heartbeat = documents.heartbeat(incarnation).read()
        if heartbeat is not None and heartbeat.versions:
            return heartbeat.versions
    return {}
