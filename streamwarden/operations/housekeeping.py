"""All of a job that time leaves behind: savepoints, checkpoints, scratch folders, and what is known of old runs."""

from __future__ import annotations

import shutil

from streamwarden.model.spec import RetentionSpec
from streamwarden.runtime import work_dirs
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["housekeep"]


def housekeep(workspace: Workspace, job: str, retention: RetentionSpec) -> dict[str, list[str]]:
    """Finish what was interrupted, and remove what retention lets go and what nobody uses any more.

    Log files and scratch folders are those of this machine. Operations' records and the table of batches stay.

    Parameters
    ----------
    retention
        Of savepoints. Of old runs the profile says how many are kept (``logs.incarnations``).

    Returns
    -------
    dict
        What was removed, by why: that of :func:`~streamwarden.savepoints.catalog.housekeeping`, killed
        drivers' scratch folders under ``left_by_drivers``, and incarnations whose documents and logs went under
        ``old_incarnations``.
    """
    return {
        **catalog.housekeeping(workspace, job, retention),
        "left_by_drivers": work_dirs.sweep(workspace, job),
        "old_incarnations": _remove_old_incarnations(workspace, job),
    }


def _remove_old_incarnations(workspace: Workspace, job: str) -> list[str]:
    documents, storage = JobDocuments(workspace.storage, job), workspace.storage
    runs, requests = (storage.list(f"{documents.base}/{name}") for name in ("incarnations", "requests"))
    newest = sorted({_incarnation(key) for key in runs})[-workspace.profile.logs.incarnations :]
    if not newest:
        return []
    removed = set()
    # By name, which begins with the time: also what a removal that was cut short left of one.
    for key in requests:
        if _incarnation(key) < newest[0]:
            request = key.rsplit("/", 1)[1].removesuffix(".json")
            # The result first: nothing else knows of it.
            storage.delete(documents.result(request).key)
            storage.delete(key)
            removed.add(_incarnation(key))
    for key in runs:
        if _incarnation(key) < newest[0]:
            storage.delete(key)
            removed.add(_incarnation(key))
    for folder in (workspace.root / "logs" / job).glob("*/"):
        if folder.name < newest[0]:
            shutil.rmtree(folder, ignore_errors=True)
            removed.add(folder.name)
    return sorted(removed)


def _incarnation(key: str) -> str:
    # control/JOB/incarnations/ID/..., and requests likewise.
    return key.split("/")[3]
