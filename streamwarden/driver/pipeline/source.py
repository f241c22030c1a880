"""Open a job's source as a streaming DataFrame."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.kafka import client_properties, missing_topic
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.landing.plans import plans_of
from streamwarden.model.spec import DeltaSource, FileSource, JobSpec, KafkaSource
from streamwarden.store.workspace import Workspace

__all__ = ["missing_source", "open_plans", "open_source"]

# Spark skips files that are older than the newest by more than this value: so large that it never applies.
_NO_AGE = "36500d"


def missing_source(session: SparkSession, workspace: Workspace, spec: JobSpec) -> str | None:
    """Return what a job must still wait for before its source can be opened, or None.

    Waits for a table that another job creates, and for a topic: jobs may be deployed in any order. Creates a missing
    local folder.
    """
    if isinstance(spec.source, KafkaSource):
        return missing_topic(session, spec.source)
    if isinstance(spec.source, DeltaSource):
        # Checked without Delta: if asked while a table is being created, Delta caches that there is none.
        if DeltaLog(workspace.files, spec.source.table).latest is None:
            return f"source table {spec.source.table} does not exist yet"
        return None
    folder = workspace.source_path(spec.source.path).removeprefix("file://")
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return None


def open_source(
    session: SparkSession, workspace: Workspace, spec: JobSpec, *, since_version: int | None = None
) -> DataFrame:
    """Open the source: descriptions of landed files, rows appended to a Delta table, or Kafka's records.

    A landed file is a row with one column, ``file``, which :meth:`LandedFile.from_json` parses.

    Parameters
    ----------
    spec
        Its name selects the job whose plans are read.
    since_version
        For a Delta table: the first version to read commits from; default the whole table.
    """
    if isinstance(spec.source, FileSource):
        return open_plans(session, workspace.uri(plans_of(workspace, spec.name).folder), spec.resources.cores)
    if isinstance(spec.source, KafkaSource):
        return _open_topic(session, spec.name, spec.source)
    reader = session.readStream.format("delta").option("maxFilesPerTrigger", spec.source.max_files_per_batch)
    if spec.source.on_change == "skip":
        reader = reader.option("skipChangeCommits", "true")
    if since_version is not None:
        reader = reader.option("startingVersion", since_version)
    return reader.load(workspace.table(spec.source.table))


def open_plans(session: SparkSession, folder: str, cores: int) -> DataFrame:
    """Open a folder of plans; see :mod:`streamwarden.landing.plans`."""
    plans = (
        session.readStream.format("text")
        # A plan is a batch.
        .option("maxFilesPerTrigger", 1)
        .option("maxFileAge", _NO_AGE)
        # A pattern: given a folder, Spark reads only files in it, and a clone's checkpoint names another job's files.
        .load(f"{folder}/*.jsonl")
        .toDF("file")
    )
    # A plan is so small that Spark would read it with one task.
    return plans.repartition(cores) if cores > 1 else plans


def _open_topic(session: SparkSession, job: str, source: KafkaSource) -> DataFrame:
    # failOnDataLoss stays on: records that the topic has dropped must raise, not be skipped.
    reader = (
        session.readStream.format("kafka")
        .option("subscribe", source.topic)
        .option("startingOffsets", source.starting_offsets)
        .option("maxOffsetsPerTrigger", source.max_offsets_per_batch)
        # So that the servers' consumer lists show the job. Spark commits no offsets there.
        .option("groupIdPrefix", f"streamwarden-{job}")
    )
    for name, value in client_properties(source).items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()
