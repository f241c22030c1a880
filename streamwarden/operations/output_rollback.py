"""What the output tables must begin with when a job goes back over batches that were written."""

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
    """Return what a generation wrote after a batch, as the versions to put tables back to.

    Parameters
    ----------
    sinks
        The output tables.
    generation, base
        Whose batches after which are to be undone; None: all of them.

    Returns
    -------
    tuple
        Tables with their versions of before, and the names of those that can't be put back because other jobs read
        them, though rows that are written again would stand in them twice.
    """
    application = application_id(job, generation)
    by_table = {sink.table: sink for sink in sinks}
    readers = readers_of(workspace, by_table, but=job)
    outputs, stuck = [], []
    for table, sink in by_table.items():
        log = DeltaLog(workspace.files, f"tables/{table}")
        version = log.after(application, -1 if base is None else base).version
        if version == log.latest or sink.on_restore == "leave":
            continue
        if table not in readers:
            outputs.append(OutputStart(table=table, version=version))
        elif sink.rewinds:
            stuck.append(table)
    return outputs, stuck


def with_pending(outputs: Iterable[OutputStart], current: CheckpointRef | None) -> list[OutputStart]:
    """Return what output tables shall start with, and what those still wait for that are not among them.

    A checkpoint that is in force, and that no driver has started on yet, may have tables to put back: rows stand in
    them that were undone. Another checkpoint in its place must put them back as well, or those rows stay.

    Parameters
    ----------
    outputs
        Of the new checkpoint.
    current
        The one in force, once its driver has ended; None for none.
    """
    found = {one.table: one for one in current.outputs} if current is not None else {}
    return list({**found, **{one.table: one for one in outputs}}.values())
