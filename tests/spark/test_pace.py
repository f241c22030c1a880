"""A backlog is worked off without a pause; where little comes, batches begin at the interval."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from streamwarden.driver.backlog import backlog_of
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.source import QuerySource, open_source
from streamwarden.driver.progress import ProgressListener
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.progress import BatchProgress
from streamwarden.model.source_spec import DeltaSource
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY
from tests.spark.job_runs import write_table

pytestmark = pytest.mark.spark

CHECKPOINT = "checkpoints/paced/g000001"


@dataclass
class Written:
    """Counts the rows of each batch."""

    rows: list[int] = field(default_factory=list)
    hurry: threading.Event = field(default_factory=threading.Event)
    in_flight: int | None = None

    def __call__(self, batch: DataFrame, _: int) -> None:
        self.rows.append(batch.count())


@dataclass
class Paced:
    """A query whose reports wake it, as a driver's do."""

    spark: SparkSession
    workspace: Workspace
    spec: JobSpec
    written: Written = field(default_factory=Written)
    reported: list[BatchProgress] = field(default_factory=list)

    def __post_init__(self) -> None:
        storage = self.workspace.storage
        checkpoint, source = CheckpointReader(storage, CHECKPOINT), self.spec.source
        assert isinstance(source, DeltaSource)
        self.listener = ProgressListener(
            JobDocuments(storage, self.spec.name),
            "i",
            1,
            checkpoint,
            lambda _: None,
            self.committed,
            lambda: None,
            lambda: 1,
            {"source": backlog_of(self.workspace, source)},
            sources=lambda: [QuerySource("source")],
            files=False,
        )
        self.spark.streams.addListener(self.listener)
        rows = open_source(self.spark, self.workspace, self.spec, "source")
        self.query = RunningQuery(self.spec, rows, self.written, self.workspace.uri(CHECKPOINT), checkpoint)

    def committed(self, done: BatchProgress) -> None:
        self.reported.append(done)
        if done.source is not None and done.source.cut:
            self.query.wake()

    def commit(self, *rows: int) -> None:
        write_table(Path(self.workspace.table("numbers")), [pa.table({"n": list(range(count))}) for count in rows])

    def close(self) -> None:
        self.query.stop()
        self.spark.streams.removeListener(self.listener)


@pytest.fixture
def paced(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[timedelta, int], Paced]]:
    workspace = open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")
    write_table(Path(workspace.table("numbers")), [pa.table({"n": [0] * rows}) for rows in (1, 2, 3, 4)])
    open_ones = []

    def start(interval: timedelta, limit: int) -> Paced:
        spec = JobSpec.model_validate(
            {
                "name": "paced",
                "module": "spark_jobs.zone_windows",
                "source": {"kind": "delta", "table": "numbers", "max_files_per_batch": limit},
                "sinks": [{"table": "none", "mode": "append"}],
                "trigger": {"interval": f"{interval.total_seconds():.0f}s"},
            }
        )
        open_ones.append(Paced(spark, workspace, spec))
        return open_ones[-1]

    yield start
    for one in open_ones:
        one.close()


def test_batches_that_their_limit_cuts_follow_each_other_at_once_and_then_the_interval_counts_again(
    paced: Callable[[timedelta, int], Paced],
) -> None:
    hour = paced(timedelta(hours=1), 1)
    _wait(lambda: len(hour.reported) == 4)
    # The order of the files in a table's present state is Delta's.
    assert sorted(hour.written.rows) == [1, 2, 3, 4]
    assert [done.source.cut for done in hour.reported if done.source] == [True, True, True, False]
    hour.commit(5)
    time.sleep(3)
    assert len(hour.written.rows) == 4
    # It is stopped where it waits.
    began = time.monotonic()
    hour.query.stop()
    assert time.monotonic() - began < 5

    # A start that first finishes what was begun looks right after that for what has come since.
    for name in ("3", ".3.crc"):
        (hour.workspace.root / CHECKPOINT / "commits" / name).unlink(missing_ok=True)
    again = paced(timedelta(hours=1), 1)
    _wait(lambda: len(again.written.rows) == 2)
    assert again.written.rows[1] == 5


@pytest.mark.long
@pytest.mark.ci
def test_what_comes_one_by_one_waits_for_the_interval(paced: Callable[[timedelta, int], Paced]) -> None:
    every = paced(timedelta(seconds=4), 256)
    _wait(lambda: len(every.reported) == 1)
    began, commits = time.time(), 0
    while time.time() < began + 9:
        every.commit(1)
        commits += 1
        time.sleep(0.2)
    _wait(lambda: sum(every.written.rows) == 10 + commits)
    # Its first batch may have been in time for one multiple of the interval, and in 9 s there are three at most.
    assert len(every.written.rows) <= 5
    assert not any(done.source and done.source.cut for done in every.reported[1:])


def _wait(condition: Callable[[], bool], timeout: float = 120) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "still waiting"
        time.sleep(0.1)
