"""The catalogue of savepoints: list, find, label, delete, apply retention, and finish interrupted work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Record, Summary, Verification
from streamwarden.model.spec import RetentionSpec
from streamwarden.savepoints import retention as retained
from streamwarden.savepoints.documents import is_interrupted, manifest_document, record_document
from streamwarden.store import layout
from streamwarden.store.documents import JobDocuments
from streamwarden.store.invalid_documents import is_newer
from streamwarden.store.workspace import Workspace

__all__ = [
    "LATEST",
    "LOST",
    "Savepoint",
    "delete",
    "describe",
    "drop",
    "find",
    "housekeeping",
    "label",
    "load",
    "newest",
    "outdate",
    "release",
    "savepoints",
    "use",
]

LATEST = "latest"
"""Selects the newest verified savepoint of a job."""

_log = logging.getLogger(__name__)

LOST = "record lost"
"""The label shown for a savepoint with a damaged record: its lost label may have protected it from retention."""

_WORDS = (LATEST, "all")
"""Invalid labels: commands give these words another meaning."""


@dataclass(frozen=True)
class Savepoint:
    """A savepoint of the catalogue.

    Parameters
    ----------
    record
        Its record.
    summary
        The summary of its manifest.
    data
        The manifest as it is stored, parsed when it is needed.
    """

    record: Record
    summary: Summary
    data: bytes

    @property
    def id(self) -> str:
        """The savepoint's id."""
        return self.record.id

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises
        ------
        StreamwardenError
            ``SAVEPOINT_DAMAGED``.
        """
        return _parsed(self.record.job, self.record.id, self.data)

    @property
    def verdict(self) -> str:
        """Return ``verified``, ``damaged`` or ``unverified``."""
        return self.record.verification.verdict if self.record.verification else "unverified"


def savepoints(workspace: Workspace, job: str) -> list[Savepoint]:
    """Return a job's savepoints, newest first: those with a manifest that are not being deleted."""
    found = []
    for name in workspace.files.folders(layout.job_key(layout.SAVEPOINTS, job)):
        try:
            one = load(workspace, job, name)
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_DAMAGED":
                raise
            # A damaged savepoint does not hide the others.
            _log.warning("%s", error)
            continue
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: one.id, reverse=True)


def newest(workspace: Workspace, job: str) -> Savepoint | None:
    """Return a job's newest savepoint, whatever its verdict; None without one. Reads no other manifest."""
    for name in sorted(workspace.files.folders(layout.job_key(layout.SAVEPOINTS, job)), reverse=True):
        try:
            found = load(workspace, job, name)
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_DAMAGED":
                raise
            continue
        if found is not None:
            return found
    return None


def find(workspace: Workspace, job: str, savepoint: str) -> Savepoint:
    """Return a savepoint: by its id, by its label, or the newest verified one (``latest``).

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_NOT_FOUND``.
    """
    if savepoint == LATEST:
        there = savepoints(workspace, job)
        for one in there:
            if one.verdict == "verified":
                return one
        # For example a rescale's savepoints: the job does not wait until they are verified.
        unseen = sum(one.verdict == "unverified" for one in there)
        words = f"`streamwarden savepoints verify {job} all` checks the unverified ones ({unseen})."
        raise StreamwardenError(
            "SAVEPOINT_NOT_FOUND", f"{job} has no verified savepoint", remedy=words if unseen else None
        )
    # Look the name up instead of making a path of it: the user's input may be anything.
    known = savepoint in workspace.files.folders(layout.job_key(layout.SAVEPOINTS, job))
    direct = load(workspace, job, savepoint) if known else None
    if direct is not None:
        return direct
    for one in savepoints(workspace, job):
        if savepoint and one.record.label == savepoint:
            return one
    raise StreamwardenError("SAVEPOINT_NOT_FOUND", f"{job}: {savepoint!r} is neither an id nor a label")


def label(workspace: Workspace, job: str, savepoint: str, text: str) -> Record:
    """Label a savepoint, which protects it from retention; an empty label removes the label.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_NOT_FOUND``, or ``SAVEPOINT_LABEL_INVALID`` for a label that also selects another savepoint.
    """
    found = find(workspace, job, savepoint)
    if text in _WORDS or (text and text != text.strip()):
        raise StreamwardenError("SAVEPOINT_LABEL_INVALID", f"{text!r}")

    def refuse_taken() -> None:
        for other in savepoints(workspace, job) if text else ():
            if text in (other.id, other.record.label) and other.id != found.id:
                raise StreamwardenError("SAVEPOINT_LABEL_INVALID", f"{text!r} names {other.id} already")

    refuse_taken()
    labelled = _update(workspace, found, lambda record: record.model_copy(update={"label": text}))
    try:
        # Each savepoint has its own record: another may have got this label between the check and the write.
        refuse_taken()
    except StreamwardenError:
        before = found.record.label
        _update(
            workspace,
            found,
            lambda record: record.model_copy(update={"label": before}) if record.label == text else record,
        )
        raise
    return labelled


def use(workspace: Workspace, found: Savepoint, operation: str) -> None:
    """Record that an operation uses a savepoint: it can't be deleted until :func:`release`.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_NOT_FOUND`` if it is being deleted.
    """

    def add(record: Record) -> Record:
        return record.model_copy(update={"in_use_by": sorted({*record.in_use_by, operation})})

    _update(workspace, found, add)


def release(workspace: Workspace, found: Savepoint, operation: str) -> None:
    """Undo :func:`use`."""

    def remove(record: Record) -> Record:
        return record.model_copy(update={"in_use_by": [one for one in record.in_use_by if one != operation]})

    try:
        _update(workspace, found, remove)
    except StreamwardenError as error:
        # A deleted savepoint is not in use.
        if error.code != "SAVEPOINT_NOT_FOUND":
            raise


def outdate(workspace: Workspace, found: Savepoint, why: str, *, by: str) -> None:
    """Record that no job may start from a savepoint any more, whose files may be whole. Does nothing if it is deleted.

    Its verdict is ``damaged`` from now on, whatever a verification finds.
    """
    verification = Verification(
        verdict="damaged", at=utc_now(), by=by, took_s=0, files=len(found.manifest.files), bytes=0, problems=[why]
    )
    try:
        _update(
            workspace, found, lambda record: record.model_copy(update={"outdated": why, "verification": verification})
        )
    except StreamwardenError as error:
        if error.code != "SAVEPOINT_NOT_FOUND":
            raise


def delete(workspace: Workspace, job: str, savepoint: str, *, force: bool = False) -> None:
    """Delete a savepoint: its manifest first, so that a partial savepoint never counts as one, then its files.

    Parameters
    ----------
    force
        Also delete a labelled savepoint, or the newest verified one. A savepoint in use is never deleted.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_NOT_FOUND`` or ``SAVEPOINT_IN_USE``.
    """
    found = find(workspace, job, savepoint)
    if not force:
        why = retained.protected(savepoints(workspace, job)).get(found.id)
        if why:
            raise StreamwardenError("SAVEPOINT_IN_USE", f"{job} {found.id}: {why}")

    def mark(record: Record) -> Record:
        if record.in_use_by:
            users = ", ".join(record.in_use_by)
            raise StreamwardenError("SAVEPOINT_IN_USE", f"{job} {record.id}: in use by operation {users}")
        if record.label and not force:
            # The label was set after the check above.
            raise StreamwardenError("SAVEPOINT_IN_USE", f"{job} {record.id}: has the label {record.label!r}")
        return record.model_copy(update={"state": "deleting"})

    _finish_delete(workspace, _update(workspace, found, mark))


def drop(workspace: Workspace, job: str, savepoint: str) -> None:
    """Remove all that is left of a savepoint, its manifest first. Checks nothing: see :func:`delete`."""
    workspace.storage.delete(manifest_document(workspace, job, savepoint).key)
    workspace.files.delete_tree(layout.savepoint_key(job, savepoint))
    workspace.storage.delete(record_document(workspace, job, savepoint).key)


def housekeeping(
    workspace: Workspace, job: str, retention: RetentionSpec, *, now: datetime | None = None
) -> dict[str, list[str]]:
    """Finish interrupted work, and delete what retention no longer keeps.

    Returns
    -------
    dict
        What was removed, by reason: savepoints under ``removed_interrupted``, ``finished_deletes`` and ``expired``;
        folders of superseded checkpoints under ``old_checkpoints``.
    """
    now = now or utc_now()
    _release_ended(workspace, job)
    interrupted, deleting = [], []
    for record in _records(workspace, job):
        if is_interrupted(record):
            if _is_whole(workspace, job, record.id):
                # The take was killed after it wrote the manifest: the savepoint exists.
                done: dict[str, Any] = {"state": "complete", "process": None, "done": {}}
                record_document(workspace, job, record.id).write(record.model_copy(update=done))
                continue
            _finish_delete(workspace, record)
            interrupted.append(record.id)
        elif record.state == "deleting":
            _finish_delete(workspace, record)
            deleting.append(record.id)
    expired = []
    for one in retained.expired(savepoints(workspace, job), retention, now):
        try:
            delete(workspace, job, one.id)
        except StreamwardenError as error:
            # Another process has just used, labelled or deleted it.
            if error.code not in ("SAVEPOINT_IN_USE", "SAVEPOINT_NOT_FOUND"):
                raise
            continue
        expired.append(one.id)
    return {
        "removed_interrupted": interrupted,
        "finished_deletes": deleting,
        "expired": expired,
        "old_checkpoints": _remove_old_checkpoints(workspace, job),
    }


def describe(workspace: Workspace, found: Savepoint) -> dict[str, Any]:
    """Return a savepoint as plain JSON values, for lists.

    ``bytes`` is its total size; ``own_bytes`` is what deleting it would free; ``shared_bytes`` is the rest, which is
    also hard-linked from the checkpoint or from other savepoints.
    """
    record, summary = found.record, found.summary
    # On S3 no file has a second name.
    infos = workspace.files.walk(layout.savepoint_key(record.job, record.id)) if workspace.s3 is None else ()
    shared = sum(info.size for info in infos if info.links > 1)
    return {
        "id": record.id,
        "job": record.job,
        "taken_at": summary.taken_at.isoformat(),
        "origin": record.origin.value,
        "by": record.by,
        "batch": summary.batch,
        "generation": summary.generation,
        "rows": summary.rows if summary.rows is not None else _read_back(record),
        "bytes": summary.bytes,
        "shared_bytes": shared,
        "own_bytes": summary.bytes - shared,
        "partitions": summary.partitions,
        "state": found.verdict,
        "label": record.label,
        "note": record.note,
        "parent": summary.parent,
        "in_use_by": record.in_use_by,
        "took_s": summary.took_s,
        "verification": record.verification.model_dump(mode="json") if record.verification else None,
    }


def _release_ended(workspace: Workspace, job: str) -> None:
    """Release savepoints of operations that ended or were replaced without a release: their process was killed."""
    used = [one for one in savepoints(workspace, job) if one.record.in_use_by]
    if not used:
        return
    unfinished = set()
    # The operation may belong to a clone.
    for other in workspace.files.folders(layout.CONTROL):
        try:
            operation = JobDocuments(workspace.storage, other).operation.read()
        except StreamwardenError as error:
            if error.code != "DOCUMENT_INVALID":
                raise
            # A job's document is damaged: it may use any savepoint that is in use.
            return
        if operation is not None and operation.state == "running":
            unfinished.add(operation.id)
    for one in used:
        for user in set(one.record.in_use_by) - unfinished:
            release(workspace, one, user)


def _remove_old_checkpoints(workspace: Workspace, job: str) -> list[str]:
    documents = JobDocuments(workspace.storage, job)
    # List first: this omits the folder of an operation that begins later.
    names = workspace.files.folders(layout.job_key(layout.CHECKPOINTS, job))
    old = [layout.job_key(layout.CHECKPOINTS, job, name) for name in names]
    operation, reference = documents.operation.read(), documents.checkpoint.read()
    # An unfinished operation may roll back to an old checkpoint, even after its process died.
    if reference is None or (operation is not None and operation.state == "running"):
        return []
    removed = [path for path in old if path != reference.path]
    for path in removed:
        workspace.files.delete_tree(path)
        generation = layout.generation_of(path)
        if generation is not None:
            workspace.storage.delete(documents.totals(generation).key)
    return removed


def _read_back(record: Record) -> int | None:
    rows = record.verification.rows if record.verification else None
    return sum(rows.values()) if rows else None


def load(workspace: Workspace, job: str, name: str) -> Savepoint | None:
    """Return a savepoint by its id; None if it has no manifest or is being deleted.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_DAMAGED`` if its manifest can't be read.
    """
    entry = workspace.storage.read(manifest_document(workspace, job, name).key)
    if entry is None:
        return None
    document = record_document(workspace, job, name)
    record = document.read()
    if record is not None and record.state == "deleting":
        return None
    if record is not None and record.summary is not None and record.summary.etag == entry.etag:
        return Savepoint(record, record.summary, entry.data)
    manifest = _parsed(job, name, entry.data)
    if record is None:
        # Copied from another root, or its record is damaged: the manifest defines the savepoint.
        lost = workspace.storage.read(document.key) is not None
        record = Record(
            id=name,
            job=job,
            state="complete",
            origin=manifest.origin,
            by=manifest.by,
            at=manifest.taken_at,
            label=LOST if lost else "",
        )
    return Savepoint(record, manifest.summary(entry.etag), entry.data)


def _parsed(job: str, name: str, data: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        if is_newer(error):
            raise StreamwardenError(
                "SAVEPOINT_DAMAGED",
                f"{job} {name}: a later version wrote its manifest",
                remedy="Use another one, or upgrade this installation: for that version it is whole.",
            ) from error
        remedy = f"Use another one; `streamwarden repair {job} --yes` removes this one: no job can start from it."
        raise StreamwardenError(
            "SAVEPOINT_DAMAGED", f"{job} {name}: its manifest can't be read", remedy=remedy
        ) from error


def _is_whole(workspace: Workspace, job: str, name: str) -> bool:
    """Return whether the manifest is readable: its writer may have died with the machine."""
    try:
        return manifest_document(workspace, job, name).read() is not None
    except StreamwardenError as error:
        if error.code != "DOCUMENT_INVALID":
            raise
        return False


def _records(workspace: Workspace, job: str) -> Iterable[Record]:
    for key in workspace.storage.list(layout.job_key(layout.CONTROL, job, layout.RECORDS)):
        record = record_document(workspace, job, layout.id_of(key)).read()
        if record is not None:
            yield record


def _update(workspace: Workspace, found: Savepoint, change: Callable[[Record], Record]) -> Record:
    job, name = found.record.job, found.id

    def apply(record: Record | None) -> Record:
        # Without a record it was copied from another root, or is deleted by now; then it must not get a new record.
        gone = record is None and manifest_document(workspace, job, name).read() is None
        record = record or found.record
        if gone or record.state == "deleting":
            raise StreamwardenError("SAVEPOINT_NOT_FOUND", f"{job} {name} is being deleted")
        return change(record.model_copy(update={"summary": found.summary}))

    return record_document(workspace, job, name).update(apply)


def _finish_delete(workspace: Workspace, record: Record) -> None:
    drop(workspace, record.job, record.id)
