"""Models of the control documents: desired state, checkpoints, leases, heartbeats, operations, health.

See :mod:`streamwarden.store.documents` for each document's key and writer.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from streamwarden.errors import StreamwardenError, is_code
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.spec import JobSpec

__all__ = [
    "BatchProgress",
    "CheckpointRef",
    "Decided",
    "Decision",
    "Desired",
    "DriverState",
    "Ending",
    "ErrorInfo",
    "Exit",
    "HealthChange",
    "HealthRecord",
    "Heartbeat",
    "LandingState",
    "Launch",
    "Lease",
    "OperatorProgress",
    "OutputStart",
    "Parallelism",
    "ParallelismOverride",
    "Progress",
    "Refused",
    "Reread",
    "Restart",
    "RuleState",
    "SourceProgress",
    "StopRequest",
    "Supervision",
    "Totals",
    "utc_now",
]


def utc_now() -> datetime:
    """Return the current time in UTC, with its zone. All control documents use this clock."""
    return datetime.now(UTC)


class _Record(BaseModel):
    # Unknown fields are ignored: a newer driver may write more of them. An unknown value of an enum or Literal is not
    # ignored: the document then counts as damaged. So upgrade Airflow and the command line before the drivers. Frozen,
    # since readers of an unchanged document may share one object.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ErrorInfo(_Record):
    """An error as data: code and text of the catalogue, and a traceback if there is one."""

    code: str
    what: str
    remedy: str
    retryable: bool
    traceback: str = ""

    def to_exception(self) -> StreamwardenError:
        """Return the error as an exception."""
        # Another version may know more codes.
        code = self.code if is_code(self.code) else "DRIVER_FAILED"
        return StreamwardenError(code, self.what, remedy=self.remedy, retryable=self.retryable)

    @classmethod
    def of(cls, error: StreamwardenError, traceback: str = "") -> ErrorInfo:
        """Create the record from an exception."""
        return cls(
            code=error.code, what=error.what, remedy=error.remedy, retryable=error.retryable, traceback=traceback
        )


class Decided(_Record):
    """A document that decides what runs. Operations change it only by compare-and-swap."""

    takeovers: int = Field(
        default=0,
        description="Grows when an operation is taken over, so that its previous process fails its compare-and-swap.",
    )


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
    operation: str | None = Field(default=None, description="The rollout that put the spec in force.")
    went_back: bool = Field(
        default=False,
        description="A rollout was rolled back to this spec: columns that the other spec added belong to no job.",
    )


class OutputStart(_Record):
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
    path: str = Field(description="Relative to the root.")
    since: datetime
    reason: str
    savepoint: str | None = Field(default=None, description="The savepoint that its first state came from.")
    base_batch: int | None = Field(default=None, description="That savepoint's batch: this generation begins after it.")
    highest: int = Field(default=0, description="The highest generation ever used: a failed one's never returns.")
    operation: str | None = Field(default=None, description="The operation that put it in force.")
    partitions: int | None = Field(
        default=None, description="Its state partitions; overrides the spec. None: as in the spec."
    )
    fenced: bool = Field(default=False, description="Late commits of other generations are kept out of the tables.")
    outputs: list[OutputStart] = Field(
        default_factory=list, description="Tables that the driver puts in place before the generation's first batch."
    )
    tables: list[str] = Field(
        default_factory=list, description="Output tables that its drivers have created or found: they must stay."
    )


class Parallelism(_Record):
    """How much of the machine a job uses: its state partitions, cores and memory."""

    partitions: int = Field(description="State partitions.")
    cores: int
    memory: str


class ParallelismOverride(Decided):
    """Parallelism decided by a rescale. It overrides the YAML while the YAML's numbers are unchanged."""

    now: Parallelism
    over: Parallelism = Field(description="The YAML's values at the time of the rescale.")
    by: str = Field(description="The operation, and its requester.")


class Lease(_Record):
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


class Launch(_Record):
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


class LandingState(_Record):
    """Unread input of a landing folder, and files that need a person's attention."""

    waiting: int = Field(default=0, description="Files in plans that no batch has taken.")
    unplanned: int = Field(default=0, description="Files found and not planned yet.")
    told: int = Field(default=0, description="Files that need attention: replaced, or quarantined whole.")
    first: list[str] = Field(default_factory=list, description="Some of them, with the reasons.")


class Reread(_Record):
    """A person's request to read landed files again."""

    id: str
    at: datetime
    by: str
    files: dict[str, int] = Field(description="Name, as `shown` writes it, to the number of the reading, from 2 on.")


class Heartbeat(_Record):
    """A driver's sign of life."""

    incarnation: str
    at: datetime
    started_at: datetime
    state: DriverState
    reason: str = ""
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
    notes: list[str] = Field(
        default_factory=list,
        description="Messages for a person that are no errors, such as added columns of its tables.",
    )
    metrics: str = Field(default="", description="host:port of its Prometheus endpoint; empty: it has none.")
    landing: LandingState | None = Field(default=None, description="Of a job that reads files.")


class OperatorProgress(_Record):
    """The state of one stateful operator after a batch."""

    id: int
    name: str
    rows: int = Field(description="As Spark counts them: keys of all state variables, timers and indexes left out.")
    bytes: int = Field(description="Memory in use.")
    metrics: dict[str, int] = Field(
        default_factory=dict, description="The state store's metrics, by Spark's own names; see the driver."
    )


class SourceProgress(_Record):
    """The job's position in its input."""

    unit: Literal["files", "versions", "offsets"] = Field(
        description="Landed files, commits of a Delta table with new rows, or offsets of a Kafka topic."
    )
    taken: int = Field(description="Read by the batch.")
    finished: int | None = Field(
        default=None,
        description="For versions: those completely read by it, because large ones are read in parts; None: all taken.",
    )
    pending: int | None = Field(
        description="Left after it, at the time of its report (Kafka: of its planning); None: unknown."
    )
    cut: bool = Field(
        default=False,
        description="Its limit left some of the source: the next batch starts at once.",
    )
    skipped: int = Field(
        default=0, description="Commits of a Delta table that changed or deleted rows, and that it skipped."
    )
    skipped_last: str = Field(default="", description="The newest of them, in words.")


class BatchProgress(_Record):
    """Results of one batch."""

    batch: int
    at: datetime
    duration_ms: int
    rows_in: int
    rows_out: int | None = Field(
        default=None, description="Rows written to the main table; None: unknown. A batch tried again counts anew."
    )
    rows_quarantined: int = 0
    rows_duplicate: int = 0
    rows_per_second: float = 0.0
    watermark: datetime | None = None
    watermark_lag_s: float | None = Field(default=None, description="Newest event time seen, less the watermark.")
    late_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    operators: list[OperatorProgress] = Field(default_factory=list)
    commit_ms: int = Field(default=0, description="Time of the sink's and the offset log's commits.")
    checkpoint_ms: int = Field(default=0, description="Part of that: the offset log and the commit log.")
    tries: int = Field(default=1, description="Number of tries.")
    source: SourceProgress | None = None


class Progress(_Record):
    """The newest batch of an incarnation, and earlier ones."""

    incarnation: str
    at: datetime
    last: BatchProgress | None = None
    recent: list[BatchProgress] = Field(default_factory=list)


class Totals(_Record):
    """Sums over all incarnations of a generation. A batch is added once, by its id.

    A rescale reads nothing again, so its generation starts with the previous sums; a restore's generation starts at
    zero. If a driver is killed between a commit and this document, that batch is missing.
    """

    generation: int
    through_batch: int = -1
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_duplicate: int = 0
    late_rows: int = 0
    commits_skipped: int = Field(default=0, description="See :class:`SourceProgress`.")


class Exit(_Record):
    """A driver's final report."""

    incarnation: str
    at: datetime
    outcome: Literal["stopped", "failed"]
    error: ErrorInfo | None = None
    batch: int | None = None


class StopRequest(_Record):
    """The first request to one incarnation to stop between batches; later requests change nothing.

    The driver answers with its heartbeat (stopping) and its exit.
    """

    at: datetime
    by: str
    reason: str = ""


class RuleState(_Record):
    """A health rule whose limit is reached, as last reported."""

    level: Literal["warn", "critical"]
    worst: Literal["", "warn", "critical"] = Field(
        default="",
        description="The worst level since the rule was last ok: notifiers that were sent it are sent the end, too.",
    )
    since: datetime
    what: str


class HealthChange(_Record):
    """A change of a rule's level."""

    rule: str
    before: Literal["ok", "warn", "critical"]
    after: Literal["ok", "warn", "critical"]
    worst: Literal["", "ok", "warn", "critical"] = Field(
        default="", description="The worst level since the rule was last ok, including this change."
    )
    what: str
    at: datetime


class Refused(_Record):
    """A failed notification, to be retried."""

    times: int = Field(description="In a row.")
    retry_at: datetime


class HealthRecord(_Record):
    """The last reported health of a job; rules not in it are healthy. The next report compares with this."""

    rules: dict[str, RuleState] = Field(default_factory=dict)
    changes: list[HealthChange] = Field(default_factory=list, description="The newest ones, oldest first.")
    unsent: dict[str, list[HealthChange]] = Field(
        default_factory=dict, description="By notifier: changes that were not sent to it yet."
    )
    refused: dict[str, Refused] = Field(
        default_factory=dict, description="By notifier whose last call failed: when to call it again."
    )
    sending: dict[str, datetime] = Field(
        default_factory=dict,
        description="By notifier that is being called: until when no other process calls it. The caller may have died.",
    )


class Restart(_Record):
    """A restart of a job by a supervisor."""

    at: datetime
    after: str = Field(description="The incarnation that ended.")
    reason: str


class Decision(_Record):
    """A supervisor's decision, and its reason."""

    at: datetime
    what: str
    why: str


class Ending(_Record):
    """The end of a job's run by a supervisor.

    A failed job stays down until it is deployed again, even after its restarts leave the window. A suspension at a
    limit is complete once the driver has ended and the savepoint exists or can't be taken. The next supervisor to
    observe that removes this record.
    """

    incarnation: str = Field(description="The last incarnation. Says nothing about later ones.")
    at: datetime = Field(
        description="The time of the last decision; a suspension is decided again at each check until it is done."
    )
    action: Literal["fail", "suspend"] = "fail"
    why: str
    error: ErrorInfo = Field(description="The error of the job's task.")
    savepoint: bool = Field(default=False, description="Whether the suspension takes a savepoint.")


class Supervision(_Record):
    """A supervisor's memory. It is stored here, so that another supervisor can continue after a crash."""

    restarts: list[Restart] = Field(default_factory=list)
    decisions: list[Decision] = Field(default_factory=list)
    ending: Ending | None = None
