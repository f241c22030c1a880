"""Keyed state as an operation on a streaming DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.group import GroupedData
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType, TimestampType

from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.chunks import NEVER, encoded
from streamwarden.keyed_state.job import KeyedJob
from streamwarden.keyed_state.layout import EXPIRES, HASH, TIMER, StateLayout
from streamwarden.keyed_state.processor import PACKED_OUTPUT, BucketProcessor, packed, unpacked
from streamwarden.spark.arrow_types import arrow_type

__all__ = ["KEYED_STATE", "layouts_of_queries", "with_keyed_state"]

KEYED_STATE = "keyed_state"
"""Name of the observed metric of a batch: the number of keys that it ``added``, and of its ``late`` events."""


_layouts: ContextVar[list[StateLayout] | None] = ContextVar("_layouts", default=None)


@contextmanager
def layouts_of_queries() -> Iterator[list[StateLayout]]:
    """Yield a list of the columns of state of the queries that are built meanwhile: chunks are stored without them."""
    found: list[StateLayout] = []
    token = _layouts.set(found)
    try:
        yield found
    finally:
        _layouts.reset(token)


def with_keyed_state(
    rows: DataFrame,
    key: Sequence[str],
    job: KeyedJob,
    *,
    buckets: int | None,
    ttl: timedelta | None,
    time: Literal["processing", "event"] = "processing",
    event_time: str | None = None,
    initial: DataFrame | None = None,
) -> DataFrame:
    """Run a job with state by key over a stream.

    Parameters
    ----------
    rows
        The key's columns, and the columns that the job gets as events.
    key
        Names of the key's columns.
    job
        The logic.
    buckets
        The spec's ``state.buckets``: groups of keys, by hash.
    ttl
        Time to live of state after its last write; None for ever. In event time: after the key's newest event.
    time
        What `now`, timers and `ttl` mean: processing time, or the watermark, which `rows` must then have.
    event_time
        A column of `rows` with timestamps, for ``time="event"``. Events at or before the watermark are dropped and
        counted as late. None drops none; then `ttl` must be None. Spark's own operators compare with the watermark of
        the batch before, and so drop a batch later.
    initial
        ``settings.initial_state``: state to begin with. The key's columns and the job's fields. ``timer_at`` and
        ``expires_at`` (milliseconds) are optional, as in a result; in event time with a `ttl`, ``expires_at`` is not.

    Returns
    -------
    DataFrame
        The key's columns and the job's output.

    Raises
    ------
    StreamwardenError
        ``CONFIG_INVALID`` if the spec does not give the number of buckets, or if what event time needs is missing.
    """
    if buckets is None:
        raise StreamwardenError("CONFIG_INVALID", "state.buckets: is required by a job with keyed state")
    _check_time(rows, ttl, time, event_time)
    # Arrow batches have timestamps in the session's time zone.
    zone = rows.sparkSession.conf.get("spark.sql.session.timeZone")
    types = {one.name: arrow_type(one.dataType, zone) for one in rows.schema}
    layout = StateLayout({name: types[name] for name in key}, job.fields)
    built = _layouts.get()
    if built is not None:
        built.append(layout)
    events = [name for name in rows.columns if name not in key]
    event_schema = pa.schema([(HASH, pa.int64()), *((name, types[name]) for name in (*key, *events))])
    hashed = F.xxhash64(*key)
    address = [F.pmod(hashed, F.lit(buckets)).cast("int").alias("bucket"), hashed.alias(HASH)]
    flat = rows.select(*address, *key, *events)
    blobs = flat.mapInArrow(packed(event_schema), "bucket int, blob binary")
    ttl_ms = None if ttl is None else ttl // timedelta(milliseconds=1)
    done = blobs.groupBy("bucket").transformWithState(
        statefulProcessor=BucketProcessor(
            Caller(job, layout, ttl_ms, event_time), event_schema, time=time, event_time=event_time
        ),
        outputStructType=PACKED_OUTPUT,
        outputMode="Update",
        timeMode="ProcessingTime" if time == "processing" else "EventTime",
        initialState=None if initial is None else _stored(initial, rows.schema, address, layout, ttl_ms, time),
    )
    counted = done.observe(KEYED_STATE, F.sum("keys_added").alias("added"), F.sum("late").alias("late"))
    output = pa.schema([*layout.key.items(), *job.output.items()])
    spark_schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in output])
    return counted.mapInArrow(unpacked(output), spark_schema)


def _stored(
    initial: DataFrame,
    events: StructType,
    address: Sequence[Column],
    layout: StateLayout,
    ttl_ms: int | None,
    time: str,
) -> GroupedData:
    """Return initial state as the processor takes it: a blob for each bucket."""
    # The hash of a number depends on its type: with another one, no event would find its state.
    initial = initial.withColumns({name: F.col(name).cast(events[name].dataType) for name in layout.key})
    if time == "event" and ttl_ms is not None and EXPIRES not in initial.columns:
        what = f"with_keyed_state: initial lacks {EXPIRES}: a ttl in event time has nothing to count from"
        raise StreamwardenError("CONFIG_INVALID", what)
    if ttl_ms is None:
        ends = F.lit(NEVER)
    elif time == "event":
        ends = F.raise_error(F.lit(f"with_keyed_state: initial: {EXPIRES} is null")).cast("long")
    else:
        ends = F.unix_millis(F.current_timestamp()) + ttl_ms
    missing = {EXPIRES: ends, TIMER: F.lit(NEVER)}
    filled = initial.withColumns(
        {name: F.coalesce(name, value) if name in initial.columns else value for name, value in missing.items()}
    )
    own = [F.col(one.name).cast(from_arrow_type(one.type)) for one in layout.schema if one.name != HASH]
    rows = filled.select(*address, *own)

    def store(bucket: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        own = rows.select(layout.schema.names).cast(layout.schema)
        chunk = encoded(layout, layout.sorted_by_hash(own.to_batches()))
        return pa.table({"bucket": pa.array([bucket[0].as_py()], pa.int32()), "blob": pa.array([chunk.blob])})

    return rows.groupBy("bucket").applyInArrow(store, "bucket int, blob binary").groupBy("bucket")


def _check_time(rows: DataFrame, ttl: timedelta | None, time: str, event_time: str | None) -> None:
    wrong = None
    if time == "processing":
        if event_time is not None:
            wrong = 'event_time needs time="event"'
    elif "EventTimeWatermark" not in rows._jdf.queryExecution().analyzed().toString():
        wrong = 'time="event" needs rows with a watermark: call withWatermark before'
    elif event_time is None:
        # Without it a time to live would count from the watermark, which is behind the events, and missing at first.
        wrong = None if ttl is None else "a ttl in event time needs event_time, the column that it counts from"
    elif not isinstance(rows.schema[event_time].dataType, TimestampType):
        wrong = f"event_time {event_time} must be a timestamp, not {rows.schema[event_time].dataType.simpleString()}"
    if wrong is not None:
        raise StreamwardenError("CONFIG_INVALID", f"with_keyed_state: {wrong}")
