"""Keyed state on Spark's transformWithState: one grouping key is a bucket of many keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from streamwarden.keyed_state.bases import BASE_APART, BaseStore
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.chunks import (
    NEVER,
    BucketState,
    StoredChunk,
    alive,
    decoded,
    encoded,
    next_timer,
    number_of_keys,
)

__all__ = ["CHUNK_ROW", "PACKED_OUTPUT", "STATE_NAME", "BucketProcessor", "packed", "unpacked"]

CHUNK_ROW = "version int, blob binary, timer long, keys long"
"""Columns of a row of the list state. The newest row's ``timer`` counts, and its number of the bucket's keys."""

STATE_NAME = "keyed_state_chunks"
"""The name of the list state, by which readers of a checkpoint recognise it."""

PACKED_OUTPUT = "keys_added long, late long, blob binary"
"""What a bucket returns for a batch: the keys it has more than before, late events, and its output as an Arrow blob."""

_Output = Row("keys_added", "late", "blob")


class BucketProcessor(StatefulProcessor):
    """Keeps the keys of a bucket in a list of chunks, and calls the job once a batch for those that have events.

    A batch reads the chunks in one round trip to the JVM and appends one in another; a third sets the timer. A large
    base is kept by the worker (:mod:`~.bases`). The bucket has one timer, for the earliest of its rows: when it fires,
    the job gets the rows that are due, and what it returns is appended. Expired rows are never shown; their bytes go
    when chunks are merged, or when they are many.

    Parameters
    ----------
    caller
        The job, with the columns of its state and their time to live.
    events
        The columns of the packed input.
    time
        Which time `now`, timers and expiry mean.
    event_time
        A column of timestamps. In event time, events at or before the watermark are dropped as late; None keeps them.
    """

    def __init__(
        self,
        caller: Caller,
        events: pa.Schema,
        *,
        time: Literal["processing", "event"],
        event_time: str | None = None,
    ) -> None:
        self._caller = caller
        self._events = events
        self._time = time
        self._event_time = event_time

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._chunks: ListState = handle.getListState(STATE_NAME, CHUNK_ROW)
        self._bases = BaseStore(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Process the events of a bucket's keys in one batch."""
        now = self._now(timerValues)
        batches = [pa.ipc.read_record_batch(pa.py_buffer(row.blob), self._events) for row in rows]
        events = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        arrived = events.num_rows
        if self._event_time is not None:
            events = _in_time(events, self._event_time, now)
        late = arrived - events.num_rows
        if not events.num_rows:
            yield _Output(0, late, None)
            return
        stored = self._read()
        done = self._caller.update(stored.state, events, now)
        keys = stored.keys + done.keys_added
        if done.fresh.num_rows:
            chunk, merged = stored.state.appended(done.fresh, bucket=key[0], now=now)
            if merged is not None:
                keys = number_of_keys(merged)
            timer = stored.timer
            wanted = max(next_timer(alive(done.fresh, now)), now + 1)
            # A timer that is due already fires after this, and looks at all rows.
            if wanted < timer:
                timer = self._move_timer(timer, wanted)
            self._store(stored, chunk, timer, keys, whole=merged is not None)
        yield _Output(keys - stored.keys, late, _blob(done.output))

    def handleInitialState(self, key: Any, initialState: Row, timerValues: TimerValues) -> None:  # noqa: ARG002, N802, N803
        """Store what a migration has made of an earlier version's state; a bucket has one row of it."""
        layout, now = self._caller.layout, self._now(timerValues)
        empty = _Stored(BucketState.read(layout, []))
        rows = alive(decoded(layout, StoredChunk(layout.version, initialState.blob)), now)
        if rows.num_rows:
            # Not before the next batch: what this one emits is not written.
            timer = self._move_timer(NEVER, max(next_timer(rows), now + 1))
            self._store(empty, encoded(layout, rows), timer, number_of_keys(rows), whole=True)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Call the job for the rows that are due, and drop what has expired."""
        now = self._now(timerValues)
        stored = self._read()
        if stored.timer != expiredTimerInfo.getExpiryTimeInMs():
            return
        look = stored.state.outlook(now)
        done = self._caller.fire(alive(stored.state.rows_of(look.due), now), now)
        keys = stored.keys + done.keys_added
        wanted = look.next_timer(alive(done.fresh, now))
        if wanted is None:
            keys = 0
            self._chunks.clear()
            self._bases.clear(stored.base)
        else:
            timer = self._move_timer(NEVER, max(wanted, now + 1))
            chunk, merged = stored.state.appended(done.fresh, bucket=key[0], now=now, merge=look.has_much_expired)
            if merged is not None:
                keys = number_of_keys(merged)
            self._store(stored, chunk, timer, keys, whole=merged is not None)
        yield _Output(keys - stored.keys, 0, _blob(done.output))

    def close(self) -> None:
        """Do nothing: there are no open resources."""

    def _now(self, times: TimerValues) -> int:
        if self._time == "event":
            return int(times.getCurrentWatermarkInMs())
        return int(times.getCurrentProcessingTimeInMs())

    def _read(self) -> _Stored:
        rows = list(self._chunks.get())
        chunks, base = [StoredChunk(row[0], row[1]) for row in rows], None
        if chunks and chunks[0].version == BASE_APART:
            base = chunks[0].blob
            chunks[0] = self._bases.read(base)
        state = BucketState.read(self._caller.layout, chunks)
        return _Stored(state, rows[-1][2], rows[-1][3], base) if rows else _Stored(state)

    def _move_timer(self, was: int, wanted: int) -> int:
        if was != NEVER:
            self._handle.deleteTimer(was)
        if wanted != NEVER:
            self._handle.registerTimer(wanted)
        return wanted

    def _store(self, was: _Stored, chunk: StoredChunk, timer: int, keys: int, *, whole: bool) -> None:
        if whole:
            self._chunks.put([(*self._bases.write(chunk, was.base), timer, keys)])
        else:
            self._chunks.appendValue((*chunk, timer, keys))


class _Stored(NamedTuple):
    """What is stored of a bucket: its state, timer and number of keys, and the id of its base if that is apart."""

    state: BucketState
    timer: int = NEVER
    keys: int = 0
    base: bytes | None = None


def _in_time(events: pa.RecordBatch, column: str, watermark: int) -> pa.RecordBatch:
    # Rounded down, as Spark compares.
    at = events.column(column).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    keep = pc.fill_null(pc.greater(at, watermark), True)
    return events if pc.all(keep).as_py() else events.filter(keep)


def _blob(output: pa.RecordBatch | None) -> bytes | None:
    return None if output is None else output.serialize().to_pybytes()


def packed(schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``: rows with a column ``bucket`` to one Arrow blob for each bucket.

    Before the shuffle: Spark then moves a few hundred rows instead of all, and Python gets no row of its own.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            buckets = batch.column("bucket").to_numpy(zero_copy_only=False)
            order = np.argsort(buckets, kind="stable")
            buckets = buckets[order]
            rows = pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
            rows = rows.take(pa.array(order))
            first = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]]))
            ends = np.append(first[1:], len(buckets))
            blobs = [rows.slice(a, b - a).serialize().to_pybytes() for a, b in zip(first, ends, strict=True)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(buckets[first]), pa.array(blobs, pa.binary())], names=["bucket", "blob"]
            )

    return pack


def unpacked(schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``: the processor's blobs to rows."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column("blob").drop_null():
                yield pa.ipc.read_record_batch(blob.as_buffer(), schema)

    return unpack
