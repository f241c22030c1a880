"""Models of the control documents of a job and its drivers: desired state, checkpoints, leases, heartbeats.

See :mod:`streamwarden.store.documents` for each document's key and writer.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import Decided, ErrorInfo, ErrorText, Record
from streamwarden.model.spec import JobSpec
from streamwarden.names import Key

__all__ = [
    "CheckpointRef",
    "Desired",
    "DriverState",
    "Exit",
    "Heartbeat",
    "LandingState",
    "Launch",
    "Lease",
    "OutputStart",
    "Parallelism",
    "ParallelismOverride",
    "Reread",
    "StopRequest",
]


class Desired(Decided):
    """The operator's wanted state of a job."""

    job: str
    state: Literal["running", "suspended"]
    spec: JobSpec
    digest: str
    profile: str
    updated_at: datetime
    updated_by: str
    note: str = ""
    operation: str | None = Field(default=None, description="The operation that put the spec in force.")
    went_back: bool = Field(
        default=False,
        description="A rollout was rolled back to this spec: columns that the other spec added belong to no job.",
    )


class OutputStart(Record):
    """The contents of an output table at a generation's start."""

    table: str
    version: int | None = Field(description="The table's version; None: before it existed, so empty.")
    source: str | None = Field(default=None, description="The table whose version it is; None: this very table.")


class CheckpointRef(Decided):
    """The checkpoint that a job runs on.

    The generation grows with each start from anything but the job's own last commit. Every sink transaction id contains
    it, because Delta skips a known batch id of the same application id.
    """

    job: str
    generation: int
    path: Key = Field(description="Relative to the root.")
    since: datetime
    reason: str
    savepoint: str | None = Field(default=None, description="The savepoint that its first state came from.")
    base_batch: int | None = Field(default=None, description="That savepoint's batch: this generation begins after it.")
    highest: int = Field(default=0, description="The highest generation ever used: a failed one's never returns.")
    operation: str | None = Field(default=None, description="The operation that put it in force.")
    partitions: int | None = Field(
        default=None, description="Its state partitions; overrides the spec. None: as in the spec."
    )
    version: int | None = Field(
        default=None, description="VERSION of the module that wrote its state. None: not known, as before version 0.2."
    )
    sources: list[str] = Field(
        default_factory=list, description="Names of its sources in Spark's order; empty before a driver has told."
    )
    topics: dict[str, str] = Field(
        default_factory=dict, description="Kafka's ids of the topics that its drivers have read, by name."
    )
    rescaled: bool = Field(default=False, description="A repartitioned copy of the one before, over the same tables.")
    fenced: bool = Field(default=False, description="Late commits of other generations are kept out of the tables.")
    outputs: list[OutputStart] = Field(
        default_factory=list, description="Tables that the driver puts in place before the generation's first batch."
    )
    tables: list[str] = Field(
        default_factory=list, description="Output tables that its drivers have created or found: they must stay."
    )


class Parallelism(Record):
    """How much of the machines a job uses: its state partitions, cores, executors and memory."""

    partitions: int = Field(description="State partitions.")
    cores: int
    executors: int | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="None: the cluster decides, or there is none.",
    )
    memory: str


class ParallelismOverride(Decided):
    """Parallelism decided by a rescale. It overrides the YAML while the YAML's numbers are unchanged."""

    now: Parallelism
    over: Parallelism = Field(description="The YAML's values at the time of the rescale.")
    by: str = Field(description="The operation, and its requester.")


class Lease(Record):
    """The right to run a job."""

    job: str
    incarnation: str
    process: ProcessRef
    jvm: ProcessRef | None = Field(default=None, description="Its JVM, which may outlive a killed driver by a moment.")
    epoch: int = Field(
        description="Grows with every holder. Each commit to a table names it, for audits: nothing compares it."
    )
    renewals: int = 0
    acquired_at: datetime
    expires_at: datetime
    released: bool = False


class Launch(Record):
    """A start of a driver process."""

    incarnation: str
    at: datetime
    by: str
    reason: str
    digest: str
    spec: JobSpec | None = Field(
        default=None,
        description="The spec that it was launched with; live changes of the desired spec may have followed.",
    )
    process: ProcessRef | None = None


class DriverState(StrEnum):
    """The driver's own report of its state."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"


class LandingState(Record):
    """Unread input of a landing folder, and files that need a person's attention."""

    waiting: int = Field(default=0, description="Files in plans that no batch has taken.")
    unplanned: int = Field(default=0, description="Files found and not planned yet.")
    told: int = Field(default=0, description="Files that need attention: replaced, or quarantined whole.")
    first: list[str] = Field(default_factory=list, description="Some of them, with the reasons.")


class Reread(Record):
    """A person's request to read landed files again."""

    id: str
    at: datetime
    by: str
    files: dict[str, int] = Field(description="Name, as `shown` writes it, to the number of the reading, from 2 on.")


class Heartbeat(Record):
    """A driver's sign of life."""

    incarnation: str
    at: datetime
    started_at: datetime
    state: DriverState
    reason: ErrorText = ""
    process: ProcessRef
    generation: int = 0
    digest: str = ""
    batch: int | None = Field(default=None, description="Newest committed batch.")
    failures: int = Field(default=0, description="Failed tries in a row.")
    idle: bool = Field(default=False, description="The source had no new data at Spark's last check.")
    idle_at: datetime | None = Field(default=None, description="The last time at which it had no new data.")
    query_ended: bool = Field(
        default=False, description="Its query was stopped between two batches: no other follows. Spark still ends."
    )
    versions: dict[str, str] = Field(
        default_factory=dict, description="Of what writes the checkpoint: spark, delta, job, streamwarden."
    )
    notes: list[ErrorText] = Field(
        default_factory=list,
        description="Messages for a person that are no errors, such as added columns of its tables.",
    )
    metrics: str = Field(default="", description="host:port of its Prometheus endpoint; empty: it has none.")
    landing: LandingState | None = Field(default=None, description="Of a job that reads files.")


class Exit(Record):
    """A driver's final report."""

    incarnation: str
    at: datetime
    outcome: Literal["stopped", "failed"]
    error: ErrorInfo | None = None
    batch: int | None = None


class StopRequest(Record):
    """The first request to one incarnation to stop between batches; later requests change nothing.

    The driver answers with its heartbeat (stopping) and its exit.
    """

    at: datetime
    by: str
    reason: str = ""
