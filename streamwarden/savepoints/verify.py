"""Verify a savepoint: every file's bytes, and the state, which Spark reads back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest, Record, Verification
from streamwarden.runtime.state_reader import StateAt, read_state
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.savepoints.documents import manifest_document, record_document
from streamwarden.savepoints.take import Report
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace

__all__ = ["check_files", "verify"]

_NOT_ITS_STATE = OUTAGES | {"S3_REFUSED", "DISK_FULL", "OUT_OF_MEMORY"}
"""Failures of a read that say nothing about the state that was to be read."""

_SHOWN = 20
"""Number of findings kept for a savepoint: a lost folder would flood the record."""


def check_files(
    workspace: Workspace, manifest: Manifest, folder: str, *, content: bool = True, report: Report | None = None
) -> list[str]:
    """Compare a folder with a manifest's files: missing, extra, size, SHA-256. Return the faults, naming each file.

    Parameters
    ----------
    folder
        The savepoint's own checkpoint, or one created from it.
    content
        Whether to read the files; else only their names and sizes are compared.
    """
    expected = {entry.path: entry for entry in manifest.files}
    found = {info.key[len(folder) + 1 :]: info.size for info in workspace.files.walk(folder)}
    problems = [f"{path}: missing" for path in sorted(expected.keys() - found.keys())]
    problems += [f"{path}: not in the manifest" for path in sorted(found.keys() - expected.keys())]
    there = sorted(expected.keys() & found.keys())
    sized = [path for path in there if found[path] == expected[path].size]
    problems += [
        f"{path}: {found[path]} bytes, not {expected[path].size}"
        for path in there
        if found[path] != expected[path].size
    ]
    if not content:
        return problems

    def done(number: int) -> None:
        if report is not None:
            report("hash", number, len(sized))

    try:
        hashed = workspace.files.hash_many([f"{folder}/{path}" for path in sized], done=done)
    except FileNotFoundError as error:
        return [*problems, f"{error.filename or error}: removed while it was read"]
    problems += [
        f"{path}: its SHA-256 is not the manifest's"
        for path in sized
        if hashed[f"{folder}/{path}"].sha256 != expected[path].sha256
    ]
    return problems


def verify(
    workspace: Workspace,
    chosen: Sequence[Savepoint],
    *,
    by: str,
    state: bool = True,
    report: Report | None = None,
) -> dict[str, Verification]:
    """Verify savepoints and record the results.

    Parameters
    ----------
    chosen
        The savepoints; of any jobs. One JVM reads the state of all of them.
    by
        Who requests it.
    state
        Also read the state back and compare its rows with the manifest's. This needs a separate JVM. Without it, an
        intact savepoint still counts as verified, but by its files only.
    report
        Called with the progress.

    Returns
    -------
    dict
        The result by savepoint id. A damaged savepoint is marked as such and not raised for. A savepoint that was
        deleted meanwhile is omitted.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_VERIFY_FAILED`` if a state could not be read for a reason that is not its own, such as an outage;
        that savepoint then keeps the result that it had.
    """
    started = time.monotonic()
    problems = {one.manifest.id: _files(workspace, one.manifest, report) for one in chosen}
    stateful = [one.manifest for one in chosen if one.manifest.operators and not problems[one.manifest.id]]
    read: dict[str, dict[str, Any]] = {}
    if state and stateful:
        if report is not None:
            report("read state", 0, len(stateful))
        read = read_state(
            workspace,
            {one.id: StateAt(savepoint_checkpoint_key(one.job, one.id), one.batch) for one in stateful},
            code="SAVEPOINT_VERIFY_FAILED",
        )
    found, unread = {}, []
    for one in chosen:
        manifest = one.manifest
        if manifest_document(workspace, manifest.job, manifest.id).read() is None:
            # Its files are missing because it was deleted: do not write a record without a savepoint.
            continue
        answer = read.get(manifest.id)
        rows = None
        if answer is not None and answer.get("code") in _NOT_ITS_STATE:
            unread.append(f"{manifest.job} {manifest.id}: {answer['code']}: {answer['error']}")
            continue
        if answer is not None and "error" in answer:
            problems[manifest.id].append(f"state: {answer['error']}")
        elif answer is not None:
            rows = answer["rows"]
            problems[manifest.id] += _compare(manifest, rows, answer["keys"])
        verification = Verification(
            verdict="damaged" if problems[manifest.id] else "verified",
            at=utc_now(),
            by=by,
            took_s=round(time.monotonic() - started, 3),
            files=len(manifest.files),
            bytes=manifest.bytes,
            rows=rows if manifest.operators else {},
            problems=problems[manifest.id][:_SHOWN],
        )
        found[manifest.id] = _record(workspace, one, verification)
    if unread:
        raise StreamwardenError("SAVEPOINT_VERIFY_FAILED", "\n".join(unread))
    return found


def _files(workspace: Workspace, manifest: Manifest, report: Report | None) -> list[str]:
    folder = savepoint_checkpoint_key(manifest.job, manifest.id)
    problems = check_files(workspace, manifest, folder, report=report)
    if not problems:
        try:
            CheckpointReader(workspace.storage, folder).check_offsets(manifest.batch)
        except StreamwardenError as error:
            # Taken from a checkpoint that was damaged already.
            problems = [error.what]
    return problems


def _compare(manifest: Manifest, rows: dict[str, int], keys: dict[str, int]) -> list[str]:
    problems = []
    for operator in manifest.operators:
        counted = rows.get(str(operator.id))
        if counted is None:
            problems.append(f"state: operator {operator.id} ({operator.name}) is missing")
        elif operator.keys is not None and operator.keys != keys.get(str(operator.id)):
            counted = keys.get(str(operator.id), 0)
            problems.append(
                f"state: operator {operator.id} ({operator.name}) has {counted} keys, the manifest says {operator.keys}"
            )
        elif operator.rows is not None and counted != operator.rows:
            problems.append(
                f"state: operator {operator.id} ({operator.name}) has {counted} rows, the manifest says {operator.rows}"
            )
    return problems


def _record(workspace: Workspace, one: Savepoint, verification: Verification) -> Verification:
    """Record a result, and return it; the result of a savepoint that is outdated is damage, whatever its files are."""

    def apply(record: Record | None) -> Record:
        record = (record or one.record).model_copy(update={"summary": one.summary})
        result = verification
        if record.outdated:
            problems = [record.outdated, *verification.problems]
            result = verification.model_copy(update={"verdict": "damaged", "problems": problems})
        return record.model_copy(update={"verification": result})

    # If it was deleted during the verification, it must not get a new record.
    if manifest_document(workspace, one.manifest.job, one.manifest.id).read() is None:
        return verification
    return record_document(workspace, one.manifest.job, one.manifest.id).update(apply).verification or verification
