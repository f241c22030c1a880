"""The versions to which output tables are put back when a job undoes written batches."""

from __future__ import annotations

from collections.abc import Iterable

from streamwarden.formats.delta_log import DeltaLog, application_id
from streamwarden.model.spec import SinkSpec
from streamwarden.model.status import CheckpointRef, OutputStart
from streamwarden.savepoints.compatibility import readers_of
from streamwarden.store.workspace import Workspace

__all__ = ["outputs_before", "with_pending"]


def outputs_before(
    workspace: Workspace, job: str, sinks: Iterable[SinkSpec], *, generation: int, base: int | None
) -> tuple[list[OutputStart], list[str]]:
    """Return the versions to put tables back to, so that a generation's batches after a base batch are undone.

    Parameters
    ----------
    sinks
        The output tables.
    generation, base
        The generation, and its last batch to keep; None undoes all batches.

    Returns
    -------
    tuple
        The tables with their earlier versions. Then the names of tables that cannot be put back because other jobs
        read them, although replayed rows would be in them twice.
    """
    application = application_id(job, generation)
    by_table = {sink.table: sink for sink in sinks}
    readers = readers_of(workspace, by_table, but=job)
    outputs, stuck = [], []
    for table, sink in by_table.items():
        log = DeltaLog(workspace.files, table)
        version = log.after(application, -1 if base is None else base).version
        if version == log.latest or sink.on_restore == "leave":
            continue
        if table not in readers:
            outputs.append(OutputStart(table=table, version=version))
        elif sink.rewinds:
            stuck.append(table)
    return outputs, stuck


def with_pending(outputs: Iterable[OutputStart], current: CheckpointRef | None) -> list[OutputStart]:
    """Return the starts of a new checkpoint's output tables, plus the pending starts of all other tables.

    The current checkpoint may still have tables to put back, if no driver has started on it: they hold undone rows. A
    new checkpoint in its place must put these tables back as well, or the undone rows stay.

    Parameters
    ----------
    outputs
        The starts of the new checkpoint.
    current
        The current checkpoint, after its driver has ended; None without a checkpoint.
    """
    found = {one.table: one for one in current.outputs} if current is not None else {}
    return list({**found, **{one.table: one for one in outputs}}.values())
