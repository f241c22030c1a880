"""The steps of each batch: check the lease, compute once, write each output, count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from streamwarden.driver.job_api import StreamingJob
from streamwarden.driver.pipeline.module import split_outputs
from streamwarden.driver.pipeline.row_rules import apply_row_rules
from streamwarden.driver.pipeline.serving import ServingWriter
from streamwarden.driver.pipeline.sink import DeltaSink, Written
from streamwarden.driver.pipeline.topic_sink import TopicSink
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.spec import JobSpec

__all__ = ["BatchCounts", "BatchWriter", "release"]

_KEPT = 100

_ROWS = 1_000_000
_BYTES = 256 * 2**20
"""Up to these, a batch's rows are collected into the driver's process, which has some copies of them for a moment.
In Arrow's form they are usually smaller than Spark's rows."""
_TOLD = 1_000
"""Refused files of one batch that are reported by name; the quarantine table has all of them."""


@dataclass(frozen=True)
class BatchCounts:
    """Row counts of a batch.

    Parameters
    ----------
    computed
        Rows that the job computed from the input.
    rows_out, rows_quarantined, rows_duplicate
        Written to the main table, written to quarantine tables (all others), and dropped as duplicates.
    sink_ms
        Time from the first table's commit to the end of the last table's commit.
    lookups
        Versions of the lookup tables, by name.
    """

    computed: int
    rows_out: int
    rows_quarantined: int
    rows_duplicate: int
    sink_ms: int
    lookups: Mapping[str, int] = field(default_factory=dict)


class BatchWriter:
    """The function that ``foreachBatch`` calls.

    Parameters
    ----------
    spec, job
        The job.
    sinks
        Its tables, by output name.
    checkpoint
        Reads the query's log of batches.
    guard
        Raises if this driver may not write any more.
    serving
        Serving stores, by output name.
    topics
        Kafka topics that get outputs as well.
    check
        Called when a batch's input is read, before any of it is written; raises if the batch must not be written.
    lookups
        Returns the versions of the lookup tables.
    refused
        Called with the landed files that a job has quarantined as a whole: reason by label; see ``refused_files``.
    """

    def __init__(
        self,
        spec: JobSpec,
        job: StreamingJob,
        sinks: Mapping[str, DeltaSink],
        checkpoint: CheckpointReader,
        guard: Callable[[], None],
        *,
        serving: Mapping[str, ServingWriter] | None = None,
        topics: Sequence[TopicSink] = (),
        check: Callable[[], None] = lambda: None,
        lookups: Callable[[], Mapping[str, int]] = dict,
        refused: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self._serving = serving or {}
        self._topics = topics
        self._check = check
        self._lookups = lookups
        self._refused = refused
        self._spec = spec
        self._job = job
        self._sinks = sinks
        self._checkpoint = checkpoint
        self._guard = guard
        # The table that takes all rows unchanged, if there is one.
        self._whole = next(iter(sinks.values())) if len(sinks) == 1 and not hasattr(job, "outputs") else None
        self._has_rules = any(sink.row_rules for sink in spec.delta_sinks)
        self._counts: dict[int, BatchCounts] = {}
        self._ended_at = 0.0
        self.hurry = threading.Event()
        """Set it to skip the pause between batches: a stop waits for the batch in flight."""
        self.in_flight: int | None = None
        """The batch that is being written, or None."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch to every output table."""
        self.in_flight = batch_id
        try:
            self._pause()
            self._guard()
            self._write(batch, batch_id)
        finally:
            self._ended_at = time.monotonic()
            self.in_flight = None

    def counts(self, batch_id: int) -> BatchCounts | None:
        """Return the row counts of a batch, for the newest hundred batches of this process."""
        return self._counts.get(batch_id)

    def _pause(self) -> None:
        # Spark can't wait between a commit and the next batch's offsets, so the next batch waits before its work. Its
        # input is already chosen, but the machine is idle and no resources are held.
        left = self._ended_at + self._spec.trigger.min_pause.total_seconds() - time.monotonic()
        if self._ended_at and left > 0:
            self.hurry.wait(left)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        offsets = self._checkpoint.offsets(batch_id)
        watermark_ms = offsets.watermark_ms if offsets else 0
        # The batch is planned by now, and computed below. A version that comes in between is named too early.
        lookups = dict(self._lookups())
        written: dict[str, Written] = {}
        commits_from: list[float] = []

        def guard() -> None:
            self._guard()
            commits_from.append(time.monotonic())

        # Kept because every output reads it, and because a second computation would commit its state twice. A local
        # checkpoint and not persist(): MERGE rejects a cached source, unless it materializes the source once more.
        whole = self._whole
        # A single output is measured, and the rows of several are counted, within the job that computes the batch.
        observation = Observation()
        measures = whole.measures() if whole is not None else [F.count(F.lit(1)).alias("rows")]
        kept = batch.observe(observation, *measures).localCheckpoint(eager=True)
        try:
            self._check()
            found = observation.get
            small = found["rows"] <= _ROWS and _stored(kept) <= _BYTES
            outputs = split_outputs(self._job, kept)
            if self._has_rules:
                outputs = apply_row_rules(self._spec, outputs, batch_id, offsets.planned_ms if offsets else 0)
            parts = [
                (
                    output,
                    self._sinks[output],
                    self._sinks[output].arrived(rows, small=small, found=found if whole else None),
                )
                for output, rows in outputs.items()
                if output in self._sinks
            ]
            # Check all outputs before the first write: a rejected batch writes to no table.
            for _, sink, arrived in parts:
                sink.check_keys(arrived, batch_id)
            for output, sink, arrived in parts:
                written[output] = sink.write(arrived, batch_id, watermark_ms, guard=guard)
                if output in self._serving:
                    self._guard()
                    self._serving[output].write(arrived.frame, arrived.rows, batch_id, watermark_ms)
            for topic in self._topics:
                if topic.output in outputs:
                    self._guard()
                    topic.write(outputs[topic.output], batch_id)
            self._tell_refused(kept, written)
            # Check again before Spark commits the batch: if the driver was paused in a write, Delta skipped it.
            self._guard()
            sink_ms = round((time.monotonic() - commits_from[0]) * 1000) if commits_from else 0
        finally:
            release(kept)
        main = self._spec.delta_sinks[0].output
        self._counts[batch_id] = BatchCounts(
            computed=sum(done.arrived for done in written.values()),
            rows_out=written[main].rows if main in written else 0,
            rows_quarantined=sum(done.rows for output, done in written.items() if output != main),
            rows_duplicate=sum(done.duplicates for done in written.values()),
            sink_ms=sink_ms,
            lookups=lookups,
        )
        self._counts.pop(batch_id - _KEPT, None)

    def _tell_refused(self, kept: DataFrame, written: Mapping[str, Written]) -> None:
        find = getattr(self._job, "refused_files", None)
        main = self._spec.delta_sinks[0].output
        if (
            find is None
            or self._refused is None
            or not any(done.arrived for name, done in written.items() if name != main)
        ):
            return
        found = {row["source_file"]: row["reason"] for row in find(kept).limit(_TOLD).collect()}
        if found:
            self._refused(found)


def _stored(kept: DataFrame) -> int:
    """Return the bytes that a local checkpoint takes in memory and on disk."""
    rdd: Any = kept._jdf.queryExecution().analyzed().rdd()
    stored = kept.sparkSession._jsc.sc().getRDDStorageInfo()
    return sum(one.memSize() + one.diskSize() for one in stored if one.id() == rdd.id())


def release(kept: DataFrame) -> None:
    """Free the blocks of a local checkpoint now, instead of at the JVM's next garbage collection."""
    plan: Any = kept._jdf.queryExecution().analyzed()
    plan.rdd().unpersist(False)
