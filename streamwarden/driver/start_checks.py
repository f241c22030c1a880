"""What is checked before Spark starts: a job that can't go on from its checkpoint and tables must not begin."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from streamwarden.driver.job_session import PROVIDERS
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.compatibility import spark_reads, spark_version
from streamwarden.savepoints.reports import newest_reports
from streamwarden.savepoints.table_damage import check_output, check_source, forget_damaged_checkpoints
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CHECKPOINTS, document_key, job_key
from streamwarden.store.workspace import Workspace

__all__ = [
    "changed_by_others",
    "check_first_start",
    "check_fixed",
    "check_sources",
    "check_spark",
    "check_tables",
    "check_version",
]

_log = logging.getLogger(__name__)


def check_tables(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> None:
    """Reject tables that are gone or have damaged logs: rows that the checkpoint counts as written would be missing."""
    for sink in spec.delta_sinks:
        forget_damaged_checkpoints(workspace, sink.table)
        check_output(workspace, spec.name, sink.table, known=sink.table in reference.tables)
    for source in spec.delta_sources.values():
        check_source(workspace, source.table)


def check_first_start(workspace: Workspace, job: str) -> None:
    """Reject the start of a job as a new one if it has a checkpoint that nothing names.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID``.
    """
    there = workspace.files.folders(job_key(CHECKPOINTS, job))
    if there:
        raise StreamwardenError(
            "DOCUMENT_INVALID",
            f"{document_key(job, 'checkpoint')}: it is missing, though {CHECKPOINTS}/{job} has {', '.join(there[-3:])}",
            remedy=f"If it was removed: `streamwarden repair {job}`. If a restore or a clone was cut off: repeat it. To"
            f" begin anew: remove {CHECKPOINTS}/{job} and the folders of the job's output tables.",
        )


def check_spark(documents: JobDocuments, reference: CheckpointRef) -> None:
    """Reject a checkpoint in which a driver with a later minor version of Spark has committed batches.

    Spark does not promise to read what its later versions wrote, and may do so wrongly without an error.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_NEWER_SPARK``.
    """
    for beat, progress in newest_reports(documents, reference.generation):
        if progress.last is None:
            continue
        writer = beat.versions.get("spark")
        if writer is not None and not spark_reads(writer):
            what = f"batch {progress.last.batch} was written by Spark {writer}, here is {spark_version()}"
            raise StreamwardenError("CHECKPOINT_NEWER_SPARK", f"{reference.path}: {what}")
        return


def changed_by_others(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> list[str]:
    """Return messages about commits by which others changed rows of the outputs since the job's last batch."""
    if not reference.fenced or reference.outputs:
        # The tables are about to be put in place.
        return []
    notes = []
    for sink in spec.delta_sinks:
        for change in DeltaLog(workspace.files, sink.table).changed_since(f"streamwarden/{spec.name}/"):
            by = f" ({change.operation})" if change.operation else ""
            notes.append(
                f"table {sink.table}: version {change.version}, by another writer, deleted or updated rows{by}; the job"
                " does not write these rows again"
            )
            _log.warning(notes[-1])
    return notes


def check_fixed(spec: JobSpec, checkpoint: CheckpointReader) -> None:
    """Reject changes of what the checkpoint has fixed: Spark would silently ignore them, or die in the state store."""
    last = checkpoint.last_offset()
    offsets = checkpoint.offsets(last) if last is not None else None
    if offsets is None:
        return
    policy = offsets.conf.get("spark.sql.streaming.multipleWatermarkPolicy", spec.watermark_policy)
    if policy != spec.watermark_policy:
        raise StreamwardenError(
            "WATERMARK_POLICY_FIXED",
            f"{spec.name}: watermark_policy is {spec.watermark_policy}, the checkpoint has {policy}",
        )
    if not checkpoint.has_state():
        return
    partitions = offsets.conf.get("spark.sql.shuffle.partitions")
    if partitions is not None and int(partitions) != spec.state.partitions:
        raise StreamwardenError(
            "STATE_PARTITIONS_FIXED",
            f"{spec.name}: state.partitions is {spec.state.partitions}, the checkpoint has {partitions}",
        )
    provider = offsets.conf.get("spark.sql.streaming.stateStore.providerClass")
    if provider is not None and provider != PROVIDERS[spec.state.backend]:
        raise StreamwardenError(
            "STATE_BACKEND_FIXED", f"{spec.name}: state.backend is {spec.state.backend}, the checkpoint has {provider}"
        )


def check_sources(spec: JobSpec, names: Sequence[str], known: Sequence[str]) -> None:
    """Reject a query that reads its sources in another order than the checkpoint's: each would get another's position.

    Parameters
    ----------
    names
        The query's sources, in Spark's order.
    known
        The checkpoint's; empty if not known.

    Raises
    ------
    StreamwardenError
        ``SOURCE_REPLACED``.
    """
    if known and list(names) != list(known):
        what = f"{spec.name}: transform reads {', '.join(names)} in this order, the checkpoint has {', '.join(known)}"
        remedy = "Let transform use them in the checkpoint's order, or deploy the job under another name."
        raise StreamwardenError("SOURCE_REPLACED", what, remedy=remedy)


def check_version(spec: JobSpec, version: int, written: int | None, checkpoint: CheckpointReader) -> None:
    """Reject a module of another ``VERSION`` than the state's: Spark's error for it names neither.

    Parameters
    ----------
    version
        The module's.
    written
        The version that wrote the state; None if it is not known.

    Raises
    ------
    StreamwardenError
        ``STATE_VERSION_FIXED``.
    """
    if written not in (None, version) and checkpoint.has_state():
        what = f"{spec.name}: {spec.module} is version {version}, and version {written} wrote the state"
        raise StreamwardenError("STATE_VERSION_FIXED", what)
