"""Checkpoints of many kinds of queries: the files that `closure` names are enough to go on and to count the state."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from streamwarden.driver.repartition import repartition
from streamwarden.driver.state_digest import state_digests
from streamwarden.driver.state_rows import count_state_rows
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.checkpoint_files import Closure, StateFileMissing, closure, relocated, repartitioned
from streamwarden.operations.rescale_plan import refused_operators
from streamwarden.storage import LocalFiles, LocalStorage
from tests.conftest import DAY

pytestmark = pytest.mark.spark

# Spark's Python workers need not find this module, wherever they are started.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STORE = "spark.sql.streaming.stateStore."
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROWS = 30
"""Rows of a landed file."""

Source = Callable[[str], DataFrame]


@dataclass(frozen=True)
class Kind:
    """A kind of query: what it does with one or two streams, and how it is run."""

    query: Callable[[Source], DataFrame]
    mode: str = "append"
    settings: dict[str, str] = field(default_factory=dict)
    operators: int = 1
    streams: int = 1
    timed: bool = False
    """Its batches never end (timers of processing time)."""


def _windows(source: Source) -> DataFrame:
    return source("a").withWatermark("t", "5 minutes").groupBy(F.window("t", "10 minutes"), "k").agg(F.sum("v"))


def _sessions(source: Source) -> DataFrame:
    rows = source("a").withWatermark("t", "5 minutes")
    return rows.groupBy(F.session_window("t", "3 minutes"), "k").agg(F.sum("v"))


def _plain_sums(source: Source) -> DataFrame:
    return source("a").groupBy("k").agg(F.sum("v"), F.max("t"))


def _one_sum(source: Source) -> DataFrame:
    return source("a").groupBy().agg(F.sum("v"))


def _distinct(source: Source) -> DataFrame:
    return source("a").withWatermark("t", "5 minutes").dropDuplicates(["k", "t"])


def _distinct_for_ever(source: Source) -> DataFrame:
    return source("a").dropDuplicates(["k"])


def _distinct_for_a_while(source: Source) -> DataFrame:
    return source("a").withWatermark("t", "5 minutes").dropDuplicatesWithinWatermark(["k"])


def _join(how: str, *, within: str = "BETWEEN a.t - INTERVAL 12 MINUTES AND a.t") -> Callable[[Source], DataFrame]:
    def query(source: Source) -> DataFrame:
        left = source("a").withWatermark("t", "5 minutes").alias("a")
        right = source("b").withWatermark("t", "5 minutes").alias("b")
        # Odd keys of the left side have no partner.
        return left.join(right, F.expr(f"a.k = concat(b.k, '0') AND b.t {within}"), how).select("a.k", "a.id", "b.v")

    return query


def _limit(source: Source) -> DataFrame:
    return source("a").limit(50)


def _aggregates_of_aggregates(source: Source) -> DataFrame:
    first = (
        source("a").withWatermark("t", "1 minutes").groupBy(F.window("t", "1 minutes"), "k").agg(F.sum("v").alias("v"))
    )
    return first.groupBy(F.window(F.window_time("window"), "5 minutes")).agg(F.sum("v"))


def _aggregates_of_a_join(source: Source) -> DataFrame:
    left = source("a").withWatermark("t", "5 minutes").alias("a")
    right = source("b").withWatermark("t", "5 minutes").alias("b")
    both = left.join(right, F.expr("a.k = concat(b.k, '0') AND b.t = a.t"))
    return both.groupBy(F.window("a.t", "10 minutes")).count()


def _stateless(source: Source) -> DataFrame:
    return source("a").where("v > 3").select("k", "v")


def _in_pandas(source: Source) -> DataFrame:
    def count(key: tuple[str], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield pd.DataFrame({"k": [key[0]], "n": [-state.get[0]]})
            state.remove()
            return
        seen = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((seen,))
        # Some keys leave their state by a timer, and one at once.
        if key[0] == "k1":
            state.remove()
        else:
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 600_000)
        yield pd.DataFrame({"k": [key[0]], "n": [seen]})

    rows = source("a").withWatermark("t", "1 minutes").groupBy("k")
    return rows.applyInPandasWithState(
        count, "k string, n long", "n long", "append", GroupStateTimeout.EventTimeTimeout
    )


OUT = StructType([StructField("k", StringType()), StructField("what", StringType()), StructField("n", LongType())])
NUMBER = StructType([StructField("n", IntegerType())])
TEXT = StructType([StructField("x", StringType())])


class Everything(StatefulProcessor):
    """Value, list and map state with or without a time to live, and timers."""

    def __init__(self, ttl: int | None) -> None:
        self._ttl = ttl

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", NUMBER, self._ttl)
        self._plain = handle.getValueState("plain", NUMBER)
        self._list = handle.getListState("list", NUMBER, self._ttl)
        self._names = handle.getListState("names", TEXT)
        self._map = handle.getMapState("map", NUMBER, TEXT, self._ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        found = sorted((row.v, row.id) for row in rows)
        before = self._count.get()[0] if self._count.exists() else 0
        self._count.update((before + len(found),))
        self._plain.update((len(found),))
        for value, number in found:
            self._map.updateValue((value,), (str(number),))
            self._list.appendValue((number,))
            if value % 2:
                self._names.put([(f"{number}",), ("x",)])
        if key[0] in ("k2", "k3"):
            # What is removed, and removed again, and written again, must not be counted wrong.
            self._list.clear()
            self._map.removeKey((found[0][0],))
            self._map.removeKey((99,))
            self._count.clear()
            self._count.clear()
        if key[0] == "k3":
            self._plain.clear()
            self._list.appendList([(1,), (2,)])
        now = timerValues.getCurrentProcessingTimeInMs() if self._ttl else timerValues.getCurrentWatermarkInMs()
        for number in range(2):
            self._handle.registerTimer(now + (1 + number) * (86_400_000 if self._ttl else 400_000))
        yield Row(k=key[0], what="row", n=before + len(found))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        number = sum(1 for _ in self._list.get())
        if key[0] == "k5":
            self._names.clear()
            self._map.clear()
        yield Row(k=key[0], what="timer", n=number)


def _everything(*, ttl: int | None) -> Callable[[Source], DataFrame]:
    def query(source: Source) -> DataFrame:
        rows = source("a") if ttl else source("a").withWatermark("t", "1 minutes")
        processor = Everything(ttl)
        mode = "ProcessingTime" if ttl else "EventTime"
        return rows.groupBy("k").transformWithState(
            processor, OUT, outputMode="append" if not ttl else "update", timeMode=mode
        )

    return query


NO_CHANGELOG = {f"{STORE}rocksdb.changelogCheckpointing.enabled": "false"}
IN_MEMORY = {f"{STORE}providerClass": MEMORY}
SNAPSHOTS = {f"{STORE}minDeltasForSnapshot": "2"}
COLUMN_FAMILIES = {"spark.sql.streaming.join.stateFormatVersion": "3"}

KINDS: dict[str, Kind] = {
    "windows": Kind(_windows, "update"),
    "windows, snapshots": Kind(_windows, "append", SNAPSHOTS),
    "windows, no changelog": Kind(_windows, "append", NO_CHANGELOG),
    "windows, memory": Kind(_windows, "append", {**IN_MEMORY, **SNAPSHOTS}),
    "sessions": Kind(_sessions),
    "sessions, memory": Kind(_sessions, settings=IN_MEMORY),
    "sums without a watermark": Kind(_plain_sums, "complete"),
    "a sum of all": Kind(_one_sum, "update"),
    "distinct": Kind(_distinct),
    "distinct for ever": Kind(_distinct_for_ever),
    "distinct for a while": Kind(_distinct_for_a_while),
    "inner join": Kind(_join("inner"), streams=2),
    "left join": Kind(_join("left"), streams=2),
    "full join, no changelog": Kind(_join("full"), settings=NO_CHANGELOG, streams=2),
    "left join, memory": Kind(_join("left"), settings=IN_MEMORY, streams=2),
    "left join, column families": Kind(_join("left"), settings=COLUMN_FAMILIES, streams=2),
    "limit": Kind(_limit),
    "aggregates of aggregates": Kind(_aggregates_of_aggregates, operators=2),
    "aggregates of a join": Kind(_aggregates_of_a_join, operators=2, streams=2),
    "stateless": Kind(_stateless, operators=0),
    "applyInPandasWithState": Kind(_in_pandas, settings=SNAPSHOTS),
    "transformWithState, event time, no changelog": Kind(_everything(ttl=None), settings=NO_CHANGELOG),
    "transformWithState, ttl": Kind(_everything(ttl=86_400_000), "update", timed=True),
}

ALIKE = (
    *("windows, snapshots", "sessions, memory", "a sum of all", "distinct for ever"),
    *("inner join", "left join, memory", "aggregates of aggregates", "windows, no changelog", "windows, memory"),
    *("sums without a watermark", "distinct for a while", "full join, no changelog", "applyInPandasWithState"),
    *("aggregates of a join", "transformWithState, event time, no changelog"),
)
"""Kinds that others are much like."""


class Place:
    """A folder with landed files and checkpoints."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.files = LocalFiles(root)
        self._landed = 0

    def land(self, *streams: str) -> None:
        """Land one file in each stream, ten minutes of events after those before."""
        for stream in streams:
            folder = self.root / "landing" / stream
            folder.mkdir(parents=True, exist_ok=True)
            path, hidden = folder / f"{self._landed}.json", folder / f".{self._landed}.json"
            lines = []
            for row in range(ROWS):
                at = DAY + timedelta(minutes=10 * self._landed, seconds=20 * row - row % 3 * 60)
                key = f"k{row * 7 % 10}" if stream == "a" else "k"
                lines.append(json.dumps({"id": self._landed * ROWS + row, "k": key, "t": at.isoformat(), "v": row % 6}))
            hidden.write_text("\n".join(lines))
            # The order in which they are read.
            os.utime(hidden, (1_700_000_000 + self._landed,) * 2)
            hidden.rename(path)
        self._landed += 1

    def source(self, stream: str) -> DataFrame:
        reader = self.spark.readStream.schema("id long, k string, t timestamp, v int").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.root / "landing" / stream))

    def start(self, kind: Kind, checkpoint: str, run: Run) -> StreamingQuery:
        before = {key: self.spark.conf.get(key, None) for key in kind.settings}
        for key, value in kind.settings.items():
            self.spark.conf.set(key, value)
        try:
            writer = kind.query(self.source).writeStream.foreachBatch(run.take).outputMode(kind.mode)
            writer = writer.option("checkpointLocation", str(self.root / checkpoint))
            trigger: dict[str, Any] = {"processingTime": "0 seconds"} if kind.timed else {"availableNow": True}
            return writer.trigger(**trigger).start()
        finally:
            for key, was in before.items():
                if was is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, was)

    def run(self, kind: Kind, checkpoint: str, files: int) -> Run:
        """Run a query until it has read so many files more of each stream."""
        run = Run()
        query = self.start(kind, checkpoint, run)
        if kind.timed:
            _wait(query, lambda: sum(one.numInputRows for one in query.recentProgress) >= files * ROWS)
            query.stop()
        else:
            assert query.awaitTermination(300)
        run.note(query, self.reader(checkpoint))
        return run

    def reader(self, checkpoint: str) -> CheckpointReader:
        return CheckpointReader(LocalStorage(self.root), checkpoint)

    def copy(self, checkpoint: str, batch: int, target: str) -> Closure:
        """Make a checkpoint of exactly those files that a batch needs."""
        offsets = self.reader(checkpoint).offsets(batch)
        assert offsets is not None
        found = closure(self.files, checkpoint, offsets)
        for path in found.files:
            if path in found.metadata:
                content = self.files.read(f"{checkpoint}/{path}")
                moved = relocated(content, int(path.split("/")[1]), f"file:{self.root / target}")
                self.files.write(f"{target}/{path}", moved)
            else:
                self.files.copy(f"{checkpoint}/{path}", f"{target}/{path}")
        return found


class Run:
    """What a run of a query gave: rows by batch, and how many rows of state Spark said that there were."""

    def __init__(self) -> None:
        self.output: dict[int, list[str]] = {}
        self.rows: dict[int, dict[int, int]] = {}

    def take(self, batch: DataFrame, number: int) -> None:
        self.output[number] = sorted(str(row) for row in batch.collect())

    def note(self, query: StreamingQuery, reader: CheckpointReader) -> None:
        last = reader.last_commit()
        for progress in query.recentProgress:
            # Reports of triggers that found nothing bear the next batch's number.
            if last is not None and progress.batchId <= last:
                rows = {number: one.numRowsTotal for number, one in enumerate(progress.stateOperators)}
                self.rows.setdefault(progress.batchId, rows)

    def since(self, batch: int) -> list[list[str]]:
        """Return what came after a batch; batches without rows are left out, for there may be any number of them."""
        return [rows for number, rows in sorted(self.output.items()) if number > batch and rows]


def _wait(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        if (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < end, query.lastProgress
        time.sleep(0.05)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    # A blank in it, as people's folders have: Spark writes some paths with it and some with %20.
    folder = tmp_path / "a place #2 100%"
    temporary = folder / "scratch"
    temporary.mkdir(parents=True)
    # As in a driver, whose temporary files lie below its root.
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return Place(spark, folder)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=name, marks=[pytest.mark.long] * (name in ALIKE)) for name, kind in KINDS.items()],
)
def test_a_query_goes_on_from_the_files_of_one_batch(place: Place, kind: Kind) -> None:
    streams = ("a", "b")[: kind.streams]
    for _ in range(3):
        place.land(*streams)
    first = place.run(kind, "original", 3)
    newest = place.reader("original").last_commit()
    assert newest is not None and newest >= 2
    copies = {newest: "newest", 1: "older"}
    for batch, target in copies.items():
        found = place.copy("original", batch, target)
        assert [one.id for one in found.operators] == list(range(kind.operators))
    again = place.run(kind, "older", 1)
    assert again.since(1) == first.since(1)
    place.land(*streams)
    uninterrupted = place.run(kind, "original", 1)
    # Nothing of the copies is read from where they were made.
    (place.root / "original").rename(place.root / "gone")
    went_on = place.run(kind, "newest", 1)
    assert went_on.since(newest) == uninterrupted.since(newest)
    said = [("newest", newest, first), ("older", 1, first), ("newest", max(went_on.rows), went_on)]
    for target, batch, run in said:
        counted = count_state_rows(place.spark, str(place.root / target), batch)
        assert counted == run.rows[batch], f"batch {batch} of {target}"
    assert kind.operators == 0 or any(first.rows[1].values()), "there was state to lose"


IN_OTHER_PARTITIONS = (
    *("windows", "sessions", "sums without a watermark", "distinct", "distinct for a while", "inner join"),
    *("left join", "full join, no changelog", "aggregates of aggregates", "aggregates of a join"),
    *("applyInPandasWithState", "transformWithState, event time, no changelog", "transformWithState, ttl"),
)


@pytest.mark.parametrize(
    "kind", [pytest.param(KINDS[name], id=name, marks=[pytest.mark.long]) for name in IN_OTHER_PARTITIONS]
)
def test_a_query_goes_on_in_other_numbers_of_partitions(place: Place, kind: Kind) -> None:
    """As a rescale does it: a copy, its state repartitioned, metadata corrected, compared; and that once more."""
    streams = ("a", "b")[: kind.streams]
    for _ in range(3):
        place.land(*streams)
    place.run(kind, "original", 3)
    batch = newest = place.reader("original").last_commit()
    assert batch is not None and newest is not None
    copied = place.copy("original", batch, "copy")
    assert refused_operators(copied.operators) == []
    checkpoint = str(place.root / "copy")
    before = state_digests(place.spark, checkpoint, batch, 2)
    variables = {name: int(one.split(":")[0], 16) for name, one in before.items() if name.startswith("0/")}
    if "0/list" in variables:
        # A rescale compares with what the query says, which counts a list as one.
        kept = sum(variables[f"0/{name}"] for name in ("count", "plain", "list", "names", "map"))
        assert kept == count_state_rows(place.spark, checkpoint, batch)[0]
    for partitions in (7, 3):
        repartition(place.spark, checkpoint, partitions)
        batch += 1
        for operator in copied.operators:
            key = f"copy/state/{operator.id}/_metadata/metadata"
            with suppress(FileNotFoundError):
                place.files.write(key, repartitioned(place.files.read(key), partitions))
        assert place.reader("copy").last_commit() == batch
        described = [path.read_bytes() for path in place.root.glob("copy/state/*/_metadata/**/*") if path.is_file()]
        # Not by the name that a folder with a blank has while Spark works on it.
        assert not any(b"streamwarden-" in content for content in described)
        assert state_digests(place.spark, checkpoint, batch, partitions) == before
    for _ in range(2):
        place.land(*streams)
    uninterrupted = place.run(kind, "original", 2)
    went_on = place.run(kind, "copy", 2)
    assert went_on.since(batch) == uninterrupted.since(newest) != []
    written = place.reader("copy")
    last = written.last_commit()
    assert last is not None and written.offsets(last).conf["spark.sql.shuffle.partitions"] == "3"


def test_a_digest_tells_batches_apart_and_refuses_a_wrong_number_of_partitions(place: Place) -> None:
    for _ in range(3):
        place.land("a")
    place.run(KINDS["sums without a watermark"], "original", 3)
    checkpoint = str(place.root / "original")
    told = [state_digests(place.spark, checkpoint, batch, 2) for batch in (1, 2, 2)]
    # As many keys in either batch: only the sums differ.
    assert told[1] == told[2] != told[0]
    assert [{name: digest.split(":")[0] for name, digest in one.items()} for one in told[:2]] == [
        {"0/default": "a"}
    ] * 2
    # A metadata file that says less than there is would hide the rest of the state from the reader.
    with pytest.raises(StreamwardenError, match=r"RESCALE_FAILED.*says 2 partitions, and there are 3"):
        state_digests(place.spark, checkpoint, 2, 3)


@pytest.mark.parametrize(
    ("name", "why"),
    [("left join, column families", "join with state of format 3"), ("limit", "globalLimit")],
)
def test_operators_that_stay_in_their_partitions(place: Place, name: str, why: str) -> None:
    kind = KINDS[name]
    streams = ("a", "b")[: kind.streams]
    place.land(*streams)
    place.run(kind, "original", 1)
    batch = place.reader("original").last_commit()
    assert batch is not None
    (refused,) = refused_operators(place.copy("original", batch, "copy").operators)
    assert why in refused


@pytest.mark.long
@pytest.mark.ci
def test_files_are_found_while_batches_go_on_and_old_ones_are_removed(place: Place) -> None:
    for _ in range(24):
        place.land("a")
    kind = Kind(_windows, settings={**SNAPSHOTS, "spark.sql.streaming.minBatchesToRetain": "2"})
    done = Run()
    query = place.start(kind, "original", done)
    taken: dict[int, str] = {}
    outrun = 0
    while query.isActive:
        batch = place.reader("original").last_commit()
        if batch is None or batch in taken:
            time.sleep(0.01)
            continue
        target = f"copy {len(taken) + outrun}"
        try:
            place.copy("original", batch, target)
        except (StateFileMissing, FileNotFoundError):
            outrun += 1
        else:
            taken[batch] = target
    assert query.exception() is None
    done.note(query, place.reader("original"))
    # What the maintenance left: not the whole history, or the copies prove nothing.
    assert not (place.root / "original/state/0/0/1.changelog").exists()
    assert len(taken) >= 3, f"{outrun} were outrun"
    (place.root / "original").rename(place.root / "gone")
    chosen = sorted(taken)
    for batch in {chosen[0], chosen[len(chosen) // 2], chosen[-1]}:
        assert count_state_rows(place.spark, str(place.root / taken[batch]), batch) == done.rows[batch], (
            f"batch {batch}"
        )


@pytest.mark.long
@pytest.mark.ci
def test_state_is_counted_exactly_while_it_expires(place: Place) -> None:
    kind = Kind(_everything(ttl=2500), "update", SNAPSHOTS, timed=True)
    done = Run()
    place.land("a")
    query = place.start(kind, "original", done)
    for landed in range(1, 4):
        _wait(query, lambda: sum(one.numInputRows for one in query.recentProgress) == ROWS * landed)  # noqa: B023
        # So that a list has values of several ages.
        time.sleep(1)
        place.land("a")
    most = max(_rows(query))
    # The state without a time to live stays.
    _wait(query, lambda: _rows(query)[-1] < most and len(set(_rows(query)[-3:])) == 1)
    query.stop()
    done.note(query, place.reader("original"))
    sizes: dict[int, int] = {}
    for batch, rows in done.rows.items():
        sizes.setdefault(rows[0], batch)
    # On a slow machine all of it expires between two batches.
    assert len(sizes) >= 2
    for batch in sorted(sizes.values()):
        counted = count_state_rows(place.spark, str(place.root / "original"), batch)
        assert counted == done.rows[batch], f"batch {batch}"


def _rows(query: StreamingQuery) -> list[int]:
    return [one.stateOperators[0].numRowsTotal for one in query.recentProgress if one.stateOperators]
