"""Put a job's output tables and serving stores in place at its driver's start, and open them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.outputs import clear_unborn, keep_facts, start_outputs
from streamwarden.driver.pipeline.serving import Server, begin_serving, mark_stale
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.driver.start_checks import changed_by_others, check_known
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_checksum import write_checksum
from streamwarden.formats.delta_log import application_id
from streamwarden.model.spec import JobSpec, SinkSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.serving.client import open_store
from streamwarden.serving.store import ServingStore
from streamwarden.store.workspace import Workspace

__all__ = ["OpenOutputs", "open_outputs"]


@dataclass(frozen=True)
class OpenOutputs:
    """What a job's batches are written to.

    Parameters
    ----------
    sinks, servers
        Tables and serving stores, by output name.
    notes
        What a person should know of the tables.
    """

    sinks: dict[str, DeltaSink]
    servers: dict[str, Server]
    notes: list[str]


def open_outputs(
    session: SparkSession,
    workspace: Workspace,
    spec: JobSpec,
    module: StreamingJob,
    reference: CheckpointRef,
    checkpoint: CheckpointReader,
    *,
    went_back: bool,
    guard: Callable[[], None],
) -> OpenOutputs:
    """Open a job's outputs.

    Parameters
    ----------
    session, workspace, spec, module
        The job.
    reference, checkpoint
        Its checkpoint.
    went_back
        Whether the job was rolled back from another version of it.
    guard
        Called before each write; raises if this driver may not write any more.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_BEHIND``, ``DOCUMENT_CONFLICT``, ``RESTORE_OUTPUT_GONE``, ``SERVING_…``, ``SINK_SCHEMA_MISMATCH``.
    """
    for sink in spec.sinks:
        clear_unborn(workspace, sink.table, guard=guard)
    tables = [sink.table for sink in spec.sinks]
    stores = list(_stores(workspace, spec))
    for sink, store in stores:
        mark_stale(store, reference, sink)
    changes = changed_by_others(workspace, spec, reference)
    start_outputs(session, workspace, reference, tables, guard=guard)
    check_known(workspace, spec, reference, checkpoint)
    application = application_id(spec.name, reference.generation)
    sinks = {
        sink.output: DeltaSink(
            session,
            workspace.table(sink.table),
            sink,
            module.OUTPUTS[sink.output],
            application,
            place=workspace.delta_rs(sink.table),
            committed=functools.partial(write_checksum, workspace, sink.table),
            released=went_back,
            guard=guard,
        )
        for sink in spec.sinks
    }
    committed, servers = checkpoint.last_commit(), {}
    for sink, store in stores:

        def fill(server: Server, batch: int, table: str = sink.table) -> None:
            server.fill(session, workspace.table(table), batch)

        servers[sink.output] = begin_serving(store, sink, reference, committed, fill)
    keep_facts(workspace, spec.name, tables, module.VERSION, guard=guard)
    return OpenOutputs(sinks, servers, [*changes, *(note for sink in sinks.values() for note in sink.notes)])


def _stores(workspace: Workspace, spec: JobSpec) -> Iterator[tuple[SinkSpec, ServingStore]]:
    for sink in spec.sinks:
        if sink.serve is not None:
            yield sink, open_store(workspace, sink.table, sink.serve, writes=True)
