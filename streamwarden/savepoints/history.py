"""Whether a job still reads the history of its source, by the positions in its checkpoint or in a savepoint.

The positions decide and no document does. So the answer is right after a kill, and the same for a savepoint or a copy.
Source: Delta's ``DeltaSourceOffset``, whose ``reservoirId`` is the table's id; Kafka's offsets have topics instead.
"""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.source_spec import KafkaSource
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["is_on_history", "job_is_on_history", "other_history", "table_id"]


def is_on_history(workspace: Workspace, spec: JobSpec, offset: str | None) -> bool:
    """Return whether an offset is a position in the history of a job's source.

    Parameters
    ----------
    offset
        The source's offset; None before the first batch, which is the history's.
    """
    if spec.history is None:
        return False
    if offset is None:
        return True
    known = parse(offset).get("reservoirId")
    if isinstance(spec.source, KafkaSource):
        return isinstance(known, str)
    return known is not None and known == table_id(workspace, spec.history.table)


def job_is_on_history(workspace: Workspace, spec: JobSpec) -> bool:
    """Return whether a job with this spec reads its history, or would begin with it.

    Raises
    ------
    StreamwardenError
        ``SOURCE_INVALID`` if the history's log can't be read now.
    """
    from deltalake.exceptions import DeltaError

    if spec.history is None:
        return False
    reference = JobDocuments(workspace.storage, spec.name).checkpoint.read()
    if reference is None:
        return True
    reader = CheckpointReader(workspace.storage, reference.path)
    last = reader.last_offset()
    offsets = reader.offsets(last) if last is not None else None
    try:
        return is_on_history(workspace, spec, offsets.sources[0] if offsets is not None else None)
    except (DeltaError, OSError) as error:
        raise StreamwardenError("SOURCE_INVALID", f"{spec.name}: table {spec.history.table}: {error}") from error


def other_history(then: JobSpec, now: JobSpec) -> bool:
    """Return whether two specs have other rows as their history. `live_from` may differ until the history is read."""

    def rows(spec: JobSpec) -> tuple[str, str | None] | None:
        return (spec.history.table, spec.history.where) if spec.history is not None else None

    return rows(then) != rows(now)


def table_id(workspace: Workspace, table: str) -> str | None:
    """Return Delta's id of a table; None if there is no table.

    Raises
    ------
    deltalake.exceptions.DeltaError, OSError
        If its log can't be read now.
    """
    # Here, so that parsing a DAG does not load delta-rs.
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri, options = workspace.delta_rs(table)
    try:
        return str(DeltaTable(uri, storage_options=options).metadata().id)
    except TableNotFoundError:
        return None
