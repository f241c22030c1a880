"""What is checked before Spark starts: a job that can't go on from its checkpoint and tables must not begin."""

from __future__ import annotations

import logging

from streamwarden.driver.job_session import PROVIDERS
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.spec import DeltaSource, JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.table_damage import check_output, check_source, forget_damaged_checkpoints
from streamwarden.store.workspace import Workspace

__all__ = ["changed_by_others", "check_fixed", "check_tables"]

_log = logging.getLogger(__name__)


def check_tables(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> None:
    """Reject tables that are gone or have damaged logs: rows that the checkpoint counts as written would be missing."""
    for sink in spec.sinks:
        forget_damaged_checkpoints(workspace, sink.table)
        check_output(workspace, spec.name, sink.table, known=sink.table in reference.tables)
    if isinstance(spec.source, DeltaSource):
        check_source(workspace, spec.source.table)


def changed_by_others(workspace: Workspace, spec: JobSpec, reference: CheckpointRef) -> list[str]:
    """Return messages about commits by which others changed rows of the outputs since the job's last batch."""
    if not reference.fenced or reference.outputs:
        # The tables are about to be put in place.
        return []
    notes = []
    for sink in spec.sinks:
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
    if last is None or not checkpoint.has_state():
        return
    offsets = checkpoint.offsets(last)
    assert offsets is not None
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
