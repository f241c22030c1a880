"""Open a job's sources as streaming DataFrames, and give them to its module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from streamwarden.driver.job_api import JobSettings, StreamingJob
from streamwarden.driver.kafka import client_properties, missing_topic
from streamwarden.driver.pipeline.module import settings_for
from streamwarden.driver.pipeline.plan import TAG, each, source_of
from streamwarden.driver.pipeline.transformed import Sources, check_watermarks, place_of, transformed
from streamwarden.driver.pipeline.values import with_columns
from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.landing.plans import plans_of
from streamwarden.model.source_spec import THE_SOURCE, DeltaSource, FileSource, HistorySource, KafkaSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.store.workspace import Workspace

__all__ = [
    "Opener",
    "QuerySource",
    "job_rows",
    "missing_source",
    "open_plans",
    "open_source",
    "query_sources",
]

# Spark skips files that are older than the newest by more than this value: so large that it never applies.
_NO_AGE = "36500d"

Opener = Callable[[str, Source], DataFrame]
"""Opens a source, given by its name and its section of the spec."""


def missing_source(session: SparkSession, workspace: Workspace, spec: JobSpec) -> str | None:
    """Return what a job must still wait for before its sources can be opened, or None.

    Waits for a table that another job creates, for a lookup table, and for topics, those of sinks included: jobs may be
    deployed in any order.
    Creates a missing local folder.
    """
    for name, source in spec.inputs.items():
        missing = _missing(session, workspace, source)
        if missing is not None:
            return missing if spec.sources is None else f"sources.{name}: {missing}"
    for lookup in spec.lookups.values():
        if DeltaLog(workspace.files, lookup.table).latest is None:
            return f"lookup table {lookup.table} does not exist yet"
    return next(filter(None, (missing_topic(session, sink) for sink in spec.kafka_sinks)), None)


def _missing(session: SparkSession, workspace: Workspace, source: Source) -> str | None:
    if isinstance(source, KafkaSource):
        return missing_topic(session, source)
    if isinstance(source, DeltaSource):
        # Checked without Delta: if asked while a table is being created, Delta caches that there is none.
        if DeltaLog(workspace.files, source.table, published=source.published).latest is None:
            if source.published:
                return f"nothing of source table {source.table} is published yet: does the gate run?"
            return f"source table {source.table} does not exist yet"
        return None
    folder = workspace.source_path(source.path).removeprefix("file://")
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return None


def job_rows(
    session: SparkSession,
    workspace: Workspace,
    spec: JobSpec,
    module: StreamingJob,
    *,
    settings: JobSettings | None = None,
    opener: Opener | None = None,
) -> DataFrame:
    """Return the job's query: its sources, opened, given to the module's ``transform``.

    Parameters
    ----------
    settings
        Default those of the spec.
    opener
        Default :func:`open_source`.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID`` if the query reads a source twice or not at all, or lacks a watermark that the module
        declares.
    """

    def opened(name: str, source: Source) -> DataFrame:
        return opener(name, source) if opener is not None else open_source(session, workspace, spec, name)

    by_name = Sources(spec, {name: opened(name, source) for name, source in spec.inputs.items()})
    lookups = {
        name: session.read.format("delta").load(workspace.table(one.table)) for name, one in spec.lookups.items()
    }
    rows = transformed(
        spec,
        module,
        by_name if spec.sources is not None else by_name[THE_SOURCE],
        replace(settings or settings_for(spec, module), lookups=lookups),
    )
    if opener is None:
        _check_read(spec, module, [one.name for one in query_sources(rows)])
        check_watermarks(module, rows)
    return rows


def _check_read(spec: JobSpec, module: StreamingJob, names: list[str]) -> None:
    """Reject a query that reads a source twice or not at all."""
    twice = sorted({name for name in names if names.count(name) > 1})
    unread = sorted(set(spec.inputs) - set(names))
    if twice:
        what = f"joins {twice[0]} with itself"
        remedy = "Name its table or topic twice under sources of the YAML, and in SOURCES of the module."
    elif unread:
        what = f"does not read {' and '.join(unread)}"
        remedy = "Return a DataFrame that is made of each source, or remove the source from the YAML."
    else:
        return
    raise StreamwardenError(
        "JOB_MODULE_INVALID", f"{spec.name}: {place_of(module, 'transform')}: transform {what}", remedy=remedy
    )


@dataclass(frozen=True)
class QuerySource:
    """A source of a query.

    Parameters
    ----------
    name
        Its name in the spec.
    scans
        How often a batch reads it: more than once if the query has several branches. Spark counts its rows as often.
    """

    name: str
    scans: int = 1


def query_sources(rows: DataFrame) -> list[QuerySource]:
    """Return a query's sources in the order of Spark's offsets: of its plan, from left to right.

    As ``MicroBatchExecution`` of Spark 4.2 numbers them: equal relations are one source.
    """
    leaves: list[Any] = []
    scans: list[int] = []
    for leaf in each(rows._jdf.queryExecution().analyzed().collectLeaves()):
        if leaf.isStreaming():
            number = next((number for number, other in enumerate(leaves) if leaf.equals(other)), len(leaves))
            if number == len(leaves):
                leaves.append(leaf)
                scans.append(0)
            scans[number] += 1
    return [QuerySource(source_of(leaf), number) for leaf, number in zip(leaves, scans, strict=True)]


def open_source(
    session: SparkSession, workspace: Workspace, spec: JobSpec, name: str, *, since_version: int | None = None
) -> DataFrame:
    """Open a source: descriptions of landed files, rows appended to a Delta table, or Kafka's records.

    A landed file is a row with one column, ``file``, which :meth:`LandedFile.from_json` parses.

    Parameters
    ----------
    spec
        The job; its name selects the plans that are read.
    name
        The source's name among the spec's ``inputs``.
    since_version
        For a Delta table: the first version to read commits from; default the whole table.
    """
    source = spec.inputs[name]
    if isinstance(source, FileSource):
        return open_plans(session, workspace.uri(plans_of(workspace, spec.name).folder), spec.resources.cores, name)
    if isinstance(source, HistorySource):
        live = spec.model_copy(update={"source": source.live})
        return _like_live(
            _open_table(session, workspace, name, source, since_version),
            open_source(session, workspace, live, name).schema,
            source,
        )
    if isinstance(source, KafkaSource):
        return _open_topic(session, spec, name, source, workspace.config)
    return _open_table(session, workspace, name, source, since_version)


def _open_table(
    session: SparkSession, workspace: Workspace, name: str, source: DeltaSource, since_version: int | None
) -> DataFrame:
    reader = session.readStream.format("delta").option("maxFilesPerTrigger", source.max_files_per_batch)
    if source.on_change == "skip":
        reader = reader.option("skipChangeCommits", "true")
    if since_version is not None:
        reader = reader.option("startingVersion", since_version)
    return reader.option(TAG, name).load(workspace.table(source.table, published=source.published))


def _like_live(rows: DataFrame, schema: StructType, source: HistorySource) -> DataFrame:
    """Return rows of a history with the columns of the live source.

    Columns of which a name begins with ``_``, and Kafka's own ``headers``, describe a live record: a history may lack
    them. They are null then, or false.

    Raises
    ------
    StreamwardenError
        ``HISTORY_INVALID`` if another column is missing, or has another type.
    """
    have = {one.name: one.dataType.simpleString() for one in rows.schema.fields}
    made, differing = [], []
    has_headers = isinstance(source.live, KafkaSource) and source.live.value is None
    for one in schema.fields:
        if one.name not in have and (one.name.startswith("_") or (has_headers and one.name == "headers")):
            value = F.lit(False if isinstance(one.dataType, BooleanType) else None)
            made.append(value.cast(one.dataType).alias(one.name))
            continue
        if have.get(one.name) != one.dataType.simpleString():
            there = f"is {have[one.name]}" if one.name in have else "is missing"
            differing.append(f"column {one.name} {there}, and is {one.dataType.simpleString()} in the live source")
        made.append(F.col(f"`{one.name}`"))
    if differing:
        raise StreamwardenError("HISTORY_INVALID", f"table {source.table}: {'; '.join(differing)}")
    return (rows.where(source.where) if source.where is not None else rows).select(*made)


def open_plans(session: SparkSession, folder: str, cores: int, name: str = THE_SOURCE) -> DataFrame:
    """Open a folder of plans; see :mod:`streamwarden.landing.plans`."""
    plans = (
        session.readStream.format("text")
        # A plan is a batch.
        .option("maxFilesPerTrigger", 1)
        .option("maxFileAge", _NO_AGE)
        .option(TAG, name)
        # A pattern: given a folder, Spark reads only files in it, and a clone's checkpoint names another job's files.
        .load(f"{folder}/*.jsonl")
        .toDF("file")
    )
    # A plan is so small that Spark would read it with one task.
    return plans.repartition(cores) if cores > 1 else plans


def _open_topic(session: SparkSession, spec: JobSpec, name: str, source: KafkaSource, config: Path) -> DataFrame:
    # failOnDataLoss stays on: records that the topic has dropped must raise, not be skipped.
    reader = (
        session.readStream.format("kafka")
        .option("startingOffsets", source.starting_offsets)
        .option("maxOffsetsPerTrigger", source.max_offsets_per_batch)
        .option("includeHeaders", "true")
        # So that the servers' consumer lists show the job. Spark commits no offsets there.
        .option("groupIdPrefix", f"streamwarden-{spec.name}")
        .option(TAG, name)
    )
    if source.topic_pattern is not None:
        reader = reader.option("subscribePattern", source.topic_pattern)
    else:
        reader = reader.option("subscribe", ",".join(source.names))
    for key, value in client_properties(source).items():
        reader = reader.option(f"kafka.{key}", value)
    if source.value is None:
        return reader.load()
    field = "source" if spec.sources is None else f"sources.{name}"
    return with_columns(reader.load(), spec.name, field, source, config)
