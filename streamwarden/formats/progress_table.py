"""The Delta table ``job_progress``: one row per batch of every job, without Spark.

Only delta-rs writes it, from many drivers at once. Appends do not conflict: of two concurrent appends, one commits
after the other. On S3 this requires conditional PUT, as the control documents do.

Each append carries a Delta transaction (job and incarnation, the newest batch), which is checked in the same version
that the append builds on. So each batch is in the table once, even if an append is repeated: by the driver after a lost
response, or by its successor after a kill. Two concurrent appends for one incarnation conflict, and the loser checks
again.

This import takes a good part of a second (pyarrow, delta-rs): import it where it is used, not where a DAG is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.formats.appended_table import AppendedTable, milliseconds, schema_of
from streamwarden.model.progress import BatchProgress
from streamwarden.model.record import utc_now
from streamwarden.model.spec import PROGRESS_TABLE

__all__ = ["COLUMNS", "ProgressTable"]

_OPERATOR = pa.struct(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("metrics", pa.map_(pa.string(), pa.int64())),
    ]
)
_TIME = pa.timestamp("us", tz="UTC")

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "job": (pa.string(), "The job. The table is partitioned by it."),
    "generation": (pa.int32(), "The job's generation."),
    "incarnation": (pa.string(), "The driver's run."),
    "batch": (pa.int64(), "The batch's id. A new generation continues from its savepoint's batch."),
    "at": (_TIME, "Time at which the driver reported it, right after the commit."),
    "duration_ms": (pa.int64(), "Duration of the whole trigger."),
    "rows_in": (pa.int64(), "Rows read."),
    "rows_out": (pa.int64(), "Rows written to the main table; null: unknown."),
    "rows_quarantined": (pa.int64(), "Rows written to all other tables."),
    "rows_duplicate": (pa.int64(), "Rows dropped as duplicates."),
    "late_rows": (pa.int64(), "Rows dropped as late."),
    "rows_per_second": (pa.float64(), "Rows in, per second of the duration."),
    "watermark": (_TIME, "The watermark; null: none yet."),
    "watermark_lag_s": (pa.float64(), "Newest event time seen, less the watermark; seconds."),
    "state_rows": (pa.int64(), "Over all stateful operators."),
    "state_bytes": (pa.int64(), "Memory that they use."),
    "operators": (
        pa.list_(_OPERATOR),
        "For each operator: rows, bytes, and its state store's metrics, by Spark's names.",
    ),
    "commit_ms": (pa.int64(), "Commits of the tables and of the checkpoint."),
    "checkpoint_ms": (pa.int64(), "Part of that: the checkpoint."),
    "tries": (pa.int32(), "Number of tries."),
    "source_unit": (pa.string(), "files, versions of a Delta table, or offsets of a Kafka topic."),
    "source_taken": (pa.int64(), "Read by the batch."),
    "source_pending": (pa.int64(), "Left after the batch; null: unknown."),
    "process_bytes": (pa.int64(), "Resident memory of the driver's processes, the JVM's included; null: unknown."),
}
"""Column: (type, meaning), in the table's order."""


class ProgressTable(AppendedTable):
    """The table of one place."""

    table = PROGRESS_TABLE
    schema = schema_of(COLUMNS, required="job")
    partition = "job"
    description = "One row per batch of every job; see Streamwarden's docs/observability.md"
    failed = "PROGRESS_TABLE_FAILED"

    def last_batch(self, job: str, incarnation: str) -> int | None:
        """Return the newest batch of a job's incarnation in the table; None if there is none in the last 30 days.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_FAILED``.
        """
        return self._tried(lambda: self._last_batch(job, incarnation))

    def append(self, job: str, incarnation: str, generation: int, batches: Iterable[BatchProgress]) -> int:
        """Append those batches of an incarnation that are newer than its newest in the table; return how many.

        Creates the table if there is none. The result is independent of other incarnations' rows.

        Parameters
        ----------
        batches
            In the order of their ids.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_FAILED``. The call may be repeated, also by another process.
        """
        rows = list(batches)
        return self._tried(lambda: self._append(job, incarnation, generation, rows))

    def read(self, job: str, last: int | None = None, *, since: datetime | None = None) -> list[dict[str, Any]]:
        """Return a job's batches as the table's columns, oldest first.

        Does not contain what a driver has yet to write: see ``progress_table.every`` of the profile.

        Parameters
        ----------
        last
            The number of newest batches.
        since
            Also return all batches done at this time or later.

        Raises
        ------
        StreamwardenError
            ``PROGRESS_TABLE_MISSING`` or ``PROGRESS_TABLE_FAILED``.
        """
        return self._tried(lambda: self._read(job, last, since))

    def _last_batch(self, job: str, incarnation: str) -> int | None:
        table = self._open(make=False)
        return None if table is None else table.transaction_version(_application(job, incarnation))

    def _append(self, job: str, incarnation: str, generation: int, batches: list[BatchProgress]) -> int:
        application = _application(job, incarnation)
        table = self._open(make=True)
        assert table is not None
        there = table.transaction_version(application)
        new = [done for done in batches if there is None or done.batch > there]
        if not new:
            return 0
        rows = [_row(done, job, incarnation, generation) for done in new]
        written = Transaction(application, new[-1].batch, milliseconds(utc_now()))
        write_deltalake(
            table,
            pa.Table.from_pylist(rows, schema=self.schema),
            mode="append",
            # A table from an older or newer driver may have other columns.
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[written]),
        )
        return len(new)

    def _read(self, job: str, last: int | None, since: datetime | None) -> list[dict[str, Any]]:
        table = self._open(make=False)
        if table is None:
            raise StreamwardenError("PROGRESS_TABLE_MISSING", self._uri)
        data = table.to_pyarrow_dataset()
        wanted = pc.field("job") == job
        if last is not None:
            # Read the times first: a quarter's rows with their operators are large, and only the newest few are needed.
            times = data.to_table(columns=["at"], filter=wanted)["at"]
            if since is not None:
                last = max(last, pc.sum(pc.greater_equal(times, since)).as_py() or 0)
            newest = pc.select_k_unstable(times, last, [("", "descending")]) if len(times) else []
            if len(newest):
                wanted &= pc.field("at") >= times[newest[-1].as_py()]
        # An older driver's table lacks newer columns until a current driver appends to it.
        there = [name for name in COLUMNS if name in data.schema.names]
        rows = data.to_table(columns=there, filter=wanted).sort_by([("at", "ascending"), ("batch", "ascending")])
        found = [{**dict.fromkeys(COLUMNS), **row} for row in rows.to_pylist(maps_as_pydicts="strict")]
        return found if last is None else found[-last:]


def _application(job: str, incarnation: str) -> str:
    return f"streamwarden/progress/{job}/{incarnation}"


def _row(done: BatchProgress, job: str, incarnation: str, generation: int) -> dict[str, Any]:
    source = done.source
    return {
        **done.model_dump(exclude={"lookups", "operators", "source", "sources", "watermark_since"}),
        "job": job,
        "generation": generation,
        "incarnation": incarnation,
        "operators": [operator.model_dump() for operator in done.operators],
        "source_unit": source.unit if source else None,
        "source_taken": source.taken if source else None,
        "source_pending": source.pending if source else None,
    }
