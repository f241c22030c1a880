"""Create a fresh checkpoint from a savepoint's files, under a new generation."""

from __future__ import annotations

from collections.abc import Callable

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint_files import relocated
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Manifest
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.savepoints.take import Report
from streamwarden.savepoints.verify import check_files
from streamwarden.store.layout import checkpoint_key, savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace

__all__ = ["fresh_checkpoint"]


def fresh_checkpoint(
    workspace: Workspace,
    job: str,
    manifest: Manifest | None,
    generation: int,
    *,
    outputs: list[OutputStart],
    operation: str,
    reason: str,
    check: Callable[[], None],
    report: Report | None = None,
) -> CheckpointRef:
    """Create a checkpoint under its own generation; return the reference that the caller puts in force.

    Parameters
    ----------
    manifest
        The savepoint; None starts with no state and no offsets, as a first start does.
    generation
        A generation that was never used, and that no other try of an operation can have been given.
    outputs
        The output tables' initial contents.
    operation, reason
        The operation that creates the checkpoint, and why.
    check
        Called before its folder is emptied; raises if another process performs the operation by now. A clone's first
        generation is the same for all processes.
    report
        Called with the progress.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_DAMAGED``, naming the first files.
    """
    path = checkpoint_key(job, generation)
    check()
    # A killed try may have left a part of it.
    workspace.files.delete_tree(path)
    if manifest is not None:
        _fill(workspace, manifest, path, report)
    return CheckpointRef(
        job=job,
        generation=generation,
        path=path,
        since=utc_now(),
        reason=reason,
        savepoint=manifest.id if manifest else None,
        base_batch=manifest.batch if manifest else None,
        highest=generation,
        operation=operation,
        partitions=manifest.partitions if manifest else None,
        version=int(manifest.versions["job"]) if manifest and manifest.versions.get("job", "").isdigit() else None,
        sources=manifest.source_names if manifest else [],
        topics=manifest.topics if manifest else {},
        outputs=outputs,
    )


def _fill(workspace: Workspace, manifest: Manifest, path: str, report: Report | None) -> None:
    """Create a checkpoint from a savepoint's files, and verify that it is complete.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_DAMAGED``, naming the first files.
    """
    source = savepoint_checkpoint_key(manifest.job, manifest.id)
    pairs = [(f"{source}/{entry.path}", f"{path}/{entry.path}") for entry in manifest.files]

    def done(number: int) -> None:
        if report is not None:
            report("copy", number, len(pairs))

    try:
        workspace.files.copy_many(pairs, done=done)
    except FileNotFoundError as error:
        raise StreamwardenError("SAVEPOINT_DAMAGED", f"{manifest.id}: {error.filename or error}: missing") from error
    problems = check_files(workspace, manifest, path, report=report)
    if problems:
        raise StreamwardenError("SAVEPOINT_DAMAGED", f"{manifest.id}: {'; '.join(problems[:3])}")
    # Rewritten only after the check: the savepoint's own metadata names its own schema files.
    for operator in manifest.operators:
        marker = f"state/{operator.id}/_metadata/v2/"
        for entry in manifest.files:
            if entry.path.startswith(marker):
                content = workspace.files.read(f"{path}/{entry.path}")
                workspace.files.write(
                    f"{path}/{entry.path}", relocated(content, operator.id, workspace.schemed_uri(path))
                )
