"""Put a job's output tables and serving stores in place at its driver's start, and open them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.outputs import clear_unborn, keep_facts, start_outputs
from streamwarden.driver.pipeline.row_rules import check_row_rules, output_schemas
from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.driver.pipeline.sink import DeltaSink
from streamwarden.driver.pipeline.topic_sink import TopicSink
from streamwarden.driver.start_checks import changed_by_others
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.delta_checksum import write_checksum
from streamwarden.formats.delta_log import application_id
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import CheckpointRef
from streamwarden.savepoints.older_copies import check_written
from streamwarden.serving.client import open_store
from streamwarden.store.workspace import Workspace

__all__ = ["OpenOutputs", "open_outputs"]


@dataclass(frozen=True)
class OpenOutputs:
    """What a job's batches are written to.

    Parameters
    ----------
    sinks, serving
        Tables and serving stores, by output name.
    topics
        Kafka topics.
    notes
        What a person should know of the tables.
    """

    sinks: dict[str, DeltaSink]
    serving: dict[str, ServingWriter]
    topics: list[TopicSink]
    notes: list[str]


def open_outputs(
    session: SparkSession,
    workspace: Workspace,
    spec: JobSpec,
    module: StreamingJob,
    reference: CheckpointRef,
    checkpoint: CheckpointReader,
    *,
    epoch: int,
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
    epoch
        Of the driver's lease.
    went_back
        Whether the job was rolled back from another version of it.
    guard
        Called before each write; raises if this driver may not write any more.

    Raises
    ------
    StreamwardenError
        ``CHECKPOINT_BEHIND``, ``DOCUMENT_CONFLICT``, ``OUTPUT_BEHIND``, ``RESTORE_OUTPUT_GONE``, ``SERVING_…``,
        ``SINK_SCHEMA_MISMATCH``, ``SUITE_INVALID``.
    """
    schemas = output_schemas(spec, module)
    check_row_rules(session, spec, module)
    for sink in spec.delta_sinks:
        clear_unborn(workspace, sink.table, guard=guard)
    tables = [sink.table for sink in spec.delta_sinks]
    serving = _serving(session, workspace, spec, epoch=epoch, generation=reference.generation)
    for server in serving.values():
        server.mark_stale(reference)
    changes = changed_by_others(workspace, spec, reference)
    start_outputs(session, workspace, reference, tables, guard=guard)
    check_written(workspace, spec, reference, checkpoint)
    application = application_id(spec.name, reference.generation)
    sinks = {
        sink.output: DeltaSink(
            session,
            workspace.table(sink.table),
            sink,
            schemas[sink.output],
            application,
            place=workspace.delta_rs(sink.table),
            committed=functools.partial(write_checksum, workspace, sink.table),
            released=went_back,
            guard=guard,
        )
        for sink in spec.delta_sinks
    }
    for server in serving.values():
        server.begin(reference, checkpoint.last_commit())
    keep_facts(workspace, spec.name, tables, module.VERSION, guard=guard)
    topics = [TopicSink(one, module.OUTPUTS[one.output], spec.name, reference.generation) for one in spec.kafka_sinks]
    return OpenOutputs(sinks, serving, topics, [*changes, *(note for sink in sinks.values() for note in sink.notes)])


def _serving(
    session: SparkSession, workspace: Workspace, spec: JobSpec, *, epoch: int, generation: int
) -> dict[str, ServingWriter]:
    return {
        sink.output: ServingWriter(
            open_store(workspace, sink.table, sink.serve, writes=True),
            sink,
            session,
            workspace.table(sink.table),
            epoch=epoch,
            generation=generation,
        )
        for sink in spec.delta_sinks
        if sink.serve is not None
    }
