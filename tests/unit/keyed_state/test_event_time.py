"""Keyed state in event time equals plain transformWithState, both in PySpark's TwsTester."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StructField, StructType

from streamwarden.keyed_state import KEY_ID, KeyedBatch, KeyedJob, KeyedResult, StateField
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.chunks import NEVER
from streamwarden.keyed_state.layout import HASH, StateLayout
from streamwarden.keyed_state.processor import STATE_NAME, BucketProcessor

pytestmark = pytest.mark.unit

GAP_MS = 10_000
BUCKET = 3
LAYOUT = StateLayout({"key": pa.string()}, {"total": StateField(pa.int64()), "last": StateField(pa.int64())})
EVENTS = pa.schema([(HASH, pa.int64()), ("key", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])


class Plain(StatefulProcessor):
    """Sums each key; emits and forgets the sum when the watermark has passed the key's newest event by a gap."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState(
            "sum", StructType([StructField("total", LongType()), StructField("last", LongType())])
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, before = self.sum.get() if self.sum.exists() else (0, None)
        some = list(rows)
        if not some:
            # The tester calls it for late rows alone, and Spark doesn't.
            return
        last = max([int(row.at.timestamp() * 1000) for row in some] + ([before] if before is not None else []))
        self.sum.update((total + sum(row.value for row in some), last))
        if last != before:
            if before is not None:
                self.handle.deleteTimer(before + GAP_MS)
            self.handle.registerTimer(last + GAP_MS)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        total, last = self.sum.get()
        self.sum.clear()
        yield Row(key=key[0], total=total, last=last)

    def close(self) -> None: ...


class Keyed(KeyedJob):
    """The same."""

    fields: ClassVar = LAYOUT.fields
    output: ClassVar = {"total": pa.int64(), "last": pa.int64()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        events = batch.events.select(KEY_ID, total="value", last=pl.col("at").dt.epoch("ms"))
        rows = pl.concat([batch.state.select(KEY_ID, "total", "last"), events])
        sums = rows.group_by(KEY_ID).agg(pl.col("total").sum(), pl.col("last").max())
        return KeyedResult(sums.with_columns(timer_at=pl.col("last") + GAP_MS))

    def on_timer(self, batch: KeyedBatch) -> KeyedResult:
        return KeyedResult(batch.state.clear(), batch.state.select(KEY_ID, "total", "last"))


EVENT = st.tuples(st.sampled_from("abcd"), st.integers(0, 120), st.integers(-5, 5))


@settings(max_examples=100, deadline=None)
@given(batches=st.lists(st.tuples(st.integers(0, 20), st.lists(EVENT, max_size=8)), min_size=1, max_size=10))
def test_equals_plain_transform_with_state(batches: list[tuple[int, list[tuple[str, int, int]]]]) -> None:
    plain = TwsTester(Plain(), timeMode="EventTime", eventTimeExtractor=lambda row: int(row.at.timestamp() * 1000))
    processor = BucketProcessor(Caller(Keyed(), LAYOUT, ttl=None), EVENTS, time="event", event_time="at")
    # Packed rows have no event time: the processor itself drops what is late.
    keyed = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda _: NEVER)
    output = pa.schema([*LAYOUT.key.items(), *Keyed.output.items()])
    watermark = 0
    for forward, events in [*batches, (1000, [])]:
        named = [
            {"key": key, "at": datetime.fromtimestamp(second, UTC), "value": value} for key, second, value in events
        ]
        expected: list[Row] = []
        for key in {row["key"] for row in named}:
            expected += plain.test(key, [Row(at=row["at"], value=row["value"]) for row in named if row["key"] == key])
        done: list[Any] = []
        if events:
            packed = pa.RecordBatch.from_pylist([{HASH: ord(row["key"]) % 3, **row} for row in named], EVENTS)
            done += keyed.test(BUCKET, [Row(blob=packed.serialize().to_pybytes())])
            assert done[0].late == sum(second * 1000 <= watermark for _, second, _ in events)
        if forward:
            watermark += forward * 1000
            expected += plain.setWatermark(watermark)
            done += keyed.setWatermark(watermark)
        blobs = [pa.ipc.read_record_batch(pa.py_buffer(one.blob), output) for one in done if one.blob]
        found = [Row(**row) for rows in blobs for row in rows.to_pylist()]
        assert sorted(found) == sorted(expected)


WINDOW_MS = 30_000
TIMES = StateLayout({"key": pa.string()}, {"at": StateField(pa.int64())})


class Recent(KeyedJob):
    """For each event, how many of its key's lie in the window that ends with it; state lives as long as a window."""

    fields: ClassVar = TIMES.fields
    output: ClassVar = {"at": pa.int64(), "events": pa.int64()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        new = batch.events.select(KEY_ID, at=pl.col("at").dt.epoch("ms"))
        rows = pl.concat([batch.state.select(KEY_ID, "at"), new])
        pairs = new.unique().join(rows, on=KEY_ID, suffix="_of")
        held = pairs.filter((pl.col("at_of") <= pl.col("at")) & (pl.col("at_of") >= pl.col("at") - WINDOW_MS))
        return KeyedResult(rows, held.group_by(KEY_ID, "at").agg(events=pl.len().cast(pl.Int64)))


@settings(max_examples=100, deadline=None)
@example(batches=[(1, [("a", 20, 0)]), (39, [("a", 5, 0)]), (0, [("a", 49, 0)])])
@given(batches=st.lists(st.tuples(st.integers(0, 90), st.lists(EVENT, max_size=6)), min_size=1, max_size=8))
def test_state_lives_as_long_as_an_event_may_need_it(
    batches: list[tuple[int, list[tuple[str, int, int]]]],
) -> None:
    """The first batch has no watermark, a backlog's events are far ahead of theirs, and late ones come behind."""
    processor = BucketProcessor(Caller(Recent(), TIMES, WINDOW_MS, "at"), EVENTS, time="event", event_time="at")
    tester = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda _: NEVER)
    output = pa.schema([*TIMES.key.items(), *Recent.output.items()])
    seen: list[tuple[str, int]] = []
    watermark = 0
    for forward, events in batches:
        named = [
            {"key": key, "at": datetime.fromtimestamp(1000 + second, UTC), "value": 0} for key, second, _ in events
        ]
        in_time = [(row["key"], int(row["at"].timestamp() * 1000)) for row in named]
        in_time = [one for one in in_time if one[1] > watermark]
        seen += in_time
        expected = {
            (key, at): sum(other == key and at - WINDOW_MS <= then <= at for other, then in seen) for key, at in in_time
        }
        found: dict[tuple[str, int], int] = {}
        if events:
            packed = pa.RecordBatch.from_pylist([{HASH: ord(row["key"]) % 3, **row} for row in named], EVENTS)
            for one in tester.test(BUCKET, [Row(blob=packed.serialize().to_pybytes())]):
                if one.blob:
                    rows = pa.ipc.read_record_batch(pa.py_buffer(one.blob), output).to_pylist()
                    found |= {(row["key"], row["at"]): row["events"] for row in rows}
        assert found == expected
        if forward:
            watermark = max(watermark, 1_000_000) + forward * 1000
            tester.setWatermark(watermark)
    # In the end all goes.
    tester.setWatermark(10_000_000)
    assert tester.peekListState(STATE_NAME, BUCKET) == []
