"""Models of a savepoint's manifest and its record."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import ErrorText
from streamwarden.model.spec import JobSpec
from streamwarden.names import Key

__all__ = [
    "FORMAT",
    "FileEntry",
    "Manifest",
    "OperatorState",
    "Origin",
    "Record",
    "SinkState",
    "Summary",
    "Verification",
]

FORMAT = 1
"""Version of the manifest's layout. A restore refuses a newer one."""


class Origin(StrEnum):
    """Why a savepoint was taken."""

    MANUAL = "manual"
    PERIODIC = "periodic"
    PRE_RESCALE = "pre-rescale"
    PRE_RESTORE = "pre-restore"
    PRE_ROLLOUT = "pre-rollout"
    SUSPEND = "suspend"


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class FileEntry(Part):
    """One file of the copy."""

    path: Key = Field(description="Relative to the savepoint's checkpoint folder.")
    size: int = Field(description="Bytes.")
    sha256: str


class OperatorState(Part):
    """The state of one stateful operator."""

    id: int
    name: str = Field(description="Spark's name of it, such as stateStoreSave.")
    partitions: int
    stores: list[str]
    rows: int | None = Field(description="As Spark reported them for this batch; None where no report is left.")
    keys: int | None = Field(default=None, description="Keys of keyed state; None for other state, or if unknown.")
    bytes: int = Field(description="Size of its files.")
    schema_sha256: str = Field(description="Of its state schema files, in order of their paths.")


class SinkState(Part):
    """An output table at the savepoint's batch."""

    table: str
    mode: Literal["append", "upsert"]
    version: int | None = Field(description="The table's version after the batch; None if it did not exist.")
    application: str = Field(description="The application id of the transactions.")
    transaction: int | None = Field(description="The newest batch committed under it; None if there was none yet.")


class Summary(Part):
    """What lists show of a manifest, whose thousands of files make it slow to parse."""

    etag: str = Field(description="Of the manifest: a summary of any other is not used.")
    taken_at: datetime
    took_s: float
    parent: str | None
    generation: int
    batch: int
    partitions: int | None
    rows: int | None
    bytes: int


class Manifest(Part):
    """All data needed to start from a savepoint, and to verify that it is complete."""

    format: int = FORMAT
    id: str
    job: str
    origin: Origin
    by: str
    taken_at: datetime
    took_s: float = Field(description="From the choice of the batch to this manifest.")
    parent: str | None = Field(description="The savepoint that the checkpoint itself was started from.")
    generation: int
    checkpoint: Key = Field(description="The checkpoint that was copied, relative to the root.")
    batch: int
    planned_at: datetime | None = Field(default=None, description="When the batch was planned.")
    watermark_ms: int = Field(description="The watermark that the batch began with.")
    sources: list[str | None] = Field(description="Where each source stood after the batch, in its own words.")
    source_names: list[str] = Field(
        default_factory=list, description="Their names, in the same order; empty as an older version wrote it."
    )
    topics: dict[str, str] = Field(default_factory=dict, description="Kafka's ids of the topics, by name.")
    settings: dict[str, str] = Field(description="Spark settings that the checkpoint fixes.")
    operators: list[OperatorState]
    sinks: list[SinkState]
    versions: dict[str, str] = Field(description="Of spark, delta, job and streamwarden, as the driver said.")
    spec: JobSpec = Field(description="The job's spec at that time.")
    digest: str
    files: list[FileEntry]

    @property
    def partitions(self) -> int | None:
        """The number of state partitions, or None for a stateless job."""
        return self.operators[0].partitions if self.operators else None

    @property
    def positions(self) -> dict[str, str | None]:
        """Where each source stood after the batch, by its name in the spec; None for one without data yet."""
        return dict(zip(self.source_names or self.spec.inputs, self.sources, strict=False))

    @property
    def state_rows(self) -> int | None:
        """The rows of all operators, of keyed state its keys; None if unknown."""
        rows = [one.rows if one.keys is None else one.keys for one in self.operators]
        return None if None in rows else sum(row for row in rows if row is not None)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(entry.size for entry in self.files)

    def summary(self, etag: str) -> Summary:
        """Return what lists show, for the record.

        Parameters
        ----------
        etag
            The stored manifest's.
        """
        return Summary(
            etag=etag,
            taken_at=self.taken_at,
            took_s=self.took_s,
            parent=self.parent,
            generation=self.generation,
            batch=self.batch,
            partitions=self.partitions,
            rows=self.state_rows,
            bytes=self.bytes,
        )


class Verification(Part):
    """Result of a savepoint's last verification."""

    verdict: Literal["verified", "damaged"]
    at: datetime
    by: str
    took_s: float
    files: int
    bytes: int
    rows: dict[str, int] | None = Field(
        default=None, description="Rows read back, by operator id; None if the state was not read."
    )
    problems: list[ErrorText] = Field(default_factory=list)


class Record(Part):
    """The changing part: the savepoint's use, and people's labels and notes."""

    id: str
    job: str
    state: Literal["taking", "complete", "deleting"]
    origin: Origin
    by: str
    at: datetime
    note: str = ""
    label: str = Field(default="", description="A savepoint with a label is never removed by retention.")
    process: ProcessRef | None = Field(default=None, description="Who takes it.")
    seen_at: datetime | None = Field(default=None, description="When the taker was last heard of.")
    done: dict[str, Any] = Field(default_factory=dict, description="How far the taking is.")
    summary: Summary | None = Field(default=None, description="Of its manifest; None: as an older version wrote it.")
    verification: Verification | None = None
    outdated: str = Field(
        default="", description="Why no job may start from it, though its files are whole: a table's log was cut off."
    )
    in_use_by: list[str] = Field(default_factory=list, description="Ids of operations that start from it.")
