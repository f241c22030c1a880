"""A driver's metrics, and how a batch's progress and the driver's state become their values.

Follows OpenTelemetry: dotted names, UCUM units. Prometheus sees ``streamwarden.batch.duration`` in seconds as
``streamwarden_batch_duration_seconds``. :mod:`streamwarden.driver.export` exports them from the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation

from streamwarden import __version__
from streamwarden.model.progress import BatchProgress, OperatorProgress
from streamwarden.model.status import DriverState
from streamwarden.supervision.health_rules import RULES, Health

__all__ = ["METRICS", "DriverMetrics", "DriverView", "Kind"]

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Buckets: a small job's batch takes tenths of a second; a batch of ten minutes indicates a problem."""


@dataclass(frozen=True)
class DriverView:
    """A driver's state as in its heartbeat.

    Parameters
    ----------
    state
        Its activity.
    generation
        The job's generation; 0 before it is known.
    failures
        Consecutive failed tries.
    idle
        Whether the source had no new input.
    """

    state: DriverState
    generation: int
    failures: int
    idle: bool


@dataclass(frozen=True)
class Kind:
    """The definition of a metric.

    Parameters
    ----------
    type
        counter, histogram or gauge.
    unit
        In UCUM; an annotation in braces names what is counted, and is not part of Prometheus' names.
    text
        Its description.
    labels
        Its labels besides ``job``.
    """

    type: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()


_BY_OPERATOR = ("operator", "operator_name")

METRICS: dict[str, Kind] = {
    "streamwarden.batches": Kind("counter", "{batch}", "Batches committed"),
    "streamwarden.rows.in": Kind("counter", "{row}", "Rows read"),
    "streamwarden.rows.out": Kind("counter", "{row}", "Rows written to the main table"),
    "streamwarden.rows.late": Kind("counter", "{row}", "Rows dropped as late"),
    "streamwarden.rows.quarantined": Kind("counter", "{row}", "Rows written to the job's other tables"),
    "streamwarden.rows.duplicate": Kind("counter", "{row}", "Rows dropped as duplicates"),
    "streamwarden.tries.failed": Kind("counter", "{try}", "Failed tries of batches"),
    "streamwarden.batch.duration": Kind("histogram", "s", "Batches, from trigger to commit"),
    "streamwarden.commit.duration": Kind("histogram", "s", "Part of that: commits of the tables and the checkpoint"),
    "streamwarden.checkpoint.duration": Kind("histogram", "s", "Part of that: commits of the checkpoint"),
    "streamwarden.batch.last": Kind("gauge", "{id}", "Id of the newest batch"),
    "streamwarden.batch.last.time": Kind("gauge", "s", "When the newest batch was committed, in Unix time"),
    "streamwarden.batch.last.rate": Kind("gauge", "{row}", "Rows per second of the newest batch"),
    "streamwarden.watermark.time": Kind("gauge", "s", "The watermark, in Unix time"),
    "streamwarden.watermark.lag": Kind("gauge", "s", "Newest event time seen, less the watermark"),
    "streamwarden.source.pending": Kind(
        "gauge", "{unit}", "Files, versions of a Delta table, or offsets of a Kafka topic, not yet read", ("unit",)
    ),
    "streamwarden.state.rows": Kind("gauge", "{row}", "Rows of state", _BY_OPERATOR),
    "streamwarden.state.memory": Kind("gauge", "By", "Memory that state uses", _BY_OPERATOR),
    "streamwarden.rocksdb.pinned.memory": Kind("gauge", "By", "RocksDB's pinned blocks in memory", _BY_OPERATOR),
    "streamwarden.rocksdb.sst.size": Kind("gauge", "By", "RocksDB's files", _BY_OPERATOR),
    "streamwarden.rocksdb.cache.hits": Kind("counter", "{read}", "Reads that hit RocksDB's block cache", _BY_OPERATOR),
    "streamwarden.rocksdb.cache.misses": Kind(
        "counter", "{read}", "Reads that missed RocksDB's block cache", _BY_OPERATOR
    ),
    "streamwarden.rocksdb.compaction.duration": Kind("counter", "s", "Time in compactions", _BY_OPERATOR),
    "streamwarden.rocksdb.compaction.written": Kind("counter", "By", "Bytes that compactions wrote", _BY_OPERATOR),
    "streamwarden.rocksdb.stall.duration": Kind("counter", "s", "Time that writers waited for RocksDB", _BY_OPERATOR),
    "streamwarden.rocksdb.copied.files": Kind("counter", "{file}", "Files uploaded to the checkpoint", _BY_OPERATOR),
    "streamwarden.rocksdb.copied.size": Kind("counter", "By", "Bytes uploaded to the checkpoint", _BY_OPERATOR),
    "streamwarden.memory_store.cache.hits": Kind(
        "counter", "{read}", "Versions of state found in memory", _BY_OPERATOR
    ),
    "streamwarden.memory_store.cache.misses": Kind(
        "counter", "{read}", "Versions of state read again from the checkpoint", _BY_OPERATOR
    ),
    "streamwarden.memory_store.size": Kind("gauge", "By", "State of the newest version in memory", _BY_OPERATOR),
    "streamwarden.generation": Kind("gauge", "{generation}", "The job's generation"),
    "streamwarden.driver.state": Kind("gauge", "{state}", "1 for the driver's current state, else 0", ("state",)),
    "streamwarden.driver.idle": Kind("gauge", "{bool}", "1 if the source had no new data at Spark's last check"),
    "streamwarden.driver.failures": Kind("gauge", "{try}", "Failed tries in a row"),
    "streamwarden.health": Kind("gauge", "{level}", "By health rule: 0 ok, 1 warn, 2 critical", ("rule",)),
}
"""Every metric by its OpenTelemetry name. docs/observability.md lists them; a test compares both."""

# Spark's name: (our name, factor). Spark's durations are in milliseconds.
_STORE = {
    "rocksdbPinnedBlocksMemoryUsage": ("streamwarden.rocksdb.pinned.memory", 1.0),
    "rocksdbSstFileSize": ("streamwarden.rocksdb.sst.size", 1.0),
    "rocksdbReadBlockCacheHitCount": ("streamwarden.rocksdb.cache.hits", 1.0),
    "rocksdbReadBlockCacheMissCount": ("streamwarden.rocksdb.cache.misses", 1.0),
    "rocksdbTotalCompactionLatencyMs": ("streamwarden.rocksdb.compaction.duration", 0.001),
    "rocksdbTotalBytesWrittenByCompaction": ("streamwarden.rocksdb.compaction.written", 1.0),
    "rocksdbWriterStallLatencyMs": ("streamwarden.rocksdb.stall.duration", 0.001),
    "rocksdbFilesCopied": ("streamwarden.rocksdb.copied.files", 1.0),
    "rocksdbBytesCopied": ("streamwarden.rocksdb.copied.size", 1.0),
    "loadedMapCacheHitCount": ("streamwarden.memory_store.cache.hits", 1.0),
    "loadedMapCacheMissCount": ("streamwarden.memory_store.cache.misses", 1.0),
    "stateOnCurrentVersionSizeBytes": ("streamwarden.memory_store.size", 1.0),
}

Labels = dict[str, str]
Values = Iterable[tuple[float, Labels]]


class DriverMetrics:
    """Holds the metrics of one driver.

    :meth:`batch` and :meth:`failed_try` only change numbers in memory. Gauges are read at collection, from the newest
    batch and from `view`. A restarted driver counts from 0 again, as Prometheus expects.

    Parameters
    ----------
    provider
        Creates the instruments and exports them.
    job
        The job: the label of every metric.
    view
        Returns the driver's state.
    health
        Returns the job's health, as its supervisor concludes it; None if it can't be determined now.
    """

    def __init__(
        self,
        provider: MeterProvider,
        job: str,
        view: Callable[[], DriverView],
        health: Callable[[], Health | None],
    ) -> None:
        self._job = job
        self._view = view
        self._health = health
        self._last: BatchProgress | None = None
        meter = provider.get_meter("streamwarden", __version__)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, kind in METRICS.items():
            if kind.type == "counter":
                self._counters[name] = meter.create_counter(name, kind.unit, kind.text)
                if not kind.labels:
                    # Present from the start: the rate of a first event needs a 0 before it.
                    self._counters[name].add(0, self._labels())
            elif kind.type == "histogram":
                self._histograms[name] = meter.create_histogram(
                    name, kind.unit, kind.text, explicit_bucket_boundaries_advisory=_SECONDS
                )
        self._gauges: Mapping[str, Callable[[], Values]] = {
            "streamwarden.batch.last": self._of_last(lambda done: done.batch),
            "streamwarden.batch.last.time": self._of_last(lambda done: done.at.timestamp()),
            "streamwarden.batch.last.rate": self._of_last(lambda done: done.rows_per_second),
            "streamwarden.watermark.time": self._of_last(_watermark),
            "streamwarden.watermark.lag": self._of_last(lambda done: done.watermark_lag_s),
            "streamwarden.source.pending": self._pending,
            "streamwarden.state.rows": lambda: ((of.rows, _operator(of)) for of in self._operators()),
            "streamwarden.state.memory": lambda: ((of.bytes, _operator(of)) for of in self._operators()),
            "streamwarden.generation": lambda: [(self._view().generation, {})],
            "streamwarden.driver.state": self._states,
            "streamwarden.driver.idle": lambda: [(int(self._view().idle), {})],
            "streamwarden.driver.failures": lambda: [(self._view().failures, {})],
            "streamwarden.health": self._levels,
            **{
                ours: self._of_store(theirs, factor)
                for theirs, (ours, factor) in _STORE.items()
                if METRICS[ours].type == "gauge"
            },
        }
        for name, read in self._gauges.items():
            kind = METRICS[name]
            meter.create_observable_gauge(name, [self._observed(read)], kind.unit, kind.text)

    def batch(self, done: BatchProgress) -> None:
        """Count a committed batch once."""
        for name, value in (
            ("streamwarden.batches", 1),
            ("streamwarden.rows.in", done.rows_in),
            ("streamwarden.rows.out", done.rows_out or 0),
            ("streamwarden.rows.late", done.late_rows),
            ("streamwarden.rows.quarantined", done.rows_quarantined),
            ("streamwarden.rows.duplicate", done.rows_duplicate),
        ):
            self._counters[name].add(value, self._labels())
        for name, milliseconds in (
            ("streamwarden.batch.duration", done.duration_ms),
            ("streamwarden.commit.duration", done.commit_ms),
            ("streamwarden.checkpoint.duration", done.checkpoint_ms),
        ):
            self._histograms[name].record(milliseconds / 1000, self._labels())
        for operator in done.operators:
            for theirs, (ours, factor) in _STORE.items():
                if ours in self._counters:
                    counted = operator.metrics.get(theirs, 0) * factor
                    self._counters[ours].add(counted, self._labels(_operator(operator)))
        self._last = done

    def failed_try(self) -> None:
        """Count a failed try of a batch."""
        self._counters["streamwarden.tries.failed"].add(1, self._labels())

    def _labels(self, more: Mapping[str, str] | None = None) -> Labels:
        return {"job": self._job, **(more or {})}

    def _observed(self, read: Callable[[], Values]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for value, labels in read():
                yield Observation(value, self._labels(labels))

        return observe

    def _of_last(self, field: Callable[[BatchProgress], float | None]) -> Callable[[], Values]:
        def read() -> Values:
            value = None if self._last is None else field(self._last)
            return [] if value is None else [(value, {})]

        return read

    def _of_store(self, name: str, factor: float) -> Callable[[], Values]:
        return lambda: ((of.metrics[name] * factor, _operator(of)) for of in self._operators() if name in of.metrics)

    def _operators(self) -> list[OperatorProgress]:
        return self._last.operators if self._last is not None else []

    def _pending(self) -> Values:
        source = self._last.source if self._last is not None else None
        return [] if source is None or source.pending is None else [(source.pending, {"unit": source.unit})]

    def _states(self) -> Values:
        now = self._view().state
        return [(int(state is now), {"state": state.value}) for state in DriverState]

    def _levels(self) -> Values:
        health = self._health()
        if health is None:
            return []
        found = {finding.rule: finding.level.rank for finding in health.findings}
        # All rules, so that the end of an alarm appears as a 0.
        return [(found.get(rule, 0), {"rule": rule}) for rule in RULES]


def _operator(of: OperatorProgress) -> Labels:
    return {"operator": str(of.id), "operator_name": of.name}


def _watermark(done: BatchProgress) -> float | None:
    return None if done.watermark is None else done.watermark.timestamp()
