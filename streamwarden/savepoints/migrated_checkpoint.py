"""Create a checkpoint from a savepoint of a job's earlier version: its state migrated, its source's position kept."""

from __future__ import annotations

from collections.abc import Callable

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader, continued_offsets
from streamwarden.model.savepoint import Manifest
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.runtime.state_reader import spark_answers
from streamwarden.savepoints.compatibility import job_version
from streamwarden.savepoints.fresh_checkpoint import fresh_checkpoint
from streamwarden.savepoints.verify import check_files
from streamwarden.store.layout import savepoint_checkpoint_key
from streamwarden.store.workspace import Workspace

__all__ = ["migrated_checkpoint"]


def migrated_checkpoint(
    workspace: Workspace,
    spec: JobSpec,
    manifest: Manifest,
    generation: int,
    *,
    outputs: list[OutputStart],
    operation: str,
    reason: str,
    check: Callable[[], None],
) -> tuple[CheckpointRef, str]:
    """Create a checkpoint with migrated state; return the reference to put in force, and a description.

    Spark takes an initial state in a query's first batch only, and that would also read the source from its beginning.
    So the first batch is run without input, and then gets the savepoint's offsets and watermark: the next batch begins
    where the savepoint ended.

    Parameters
    ----------
    spec
        The job's new spec.
    manifest, generation, outputs, operation, reason, check
        As for :func:`~streamwarden.savepoints.fresh_checkpoint.fresh_checkpoint`.

    Raises
    ------
    StreamwardenError
        ``SAVEPOINT_DAMAGED``; ``MIGRATION_FAILED``.
    """
    files, old = workspace.files, savepoint_checkpoint_key(manifest.job, manifest.id)
    problems = check_files(workspace, manifest, old)
    if problems:
        raise StreamwardenError("SAVEPOINT_DAMAGED", f"{manifest.id}: {'; '.join(problems[:3])}")
    reference = fresh_checkpoint(
        workspace, spec.name, None, generation, outputs=outputs, operation=operation, reason=reason, check=check
    )
    new, version = reference.path, int(manifest.versions["job"])
    arguments = ["--spec", spec.model_dump_json(), "--old", old, "--batch", str(manifest.batch)]
    arguments += ["--version", str(version), "--new", new]
    program = "streamwarden.driver.state_migration"
    (answer,) = spark_answers(workspace, program, arguments, number=1, code="MIGRATION_FAILED", heed=check)
    if "error" in answer:
        raise StreamwardenError("MIGRATION_FAILED", f"{spec.name}: {answer['error']}")
    rows, then = int(answer["rows"]), list(manifest.positions)
    if answer["sources"] != then:
        what = f"transform reads {', '.join(answer['sources'])} in this order, and the savepoint has {', '.join(then)}"
        raise StreamwardenError("MIGRATION_FAILED", f"{spec.name}: {what}")
    reader, before = CheckpointReader(workspace.storage, new), sum(one.rows or 0 for one in manifest.operators)
    if (reader.last_offset(), reader.last_commit()) != (0, 0):
        raise StreamwardenError("MIGRATION_FAILED", f"{new} has other batches than its first")
    if before and not rows:
        what = f"{spec.module}.migrate has returned no rows, though the savepoint has state: are names and types right?"
        raise StreamwardenError("MIGRATION_FAILED", f"{spec.name}: {what}")
    files.delete_tree(f"{new}/sources")
    files.copy_many(
        [(f"{old}/{one.path}", f"{new}/{one.path}") for one in manifest.files if one.path.startswith("sources/")]
    )
    begun = continued_offsets(files.read(f"{old}/offsets/{manifest.batch}"), files.read(f"{new}/offsets/0"))
    for log, entry in (("offsets", begun), ("commits", files.read(f"{old}/commits/{manifest.batch}"))):
        # Hadoop's checksum of the replaced entry.
        files.delete(f"{new}/{log}/.0.crc")
        files.write(f"{new}/{log}/0", entry)
    made = reference.model_copy(
        update={
            "savepoint": manifest.id,
            "base_batch": 0,
            "partitions": spec.state.partitions,
            "version": job_version(spec.module),
            "sources": then,
            "topics": manifest.topics,
        }
    )
    return made, f"state of version {version}: {rows} rows read out"
