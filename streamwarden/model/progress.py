"""Models of a job's progress: one batch, the last ones, and the totals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from streamwarden.model.record import Record

__all__ = ["BatchProgress", "OperatorProgress", "Progress", "SourceProgress", "Totals"]


class OperatorProgress(Record):
    """The state of one stateful operator after a batch."""

    id: int
    name: str
    rows: int = Field(description="As Spark counts them: keys of all state variables, timers and indexes left out.")
    keys: int | None = Field(default=None, description="Keys of keyed state; None for other state, or if unknown.")
    bytes: int = Field(description="Memory in use.")
    metrics: dict[str, int] = Field(
        default_factory=dict, description="The state store's metrics, by Spark's own names; see the driver."
    )


class SourceProgress(Record):
    """The job's position in its input."""

    unit: Literal["files", "versions", "offsets", "files, versions and offsets"] = Field(
        description="Landed files, commits of a Delta table with new rows, or offsets of a Kafka topic; the last for"
        " the sum over sources of several kinds."
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
    input_at: datetime | None = Field(default=None, description="When this driver last had input from it.")

    @classmethod
    def total(cls, of: Sequence[SourceProgress]) -> SourceProgress | None:
        """Return the sum over a job's sources; None without any. What is unknown of one is unknown of the sum."""
        if len(of) <= 1:
            return of[0] if of else None
        units = {one.unit for one in of}
        pending = [one.pending for one in of]
        finished = [one.taken if one.finished is None else one.finished for one in of]
        return cls(
            unit=of[0].unit if len(units) == 1 else "files, versions and offsets",
            taken=sum(one.taken for one in of),
            finished=sum(finished) if any(one.finished is not None for one in of) else None,
            pending=None if None in pending else sum(one or 0 for one in pending),
            cut=any(one.cut for one in of),
            skipped=sum(one.skipped for one in of),
            skipped_last=next((one.skipped_last for one in reversed(of) if one.skipped_last), ""),
        )


class BatchProgress(Record):
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
    watermark_since: datetime | None = Field(
        default=None, description="Since when this driver has had this watermark, or none."
    )
    watermark_lag_s: float | None = Field(default=None, description="Newest event time seen, less the watermark.")
    late_rows: int = 0
    state_rows: int = Field(default=0, description="Over all operators; of keyed state, its keys.")
    state_bytes: int = 0
    operators: list[OperatorProgress] = Field(default_factory=list)
    commit_ms: int = Field(default=0, description="Time of the sink's and the offset log's commits.")
    checkpoint_ms: int = Field(default=0, description="Part of that: the offset log and the commit log.")
    tries: int = Field(default=1, description="Number of tries.")
    source: SourceProgress | None = Field(default=None, description="The sum over its sources.")
    sources: dict[str, SourceProgress] = Field(
        default_factory=dict, description="Each of them by name, for a job with several."
    )
    process_bytes: int | None = Field(
        default=None,
        description="Resident memory of the driver's processes, at most 10 s before: Python, the JVM and Python"
        " workers. None: unknown.",
    )
    lookups: dict[str, int] = Field(
        default_factory=dict, description="Newest version of each lookup table, by name, when the batch was computed."
    )


class Progress(Record):
    """The newest batch of an incarnation, and earlier ones."""

    incarnation: str
    at: datetime
    last: BatchProgress | None = None
    recent: list[BatchProgress] = Field(default_factory=list)


class Totals(Record):
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
