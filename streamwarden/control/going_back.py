"""What the output tables must begin with when a job goes back over batches that were written."""

from __future__ import annotations

from collections.abc import Iterable

from streamwarden.control.delta_log import DeltaLog, application_id
from streamwarden.control.documents import OutputStart
from streamwarden.control.savepoints.compat import readers_of
from streamwarden.control.spec import SinkSpec
from streamwarden.control.workspace import Workspace

__all__ = ["outputs_before"]


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
