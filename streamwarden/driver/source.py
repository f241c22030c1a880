"""Opening a job's source as a streaming DataFrame."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from streamwarden.control.delta_log import DeltaLog
from streamwarden.control.spec import DeltaSource, FileSource, JobSpec, KafkaSource
from streamwarden.control.workspace import Workspace
from streamwarden.driver.kafka import client_properties, missing_topic

__all__ = ["missing_source", "open_source"]

# The columns of Spark's binaryFile format, given because a stream's schema isn't inferred.
_BINARY_FILE = "path string, modificationTime timestamp, length bigint, content binary"


def missing_source(session: SparkSession, workspace: Workspace, spec: JobSpec) -> str | None:
    """Say what a job still waits for before its source can be opened, or None.

    A table that another job will make is waited for: jobs may be deployed in any order. So is a topic. A local folder
    is made.
    """
    if isinstance(spec.source, KafkaSource):
        return missing_topic(session, spec.source)
    if isinstance(spec.source, DeltaSource):
        # Looked for without Delta: asked while a table is being made, Delta remembers that there is none.
        if DeltaLog(workspace.files, f"tables/{spec.source.table}").latest is None:
            return f"source table {spec.source.table} does not exist yet"
        return None
    path_text = workspace.source_path(spec.source.path)
    if "://" not in path_text:
        Path(path_text).mkdir(parents=True, exist_ok=True)
    return None


def open_source(
    session: SparkSession, workspace: Workspace, spec: JobSpec, *, since_version: int | None = None
) -> DataFrame:
    """Open the source: files as rows of Spark's ``binaryFile`` format, rows appended to a Delta table, Kafka's records.

    Parameters
    ----------
    since_version
        Of a Delta table: only what was committed from this version on; default all of it.
    """
    if isinstance(spec.source, FileSource):
        return (
            session.readStream.format("binaryFile")
            .schema(_BINARY_FILE)
            .option("maxFilesPerTrigger", spec.source.max_files_per_batch)
            .load(workspace.source_path(spec.source.path))
        )
    if isinstance(spec.source, KafkaSource):
        return _open_topic(session, spec.name, spec.source)
    reader = session.readStream.format("delta").option("maxFilesPerTrigger", spec.source.max_files_per_batch)
    if spec.source.on_change == "skip":
        reader = reader.option("skipChangeCommits", "true")
    if since_version is not None:
        reader = reader.option("startingVersion", since_version)
    return reader.load(workspace.table(spec.source.table))


def _open_topic(session: SparkSession, job: str, source: KafkaSource) -> DataFrame:
    # failOnDataLoss stays on: records that the topic has dropped are told, and not passed over.
    reader = (
        session.readStream.format("kafka")
        .option("subscribe", source.topic)
        .option("startingOffsets", source.starting_offsets)
        .option("maxOffsetsPerTrigger", source.max_offsets_per_batch)
        # So that its consumers are known by the job, to whoever looks at the servers. Spark commits no offsets there.
        .option("groupIdPrefix", f"streamwarden-{job}")
    )
    for name, value in client_properties(source).items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()
