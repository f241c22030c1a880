"""Whether a checkpoint, its output tables and its source tables are of one moment: an older copy loses rows silently.

Each of them may have been restored from a backup. Delta skips a batch number that a table has already. Spark does not
look whether a table has the batches that a checkpoint counts as written, or the versions that it counts as read.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import SHUT, DeltaLog, application_id
from streamwarden.model.savepoint import Manifest
from streamwarden.model.source_spec import DeltaSource, Source
from streamwarden.model.spec import JobSpec, SinkSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.history import is_on_history
from streamwarden.savepoints.reports import newest_reports
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["check_read", "check_written", "lost_positions", "lost_versions"]


def check_written(workspace: Workspace, spec: JobSpec, reference: CheckpointRef, checkpoint: CheckpointReader) -> None:
    """Reject output tables that are ahead of a checkpoint, or behind it.

    Ahead: Delta would skip every batch up to the table's, and the driver would take it for written. Behind: the table
    lacks rows that no driver writes again. This is found only if a driver's report of the batch is still there, and
    only of the main table: a batch without rows has no commit. Called when the tables are in place, since this may also
    admit the generation again.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_BEHIND`` or ``OUTPUT_BEHIND``.
    """
    # Here, so that parsing a DAG does not load delta-rs.
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    # In this order: a driver may go on meanwhile. It begins a batch, writes it, and then reports it.
    reported = _newest_reported(workspace, spec, reference, checkpoint)
    found: list[tuple[SinkSpec, int | None]] = []
    for sink in spec.delta_sinks:
        address, options = workspace.delta_rs(sink.table)
        try:
            table = DeltaTable(address, storage_options=options)
        except TableNotFoundError:
            continue
        found.append((sink, table.transaction_version(application_id(spec.name, reference.generation))))
    begun = checkpoint.last_offset()
    for sink, written in found:
        if written is not None and written > (-1 if begun is None else begun):
            told = "is closed to it, since a later generation ran" if written == SHUT else f"has its batch {written}"
            raise StreamwardenError(
                "CHECKPOINT_BEHIND",
                f"{spec.name}: generation {reference.generation} begins with batch {0 if begun is None else begun}, and"
                f" table {sink.table} {told}",
            )
        if sink is spec.delta_sinks[0] and reported is not None and (-1 if written is None else written) < reported:
            raise StreamwardenError(
                "OUTPUT_BEHIND",
                f"{spec.name}: batch {reported} of generation {reference.generation} wrote rows, and table {sink.table}"
                f" has {'none of its batches' if written is None else f'its batches up to {written}'}",
            )


def check_read(workspace: Workspace, spec: JobSpec, reference: CheckpointRef, checkpoint: CheckpointReader) -> None:
    """Reject source tables without versions that the checkpoint has read: their next versions would be skipped.

    Raises
    ------
    StreamwardenError
        ``SOURCE_BEHIND``.
    """
    last = checkpoint.last_offset()
    offsets = checkpoint.offsets(last) if last is not None else None
    if offsets is None:
        return
    names = reference.sources or list(spec.inputs)
    for what in lost_positions(workspace, spec, dict(zip(names, offsets.sources, strict=False))):
        raise StreamwardenError("SOURCE_BEHIND", f"{spec.name}: {what}")


def lost_positions(workspace: Workspace, spec: JobSpec, positions: dict[str, str | None]) -> Iterator[str]:
    """Yield, in words, each source table that has fewer versions than were read.

    Parameters
    ----------
    positions
        Where a job stands in its sources, by name, in Spark's words.
    """
    for name, offset in positions.items():
        source = spec.inputs.get(name)
        if offset is None or source is None:
            continue
        table = _table_of(workspace, spec, source, offset)
        if table is None:
            continue
        position = parse(offset)
        # Index -1 is the position before a version's first row.
        read = int(position["reservoirVersion"]) - (int(position["index"]) < 0)
        log = DeltaLog(workspace.files, table)
        # Without a log, the table is gone: the driver waits for it, or Spark names what is missing.
        if read >= 0 and not log.since(read) and log.latest is not None:
            yield f"version {read} of table {table} was read, and the table ends with version {log.latest}"


def lost_versions(workspace: Workspace, manifest: Manifest, tables: set[str] | None = None) -> Iterator[str]:
    """Yield, in words, each output table that has fewer versions than at a savepoint: it is an older copy.

    Parameters
    ----------
    tables
        Only these; default all.
    """
    for sink in manifest.sinks:
        if sink.version is None or (tables is not None and sink.table not in tables):
            continue
        log = DeltaLog(workspace.files, sink.table)
        if not log.since(sink.version):
            ends = "is gone" if log.latest is None else f"ends with version {log.latest}"
            yield f"table {sink.table} was at version {sink.version}, and {ends}"


def _table_of(workspace: Workspace, spec: JobSpec, source: Source, offset: str) -> str | None:
    """Return the table that an offset is a position in; None for other sources."""
    if spec.history is not None and is_on_history(workspace, spec, offset):
        return spec.history.table
    return source.table if isinstance(source, DeltaSource) else None


def _newest_reported(
    workspace: Workspace, spec: JobSpec, reference: CheckpointRef, checkpoint: CheckpointReader
) -> int | None:
    """Return the newest committed batch of a generation that reportedly wrote rows to the main table."""
    committed = checkpoint.last_commit()
    if committed is None:
        return None
    documents = JobDocuments(workspace.storage, reference.job)
    for beat, progress in newest_reports(documents, reference.generation):
        launch = documents.launch(beat.incarnation).read()
        if launch is None or launch.spec is None or launch.spec.delta_sinks[0].table != spec.delta_sinks[0].table:
            # It counted the rows of another table, or of one that is not known any more.
            continue
        for done in reversed(progress.recent):
            # Reports of later batches are of another copy than the checkpoint.
            if done.rows_out and done.batch <= committed:
                return done.batch
    return None
