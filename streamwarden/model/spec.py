"""The job spec: contents of ``config/jobs/NAME.yaml``, with every default and its reason."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from croniter import croniter
from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from streamwarden.model.advisor_spec import AdvisorSpec
from streamwarden.model.durations import Duration
from streamwarden.model.health_spec import HealthSpec
from streamwarden.model.history_spec import HistorySpec
from streamwarden.model.kafka_spec import KafkaSinkSpec
from streamwarden.model.reconcile_spec import ReconcileSpec
from streamwarden.model.row_rules import RowRule
from streamwarden.model.source_spec import (
    THE_SOURCE,
    DeltaSource,
    FileSource,
    HistorySource,
    KafkaSource,
    Source,
    check_several,
)
from streamwarden.model.spec_base import Strict, bytes_of
from streamwarden.names import Name

__all__ = [
    "EDITS_TABLE",
    "PROGRESS_TABLE",
    "QUALITY_TABLE",
    "RULES_OUTPUT",
    "FailureSpec",
    "JobSpec",
    "KeepSpec",
    "LookupSpec",
    "ResourceSpec",
    "RestartSpec",
    "RetentionSpec",
    "SavepointSpec",
    "ServeSpec",
    "SinkSpec",
    "StateSpec",
    "TriggerSpec",
]

PROGRESS_TABLE = "job_progress"
"""The table of every batch: drivers write it beside their jobs' tables, so no job may."""

QUALITY_TABLE = "quality_results"
"""The table of all checks: the gate writes it, so no job may."""

EDITS_TABLE = "quarantine_edits"
"""The table of all replays of quarantined rows."""

RULES_OUTPUT = "rules/"
"""Begins the output of a quarantine table that no module writes, but the row rules of the table that is named next."""

_REDIS = re.compile(r"rediss?://[^\s@/:]+(:\d{1,5})?(/\d{1,3})?")
_MEMORY = re.compile(r"[1-9]\d*[mg]")
# 64 doublings exceed every longest wait, and still fit a float.
_MOST_DOUBLINGS = 64
# Spark's UnifiedMemoryManager requires 1.5 times its reserved 300 MiB, by the JVM's count. With the drivers' serial
# collector that count is a thirtieth less than the heap.
_LEAST_MEMORY = 466 * 2**20

# Settings that the driver derives from other fields. Setting them twice could be inconsistent.
_OWNED_SETTINGS = {
    "spark.app.name": "name",
    "spark.master": "the profile's master",
    "spark.driver.memory": "resources.memory",
    "spark.executor.memory": "resources.memory",
    "spark.cores.max": "resources.cores",
    "spark.executor.cores": "resources.cores and resources.executors",
    "spark.executor.instances": "resources.executors",
    "spark.sql.shuffle.partitions": "state.partitions",
    "spark.sql.streaming.stateStore.providerClass": "state.backend",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "state.changelog",
    "spark.sql.streaming.minBatchesToRetain": "state.min_batches_to_retain",
    "spark.sql.streaming.multipleWatermarkPolicy": "watermark_policy",
    "spark.sql.streaming.checkpointLocation": "the job's generation",
    "spark.sql.session.timeZone": "nothing: Streamwarden runs in UTC",
}


class LookupSpec(Strict):
    """A Delta table that is no stream: each batch reads its newest version."""

    table: Name = Field(description="A table name; it stands in the profile's tables folder.")


class ServeSpec(Strict):
    """A key-value store that gets an upserted table's rows as well, for readers that look up single keys.

    A Redis server's address with a password comes from the environment: ``STREAMWARDEN_REDIS_URL`` overrides `url`.
    """

    kind: Literal["sqlite", "redis"] = Field(
        description="sqlite: a file in the root's folder serving, for readers on the driver's machine. redis: a server."
    )
    url: str = Field(
        default="redis://127.0.0.1:6379/0", description="redis only: redis://HOST:PORT/DATABASE, on this machine."
    )
    expire_after: Duration | None = Field(
        default=None,
        description="How long a value can be read after its last write. Default: for ever. Set it for keys that never"
        " come back.",
    )

    @field_validator("url")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if not _REDIS.fullmatch(value):
            raise ValueError(
                f"{value.rpartition('@')[2]!r} is no redis://HOST:PORT/DATABASE; one with a password belongs in"
                " STREAMWARDEN_REDIS_URL"
            )
        return value

    @field_validator("expire_after")
    @classmethod
    def _long_enough(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(seconds=1):
            raise ValueError("must be at least 1s")
        return value


class SinkSpec(Strict):
    """One Delta table that a job writes."""

    kind: Literal["delta"] = Field(default="delta", description="Default, so that it need not be written.")
    table: Name
    output: str = Field(default="main", description="Which of the job module's OUTPUTS is written to this table.")
    mode: Literal["append", "upsert"] = Field(
        description="append: idempotent by (job, generation, batch). upsert: MERGE on `keys`."
    )
    keys: tuple[str, ...] = Field(
        default=(),
        description="Columns that identify a row. upsert: MERGE matches on them. append: rows with keys that the"
        " table has already are dropped. Without keys, every row is new.",
    )
    first_by: tuple[str, ...] = Field(
        default=(),
        description="For append with keys: of several rows with equal keys in a batch, the first by these columns is"
        " kept. None: any of them.",
    )
    final_when_passed: str | None = Field(
        default=None,
        description="A timestamp column (upsert only). Once the watermark has passed it, the row can't change any"
        " more, and its column `is_final` is set.",
    )
    serve: ServeSpec | None = Field(
        default=None, description="Also keep the newest row of each key in a serving store (upsert only)."
    )
    reconcile: ReconcileSpec | None = Field(
        default=None,
        description="Finds late rows that the watermark dropped, for `streamwarden corrections` (only with"
        " final_when_passed).",
    )
    partition_by: tuple[str, ...] = ()
    row_rules: tuple[RowRule, ...] = Field(
        default=(),
        description="Rules whose failing rows go to TABLE_quarantine. Not written in YAML: they are read from the"
        " table's suite when the job is deployed (docs/quarantine.md).",
    )
    on_restore: Literal["rewind", "leave"] | None = Field(
        default=None,
        description="What a restore does with the table. rewind: restores the savepoint's version. leave: keeps it;"
        " replayed rows match existing rows by their keys. Default: `leave` with keys, `rewind` without."
        " A job that removes rows (`_deleted`) needs rewind. Its replayed batches have other boundaries,"
        " so a row that only the old ones produced would stay.",
    )

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.mode == "upsert" and not self.keys:
            raise ValueError("mode upsert needs keys: they are what MERGE matches on")
        if self.first_by and (self.mode == "upsert" or not self.keys):
            raise ValueError("first_by goes with mode append and keys: it says which duplicate stays")
        if self.mode == "append" and self.serve:
            raise ValueError("serve goes with mode upsert: a key has one newest row")
        if self.mode == "append" and self.final_when_passed:
            raise ValueError("final_when_passed goes with mode upsert: appended rows are never touched again")
        if self.reconcile and not self.final_when_passed:
            raise ValueError(
                "reconcile goes with final_when_passed: only rows that can't change any more are corrected"
            )
        if self.on_restore == "leave" and not self.keys:
            raise ValueError("on_restore leave needs keys: without them replayed rows would be there twice")
        if self.table in (PROGRESS_TABLE, QUALITY_TABLE, EDITS_TABLE):
            raise ValueError(f"table {self.table} is Streamwarden's own")
        return self

    @property
    def rewinds(self) -> bool:
        """Whether a restore puts the table back; applies the default."""
        return (self.on_restore or ("leave" if self.keys else "rewind")) == "rewind"


def _kind_of(sink: Any) -> str:
    if isinstance(sink, dict):
        return str(sink.get("kind", "delta"))
    return str(getattr(sink, "kind", "delta"))


Sink = Annotated[Annotated[SinkSpec, Tag("delta")] | Annotated[KafkaSinkSpec, Tag("kafka")], Discriminator(_kind_of)]
"""Where a job writes an output; a Delta table if no kind is given."""


class TriggerSpec(Strict):
    """When batches start. In Spark a batch is a checkpoint, so `interval` is the checkpoint interval."""

    interval: Duration = Field(
        default=timedelta(seconds=60),
        description="A batch starts at each whole multiple of it. If the source's limit cut a batch, the next one"
        " follows at once, to process a backlog at full speed. 60s: usual for Flink. Each batch to Delta"
        " costs seconds and leaves files.",
    )
    min_pause: Duration = Field(
        default=timedelta(0),
        description="Least time between the end of a batch and the start of the next one. For jobs whose batches"
        " exceed the interval or process a backlog. 0s, as Flink's execution.checkpointing.min-pause.",
    )

    timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="The longest normal time of a batch; see health.no_batch. 10m, as Flink's"
        " execution.checkpointing.timeout.",
    )

    @field_validator("interval")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=100):
            raise ValueError("must be at least 100ms")
        return value


class FailureSpec(Strict):
    """The driver's own retries of failed batches."""

    tolerable_consecutive: int = Field(
        default=3,
        ge=0,
        description="Retries in a row of a failed batch, each by a new query. 3: usually enough for a transient"
        " fault, within a minute. Errors that no retry can fix, such as damaged state, end the driver at"
        " once. While S3, a schema registry or a serving store does not answer, retries count only after ten minutes.",
    )
    backoff: Duration = Field(
        default=timedelta(seconds=1),
        description="The wait before the first retry; doubled each time, up to `backoff_max`. 1s.",
    )
    backoff_max: Duration = Field(
        default=timedelta(minutes=2),
        description="The longest wait before a retry. 2m, as restarts.backoff_max: a store that is available again is"
        " used within that time.",
    )

    def wait_after(self, failures: int) -> timedelta:
        """Return the wait before the next try, after this number of consecutive failures."""
        doubled = self.backoff.total_seconds() * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
        return timedelta(seconds=min(doubled, self.backoff_max.total_seconds()))

    @property
    def waits(self) -> timedelta:
        """The total wait of a batch that fails as often as tolerated."""
        doubled = min(self.tolerable_consecutive, _MOST_DOUBLINGS + 1)
        waits = sum((self.wait_after(number) for number in range(1, doubled + 1)), timedelta(0))
        return waits + (self.tolerable_consecutive - doubled) * self.wait_after(doubled)


class RestartSpec(Strict):
    """A supervisor's restarts of a dead, silent or failed driver: the restart budget."""

    max: int = Field(
        default=5,
        ge=0,
        le=1000,
        description="Restarts within `window`; one more failure fails the job. 5, and at most 1000.",
    )
    window: Duration = Field(
        default=timedelta(minutes=30), description="30m: older restarts don't count, so a weekly fault never adds up."
    )
    backoff: Duration = Field(
        default=timedelta(seconds=2), description="The wait before the first restart; doubled each time."
    )
    backoff_max: Duration = Field(default=timedelta(minutes=2), description="The longest wait before a restart. 2m.")


class StateSpec(Strict):
    """How the state of stateful operators is stored."""

    backend: Literal["rocksdb", "memory"] = Field(
        default="rocksdb", description="rocksdb: state may be larger than the heap, and can be rescaled."
    )
    changelog: bool | None = Field(
        default=None,
        description="Write a changelog with each batch, and a snapshot only now and then: smaller commits. Default:"
        " on with rocksdb, the only backend that supports it.",
    )
    partitions: int = Field(
        default=4,
        ge=1,
        le=4096,
        description="State partitions (spark.sql.shuffle.partitions). 4 instead of Spark's 200: each one commits a"
        " store in every batch.",
    )
    ttl: Duration | None = Field(default=None, description="Time to live of a state entry from its last write.")
    buckets: int | None = Field(
        default=None,
        ge=8,
        le=65536,
        description="Groups of keys, by hash, of a job with keyed state (docs/keyed-state.md), which needs it. Each is"
        " read as a whole: about a thousand keys in each are quick. At least 8 for each state partition, so that the"
        " partitions are about equal. It can't change while the state is kept.",
    )
    min_batches_to_retain: int = Field(
        default=100, ge=2, description="Batches whose state files are kept; Spark's own default."
    )

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.backend == "memory":
            if self.ttl is not None:
                raise ValueError("ttl needs backend rocksdb: Spark keeps a time to live only there")
            if self.changelog:
                raise ValueError("changelog needs backend rocksdb: the memory backend has none to switch on")
        if self.ttl is not None and self.ttl < timedelta(seconds=1):
            raise ValueError("ttl must be at least 1s")
        if self.buckets is not None and self.buckets < 8 * self.partitions:
            raise ValueError(f"buckets must be at least 8 for each of {self.partitions} partitions")
        return self

    @property
    def changelog_enabled(self) -> bool:
        """Whether changelogs are written; applies the default."""
        return self.backend == "rocksdb" and self.changelog is not False


class KeepSpec(Strict):
    """How many savepoints of one origin are kept, and for how long. Both limits apply; None means no limit."""

    count: int | None = Field(default=None, ge=1, description="Keep the newest ones, up to this number.")
    age: Duration | None = Field(default=None, description="Keep those younger than this.")


class RetentionSpec(Strict):
    """Which savepoints housekeeping removes.

    It never removes the newest verified savepoint, a labelled one, or one in use.
    """

    manual: KeepSpec = Field(default=KeepSpec(), description="Default: kept until a person deletes them.")
    periodic: KeepSpec = Field(
        default=KeepSpec(count=10), description="The newest 10: enough to roll back a night of bad batches."
    )
    pre_rescale: KeepSpec = Field(default=KeepSpec(count=3), description="The newest 3: to undo the last operations.")
    pre_restore: KeepSpec = Field(default=KeepSpec(count=3), description="The newest 3: to undo the last operations.")
    pre_rollout: KeepSpec = Field(default=KeepSpec(count=3), description="The newest 3: to undo the last operations.")
    suspend: KeepSpec = Field(default=KeepSpec(count=3), description="The newest 3: a suspended job starts from one.")

    def of(self, origin: str) -> KeepSpec:
        """Return the policy of an origin, spelled as in the catalogue: ``pre-restore``."""
        policy: KeepSpec = getattr(self, origin.replace("-", "_"))
        return policy


class SavepointSpec(Strict):
    """When periodic savepoints are taken, and how long savepoints are kept."""

    every: Duration | None = Field(
        default=None, description="Take one at this interval. None: only on request, as in Flink."
    )
    cron: str | None = Field(
        default=None, description="Take one at these times (UTC) instead: five cron fields, such as `0 */6 * * *`."
    )
    verify: bool = Field(
        default=True, description="Verify each periodic savepoint at once: its JVM takes some seconds."
    )
    keep: RetentionSpec = RetentionSpec()

    @field_validator("cron")
    @classmethod
    def _cron(cls, value: str | None) -> str | None:
        if value is not None and not (len(value.split()) == 5 and croniter.is_valid(value)):
            raise ValueError(f"{value!r} is not a cron expression of five fields")
        return value

    @field_validator("every")
    @classmethod
    def _every(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(minutes=1):
            raise ValueError("must be at least 1m: each is a run of a DAG")
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.every is not None and self.cron is not None:
            raise ValueError("give every or cron, not both")
        return self


class ResourceSpec(Strict):
    """What the job's driver and executors may use."""

    cores: int = Field(default=1, ge=1, le=1024, description="Task slots. 1: many jobs can share a small machine.")
    executors: int | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        ge=1,
        le=1024,
        description="On a cluster: how many executors share the cores, each the same number of them, and each with"
        " `memory`. Default: a standalone master decides; on YARN and Kubernetes 1. Without a cluster it has no"
        " effect.",
    )
    memory: str = Field(default="1g", description="JVM heap, as Spark writes it: 512m, 2g.")

    @field_validator("memory")
    @classmethod
    def _memory(cls, value: str) -> str:
        if not _MEMORY.fullmatch(value):
            raise ValueError(f"{value!r} is not a JVM memory size: write like 512m or 2g")
        if bytes_of(value) < _LEAST_MEMORY:
            raise ValueError(f"{value} is too little: Spark does not start with less than 466m")
        return value

    @model_validator(mode="after")
    def _shared_evenly(self) -> Self:
        if self.executors is not None and self.cores % self.executors:
            raise ValueError(f"{self.cores} cores can't be shared evenly by {self.executors} executors")
        return self

    @property
    def memory_bytes(self) -> int:
        """The heap in bytes."""
        return bytes_of(self.memory)


class JobSpec(Strict):
    """One streaming query with its own checkpoint."""

    name: Name
    description: str = ""
    module: str = Field(description="Python module with transform() and OUTPUTS; see docs/jobs.md.")
    source: Annotated[Source, Field(discriminator="kind")] | None = Field(
        default=None, description="What the job reads, if it is one source; `transform` gets its DataFrame."
    )
    sources: dict[str, Annotated[Source, Field(discriminator="kind")]] | None = Field(
        default=None,
        description="What the job reads, if it is two or more sources, by name; `transform` gets their DataFrames by"
        " these names, which the module's SOURCES declares. At most one of kind files.",
    )
    lookups: dict[str, LookupSpec] = Field(
        default_factory=dict,
        description="Tables that the query joins by name, each as it is when a batch begins; `transform` gets them in"
        " `settings.lookups`.",
    )
    sinks: tuple[Sink, ...] = Field(
        min_length=1, description="Delta tables, and topics beside them. The first is the main one, a table."
    )
    trigger: TriggerSpec = TriggerSpec()
    failures: FailureSpec = FailureSpec()
    restarts: RestartSpec = RestartSpec()
    state: StateSpec = StateSpec()
    resources: ResourceSpec = ResourceSpec()
    savepoints: SavepointSpec = SavepointSpec()
    health: HealthSpec = HealthSpec()
    advisor: AdvisorSpec = AdvisorSpec()
    watermark: Duration | None = Field(
        default=None, description="How far event time may lag behind the newest seen before a row counts as late."
    )
    watermark_policy: Literal["min", "max"] = Field(
        default="min",
        description="The watermark of several sources. min: it follows the slowest, and no row of that one is late."
        " max: it follows the quickest. An idle source then holds nothing back. It can't change while the checkpoint"
        " is kept.",
    )
    spark: dict[str, str] = Field(default_factory=dict, description="Free Spark settings, for this job only.")
    options: dict[str, Any] = Field(default_factory=dict, description="The job module's own options, checked by it.")

    @field_validator("spark", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for key in value:
            if not str(key).startswith("spark."):
                raise ValueError(f"{key!r} is not a Spark setting: they start with spark.")
            if key in _OWNED_SETTINGS:
                raise ValueError(f"{key} is not free: it follows from {_OWNED_SETTINGS[key]}")
        # YAML reads true and 4 as typed values; Spark needs their text.
        return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if not isinstance(self.sinks[0], SinkSpec):
            raise ValueError("sinks: the first is a Delta table: savepoints and exactly-once output are bound to it")
        tables = [sink.table for sink in self.delta_sinks]
        topics = [sink.topic for sink in self.kafka_sinks]
        outputs = [sink.output for sink in self.delta_sinks]
        for kind, names in (("table", tables), ("output", outputs), ("topic", topics)):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                why = ": a second table needs another output of the module (default: main)" if kind == "output" else ""
                raise ValueError(f"sinks: {kind} {twice} is named twice{why}")
        if (self.source is None) == (self.sources is None):
            raise ValueError("give source, or sources for two or more")
        if self.sources is not None:
            check_several(self.sources)
        for name, source in self.inputs.items():
            if isinstance(source, DeltaSource) and source.table in tables:
                field = "source" if self.sources is None else f"sources.{name}"
                raise ValueError(f"{field}.table {source.table} is also a sink: the job would read what it writes")
        if self.history is not None and self.history.table in tables:
            raise ValueError(f"source.history.table {self.history.table} is also a sink")
        for name, lookup in self.lookups.items():
            if lookup.table in tables:
                raise ValueError(f"lookups.{name}.table {lookup.table} is also a sink of the job")
        for name, topic in (
            (name, topic) for name, one in self.kafka_sources.items() for topic in topics if one.reads(topic)
        ):
            field = "source" if self.sources is None else f"sources.{name}"
            raise ValueError(f"{field} reads topic {topic}, which is also a sink: the job would read what it writes")
        readable = {source.table for source in self.delta_sources.values()}
        readable |= {lookup.table for lookup in self.lookups.values()}
        for sink in self.delta_sinks:
            if sink.final_when_passed and self.watermark is None:
                raise ValueError(f"sinks: {sink.table}.final_when_passed needs a watermark")
            for table in sink.reconcile.tables if sink.reconcile else ():
                if table not in readable:
                    raise ValueError(f"sinks: {sink.table}.reconcile.query reads {table}, which the job does not")
        return self

    @property
    def inputs(self) -> dict[str, Source]:
        """What the job reads, by name; the only source is named :data:`THE_SOURCE`."""
        if self.sources is not None:
            return self.sources
        assert self.source is not None
        return {THE_SOURCE: self.source}

    @property
    def history(self) -> HistorySpec | None:
        """The history that a new job reads before its source."""
        return self.source.history if isinstance(self.source, DeltaSource | KafkaSource) else None

    def on_history(self) -> JobSpec:
        """Return the spec of the job while it reads its history: the same, with the history as its source."""
        history, live = self.history, self.source
        assert history is not None and isinstance(live, DeltaSource | KafkaSource)
        source = HistorySource(
            kind="delta",
            table=history.table,
            max_files_per_batch=history.max_files_per_batch,
            where=history.where,
            live=live,
        )
        return self.model_copy(update={"source": source})

    @property
    def files_source(self) -> FileSource | None:
        """The source of landed files, if the job has one."""
        return next((one for one in self.inputs.values() if isinstance(one, FileSource)), None)

    @property
    def delta_sources(self) -> dict[str, DeltaSource]:
        """The sources that are Delta tables, by name."""
        return {name: one for name, one in self.inputs.items() if isinstance(one, DeltaSource)}

    @property
    def delta_sinks(self) -> tuple[SinkSpec, ...]:
        """The sinks that are Delta tables; the first is the main one."""
        return tuple(one for one in self.sinks if isinstance(one, SinkSpec))

    @property
    def kafka_sinks(self) -> tuple[KafkaSinkSpec, ...]:
        """The sinks that are Kafka topics."""
        return tuple(one for one in self.sinks if isinstance(one, KafkaSinkSpec))

    @property
    def uses_kafka(self) -> bool:
        """Whether the job's session needs Kafka's jars."""
        return bool(self.kafka_sources or self.kafka_sinks)

    @property
    def kafka_sources(self) -> dict[str, KafkaSource]:
        """The sources that are Kafka topics, by name."""
        return {name: one for name, one in self.inputs.items() if isinstance(one, KafkaSource)}

    def digest(self) -> str:
        """Return the SHA-256 of the spec's canonical JSON: equal specs, equal digests."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()
