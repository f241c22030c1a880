"""Keyed state against a plain dictionary, by random batches, removals, expiry, timers, collisions and compactions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state import bases, chunks
from streamwarden.keyed_state.calls import Caller
from streamwarden.keyed_state.chunks import NEVER, BucketState, StoredChunk, decoded, encoded, number_of_keys
from streamwarden.keyed_state.job import KEY_ID, KeyedBatch, KeyedJob, KeyedResult
from streamwarden.keyed_state.layout import HASH, StateField, StateLayout
from streamwarden.keyed_state.processor import BucketProcessor
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.unit

TTL, WAIT = 100, 30
LAYOUT = StateLayout({"key": pa.string()}, {"total": StateField(pa.int64()), "count": StateField(pa.int64())})
EVENTS = pa.schema([(HASH, pa.int64()), ("key", pa.string()), ("value", pa.int64())])


class Sums(KeyedJob):
    """A sum a key; a value of 0 removes the key; a quiet key is reported once; two rows a key, one of them plain."""

    fields = LAYOUT.fields
    output: ClassVar = {"total": pa.int64(), "quiet": pa.bool_()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        removed = batch.events.filter(pl.col("value") == 0).select(KEY_ID)
        rows = pl.concat(
            [
                batch.state.select(KEY_ID, "total", "count"),
                batch.events.select(KEY_ID, total="value", count=pl.lit(1, pl.Int64)),
            ]
        )
        sums = rows.group_by(KEY_ID).agg(pl.col("total").sum(), pl.col("count").sum())
        sums = sums.join(removed, on=KEY_ID, how="anti")
        state = sums.with_columns(timer_at=pl.lit(batch.now + WAIT))
        return KeyedResult(state, sums.select(KEY_ID, "total", quiet=pl.lit(False)))

    def on_timer(self, batch: KeyedBatch) -> KeyedResult:
        return KeyedResult(batch.state.drop("timer_at"), batch.state.select(KEY_ID, "total", quiet=pl.lit(True)))


class Model:
    """The same, key by key."""

    def __init__(self) -> None:
        self.state: dict[str, list[Any]] = {}

    def batch(self, events: list[tuple[str, int]], now: int) -> list[tuple[str, int, bool]]:
        out = []
        values = defaultdict(list)
        for key, value in events:
            values[key].append(value)
        for key, some in values.items():
            total, expires, _ = self.state.get(key, [0, 0, 0])
            total = (total if expires > now else 0) + sum(some)
            self.state.pop(key, None)
            if 0 not in some:
                self.state[key] = [total, now + TTL, now + WAIT]
                out.append((key, total, False))
        for key, (total, expires, timer) in self.state.items():
            if expires > now and timer is not None and timer <= now:
                self.state[key] = [total, expires, None]
                out.append((key, total, True))
        return sorted(out)


class Base:
    """A bucket's value state, as Spark keeps it."""

    value: tuple[int, bytes] | None = None
    reads = 0

    def get(self) -> tuple[int, bytes] | None:
        self.reads += 1
        return self.value

    def update(self, value: tuple[int, bytes]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Handle:
    """A bucket's list state and timers, as Spark keeps them."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.timers: set[int] = set()
        self.base = Base()

    def getListState(self, *_: object) -> Handle:
        return self

    def getValueState(self, *_: object) -> Base:
        return self.base

    def get(self) -> list[Any]:
        return list(self.rows)

    def put(self, rows: list[Any]) -> None:
        self.rows = list(rows)

    def appendValue(self, row: Any) -> None:
        self.rows.append(row)

    def clear(self) -> None:
        self.rows = []

    def registerTimer(self, at: int) -> None:
        assert at not in self.timers
        self.timers.add(at)

    def deleteTimer(self, at: int) -> None:
        self.timers.remove(at)


class Times:
    def __init__(self, now: int) -> None:
        self.now = now

    def getCurrentProcessingTimeInMs(self) -> int:
        return self.now

    def getExpiryTimeInMs(self) -> int:
        return self.now


def events_of(some: list[tuple[str, int]], hashes: dict[str, int]) -> pa.RecordBatch:
    columns = [[hashes[key] for key, _ in some], [key for key, _ in some], [value for _, value in some]]
    return pa.RecordBatch.from_arrays(
        [pa.array(one, type_.type) for one, type_ in zip(columns, EVENTS, strict=True)], schema=EVENTS
    )


class Row:
    def __init__(self, blob: bytes) -> None:
        self.blob = blob


class Bucket:
    def __init__(self, job: KeyedJob, ttl: int | None = TTL, layout: StateLayout = LAYOUT, number: int = 3) -> None:
        self.handle, self.number = Handle(), number
        self.processor = BucketProcessor(Caller(job, layout, ttl), EVENTS, time="processing")
        self.processor.init(self.handle)  # type: ignore[arg-type]

    def batch(self, events: pa.RecordBatch, now: int) -> list[dict[str, Any]]:
        blobs = []
        if events.num_rows:
            half = events.num_rows // 2
            rows = [Row(part.serialize().to_pybytes()) for part in (events[:half], events[half:]) if part.num_rows]
            blobs += list(self.processor.handleInputRows((self.number,), iter(rows), Times(now)))  # type: ignore[arg-type]
        for due in sorted(at for at in self.handle.timers if at <= now):
            self.handle.timers.remove(due)
            blobs += list(self.processor.handleExpiredTimer((self.number,), Times(now), Times(due)))  # type: ignore[arg-type]
        assert len(self.handle.timers) <= 1
        stored = [StoredChunk(row[0], row[1]) for row in self.handle.rows]
        assert [one.version for one in stored].count(bases.BASE_APART) == (self.handle.base.value is not None)
        if stored:
            if self.handle.base.value is not None:
                stored[0] = StoredChunk(*self.handle.base.value)
            whole = BucketState.read(self.processor._caller.layout, stored).whole()
            assert self.handle.rows[-1][3] == number_of_keys(whole)
        caller = self.processor._caller
        schema = pa.schema([*caller.layout.key.items(), *caller.job.output.items()])
        found = [pa.ipc.read_record_batch(pa.py_buffer(one.blob), schema) for one in blobs if one.blob]
        return [row for rows in found for row in rows.to_pylist()]


BATCHES = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([0, 1, 2, 3, 5, 7, 11])), max_size=8),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    BATCHES,
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-2, 2)),
    st.integers(0, 9),
    st.sampled_from([0, 1 / 8, 1]),
    st.sampled_from([0, 500, 64 * 1024]),
    st.sampled_from([0, 600, 10**6]),
)
def test_equals_a_dictionary(
    batches: list[tuple[int, list[tuple[str, int]]]],
    shared: dict[str, int],
    number: int,
    share: float,
    apart: int,
    kept: int,
) -> None:
    # So few keys that one of them is more than the share that is left in large buckets, and a base is small.
    with (
        mock.patch.object(chunks, "_EXPIRED_SHARE", share),
        mock.patch.object(bases, "_LEAST_APART", apart),
        mock.patch.object(bases, "_kept", bases.KeptBases(kept)),
    ):
        _equals_a_dictionary(batches, shared, number)


def _equals_a_dictionary(batches: list[tuple[int, list[tuple[str, int]]]], shared: dict[str, int], number: int) -> None:
    hashes = {key: shared.get(key, ord(key) * 1000) for key in "abcdefgh"}
    bucket, model, now = Bucket(Sums(), number=number), Model(), 0
    for after, events in batches:
        now += after
        found = bucket.batch(events_of(events, hashes), now)
        assert sorted((row["key"], row["total"], row["quiet"]) for row in found) == model.batch(events, now)
    # In the end all goes, without another event, and nothing is left.
    for _ in range(4):
        now += TTL
        found = bucket.batch(events_of([], hashes), now)
        assert sorted((row["key"], row["total"], row["quiet"]) for row in found) == model.batch([], now)
    assert bucket.handle.rows == [] and bucket.handle.timers == set() and bucket.handle.base.value is None


def test_expired_rows_go_when_they_are_many() -> None:
    hashes = {f"key{number}": number for number in range(100)}
    bucket = Bucket(Sums())
    bucket.batch(events_of([(f"key{number}", 1) for number in range(5)], hashes), 0)
    bucket.batch(events_of([(f"key{number}", 1) for number in range(5, 100)], hashes), 20)
    # All have been quiet for 30, and are reported. Key 99 goes on.
    assert len(bucket.batch(events_of([], hashes), 60)) == 100
    bucket.batch(events_of([("key99", 1)], hashes), 75)
    # Five have expired, then all others.
    assert [row["key"] for row in bucket.batch(events_of([], hashes), 106)] == ["key99"]
    assert bucket.handle.rows[-1][3] == 100
    assert [row["total"] for row in bucket.batch(events_of([("key99", 1)], hashes), 107)] == [3]
    assert [row["key"] for row in bucket.batch(events_of([], hashes), 137)] == ["key99"]
    (stored,) = bucket.handle.rows
    assert stored[3] == 1 and decoded(LAYOUT, StoredChunk(stored[0], stored[1])).num_rows == 1


class Fails(Sums):
    """Fails for one key, whatever else is in the call."""

    def update(self, batch: KeyedBatch) -> KeyedResult:
        if "c" in batch.keys["key"].to_list():
            raise ZeroDivisionError("no")
        return super().update(batch)


def test_an_exception_names_the_key_that_it_is_of() -> None:
    bucket = Bucket(Fails())
    hashes = {key: ord(key) for key in "abcdefgh"}
    bucket.batch(events_of([("a", 1), ("b", 1)], hashes), 1)
    with pytest.raises(StreamwardenError, match="key 'c': ZeroDivisionError: no") as raised:
        bucket.batch(events_of([(key, 1) for key in "hgfedcba"], hashes), 2)
    assert raised.value.code == "JOB_CODE_FAILED"


class Forgetful(Sums):
    def update(self, batch: KeyedBatch) -> KeyedResult:
        return KeyedResult(super().update(batch).state.drop("count"))


def test_a_column_that_is_not_returned_is_named() -> None:
    with pytest.raises(StreamwardenError, match="the returned state lacks count"):
        Bucket(Forgetful()).batch(events_of([("a", 1)], {"a": 1}), 1)


class NoResult(Sums):
    def update(self, batch: KeyedBatch) -> Any:
        return batch.state, None


class NoOutput(Sums):
    def update(self, batch: KeyedBatch) -> KeyedResult:
        done = super().update(batch)
        assert done.output is not None
        return KeyedResult(done.state, done.output.drop("quiet"))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (NoResult(), "update must return a KeyedResult, not tuple"),
        (NoOutput(), "the returned output lacks quiet; it has key_id, total"),
    ],
)
def test_what_is_no_result_is_named(job: KeyedJob, words: str) -> None:
    with pytest.raises(StreamwardenError, match=words) as raised:
        Bucket(job).batch(events_of([("a", 1)], {"a": 1}), 1)
    assert raised.value.code == "JOB_CODE_FAILED"


class ByKey(Sums):
    """The same, key by key."""

    def update(self, batch: KeyedBatch) -> KeyedResult:
        rows = []
        for key, events, state in batch.by_key():
            total, count = state["total"].sum() + events["value"].sum(), state["count"].sum() + len(events)
            if 0 not in events["value"].to_list():
                rows.append({KEY_ID: key[KEY_ID], "total": total, "count": count, "timer_at": batch.now + WAIT})
        sums = pl.DataFrame(rows, schema={KEY_ID: pl.Int64, "total": pl.Int64, "count": pl.Int64, "timer_at": pl.Int64})
        return KeyedResult(sums, sums.select(KEY_ID, "total", quiet=pl.lit(False)))


@settings(max_examples=30, deadline=None)
@given(BATCHES)
def test_key_by_key_says_the_same(batches: list[tuple[int, list[tuple[str, int]]]]) -> None:
    hashes = {key: ord(key) % 3 for key in "abcdefgh"}
    one, other, now = Bucket(Sums()), Bucket(ByKey()), 0
    for after, events in batches:
        now += after
        found = [sorted(map(str, bucket.batch(events_of(events, hashes), now))) for bucket in (one, other)]
        assert found[0] == found[1]


class Newer(Sums):
    """The same with a field that was added later."""

    fields: ClassVar = {**LAYOUT.fields, "most": StateField(pa.int64(), since=2, default=-1)}
    output: ClassVar = {"total": pa.int64(), "most": pa.int64()}

    def update(self, batch: KeyedBatch) -> KeyedResult:
        events = batch.events.select(KEY_ID, total="value", count=pl.lit(1, pl.Int64), most="value")
        rows = pl.concat([batch.state.select(KEY_ID, "total", "count", "most"), events])
        sums = rows.group_by(KEY_ID).agg(pl.col("total", "count").sum(), pl.col("most").max())
        return KeyedResult(sums, sums.select(KEY_ID, "total", "most"))


def test_chunks_are_compressed_and_older_ones_are_read_as_they_are() -> None:
    keys = [f"card{number:06d}" for number in range(1000)]
    numbers = pa.array(range(1000), pa.int64())
    same = pa.array([NEVER] * 1000, pa.int64())
    rows = pa.RecordBatch.from_arrays([numbers, pa.array(keys), same, same, numbers, numbers], schema=LAYOUT.schema)
    old = StoredChunk(1, rows.serialize().to_pybytes())
    new = encoded(LAYOUT, rows)
    assert decoded(LAYOUT, old).equals(rows) and decoded(LAYOUT, new).equals(rows)
    assert len(new.blob) < 0.6 * len(old.blob)
    assert decoded(LAYOUT, encoded(LAYOUT, LAYOUT.empty())).num_rows == 0


def test_older_state_has_the_default_of_a_newer_field() -> None:
    hashes = {"a": 1, "b": 2}
    bucket = Bucket(Sums())
    bucket.batch(events_of([("a", 5), ("b", 7)], hashes), 1)
    newer = Bucket(Newer(), layout=StateLayout(LAYOUT.key, Newer.fields))
    newer.handle.rows = bucket.handle.rows
    assert newer.batch(events_of([("a", -5)], hashes), 2) == [{"key": "a", "total": 0, "most": -1}]
    # Chunks of both versions, read by both.
    found = newer.batch(events_of([("a", 3), ("b", 9)], hashes), 3)
    assert sorted((row["key"], row["total"], row["most"]) for row in found) == [("a", 3, 3), ("b", 16, 9)]
    bucket.handle.rows = newer.handle.rows
    with pytest.raises(ValueError, match="the state has version 2, the job only knows 1"):
        bucket.batch(events_of([("a", 1)], hashes), 4)


def test_the_example_of_the_docs_runs() -> None:
    page = (REPOSITORY / "docs" / "keyed-state.md").read_text()
    code = page.split("```python\n", 1)[1].split("```", 1)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    job = names["Visits"]()
    caller = Caller(job, StateLayout({"card_id": pa.string()}, job.fields), ttl=None)
    schema = pa.schema([(HASH, pa.int64()), ("card_id", pa.string()), ("pickup", pa.int64())])
    rows = [{HASH: 1, "card_id": "a", "pickup": 5}, {HASH: 2, "card_id": "b", "pickup": 6}] * 2
    done = caller.update(BucketState(caller.layout, [], []), pa.RecordBatch.from_pylist(rows[:3], schema), 1)
    assert done.output is not None
    assert sorted((row["card_id"], row["trips"], row["quiet"]) for row in done.output.to_pylist()) == [
        ("a", 2, False),
        ("b", 1, False),
    ]
    assert caller.fire(done.fresh, 3_600_000).output is None
    quiet = caller.fire(done.fresh, 3_600_001).output
    assert quiet is not None and {row["quiet"] for row in quiet.to_pylist()} == {True}


def test_events_may_have_no_column_but_the_key() -> None:
    class Visits(KeyedJob):
        fields: ClassVar = {"visits": StateField(pa.int64())}
        output: ClassVar = {"visits": pa.int64()}

        def update(self, batch: KeyedBatch) -> KeyedResult:
            new = batch.events.group_by(KEY_ID).agg(visits=pl.len().cast(pl.Int64))
            counts = pl.concat([batch.state.select(KEY_ID, "visits"), new]).group_by(KEY_ID).agg(pl.col("visits").sum())
            return KeyedResult(counts, counts)

    layout = StateLayout({"key": pa.string()}, Visits.fields)
    events = pa.RecordBatch.from_pydict({HASH: [1, 2, 1], "key": ["a", "b", "a"]}, pa.schema(list(EVENTS)[:2]))
    done = Caller(Visits(), layout, TTL).update(BucketState.read(layout, []), events, now=1)
    assert done.output is not None
    assert sorted(map(tuple, (row.values() for row in done.output.to_pylist()))) == [("a", 2), ("b", 1)]
