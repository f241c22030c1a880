"""A query that is started before its driver may write: it finishes what was begun, and holds what is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from streamwarden.driver.ahead import QueryAhead
from streamwarden.driver.pipeline.batches import BatchWriter
from streamwarden.driver.pipeline.module import load_module, settings_for
from streamwarden.driver.pipeline.query import RunningQuery
from streamwarden.driver.pipeline.source import open_source
from streamwarden.driver.state_only_batch import Replay
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.spec import JobSpec
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import as_trips, delta_tables, in_order_of_arrival, read_table, run, write_table

pytestmark = pytest.mark.spark

COMMITS = 6
CHECKPOINT, STRAIGHT = "checkpoints/zone_windows/g000002", "checkpoints/straight"
HELD_S = 3.0


@pytest.fixture
def parts(make_trips: TripMaker) -> list[pa.Table]:
    trips = make_trips(60 * COMMITS, schema="2025")
    landed = in_order_of_arrival(trips, seed=1, late_share=0, latest=timedelta(), batches=COMMITS)
    return [as_trips(part) for part in landed]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")


@pytest.fixture
def spec(workspace: Workspace) -> JobSpec:
    spec = workspace.job("zone_windows")
    return spec.model_copy(
        update={
            "source": spec.source.model_copy(update={"max_files_per_batch": 1}),
            "trigger": spec.trigger.model_copy(update={"interval": timedelta(seconds=1)}),
        }
    )


@pytest.fixture
def stopped(spark: SparkSession, workspace: Workspace, spec: JobSpec, parts: list[pa.Table]) -> list[int]:
    """A checkpoint in which batch 2 was begun, of a job that has written it; the rows of state that it left."""
    source, module = Path(workspace.table("trips")), load_module(spec)
    write_table(source, parts[:1])
    writer = _writer(spark, workspace, spec)
    for number in range(3):
        if number:
            write_table(source, [parts[number]])
        rows = module.transform(open_source(spark, workspace, spec, "source"), settings_for(spec, module))
        query = run(rows, writer, workspace.root / CHECKPOINT, once=True)
        query.awaitTermination()
    last = query.lastProgress
    assert last is not None and last.batchId == 2
    for name in ("2", ".2.crc"):
        (workspace.root / CHECKPOINT / "commits" / name).unlink(missing_ok=True)
    return [operator.numRowsTotal for operator in last.stateOperators]


@pytest.fixture
def begun(workspace: Workspace, parts: list[pa.Table], stopped: list[int]) -> list[int]:
    """The same, and the source has gone on since."""
    write_table(Path(workspace.table("trips")), parts[3:])
    return stopped


@pytest.mark.long
def test_what_was_begun_is_finished_unwritten_and_the_next_batch_waits_for_its_writer(
    spark: SparkSession, workspace: Workspace, spec: JobSpec, begun: list[int]
) -> None:
    version = _version(workspace, spec)
    ahead = QueryAhead(spark, workspace, spec, Replay(spark, workspace, spec).rows, CHECKPOINT)
    assert ahead.rows() == begun
    reader = CheckpointReader(workspace.storage, CHECKPOINT)
    _wait(lambda: reader.last_offset() == 3)
    time.sleep(HELD_S)
    assert (reader.last_commit(), _version(workspace, spec)) == (2, version)

    # As if it had never been interrupted: to the no-data batch that makes the last windows final.
    module = load_module(spec)
    straight = delta_tables(spark, workspace.root / "straight", spec, module, workspace.root / STRAIGHT)
    rows = module.transform(open_source(spark, workspace, spec, "source"), settings_for(spec, module))
    run(rows, straight, workspace.root / STRAIGHT).awaitTermination()
    last = CheckpointReader(workspace.storage, STRAIGHT).last_commit()
    assert last is not None and last >= COMMITS - 1

    query = ahead.release(_writer(spark, workspace, spec), "who writes")
    _wait(lambda: reader.last_commit() == last)
    query.stop()
    table = DeltaTable(workspace.table(_table(spec)))
    written = [one for one in table.history() if one["version"] > version]
    assert written and {one.get("userMetadata") for one in written} == {"who writes"}

    keys = [(key, "ascending") for key in spec.sinks[0].keys]
    found = [
        read_table(path).sort_by(keys)
        for path in (Path(workspace.table(_table(spec))), workspace.root / "straight" / _table(spec))
    ]
    assert found[0].num_rows > 0 and found[0].equals(found[1].select(found[0].column_names))


@pytest.mark.long
def test_what_comes_only_after_the_release_names_its_author_too(
    spark: SparkSession, workspace: Workspace, spec: JobSpec, parts: list[pa.Table], stopped: list[int]
) -> None:
    version = _version(workspace, spec)
    # A batch that only makes windows final would be held.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        ahead = QueryAhead(spark, workspace, spec, Replay(spark, workspace, spec).rows, CHECKPOINT)
        assert ahead.rows() == stopped
        query = ahead.release(_writer(spark, workspace, spec), "who writes")
        reader = CheckpointReader(workspace.storage, CHECKPOINT)
        assert (reader.last_offset(), _version(workspace, spec)) == (2, version)
        write_table(Path(workspace.table("trips")), parts[3:4])
        _wait(lambda: reader.last_commit() == 3)
        query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    written = [one for one in DeltaTable(workspace.table(_table(spec))).history() if one["version"] > version]
    assert written and {one.get("userMetadata") for one in written} == {"who writes"}


@pytest.mark.long
def test_one_that_is_dropped_leaves_its_batch_to_the_next_query(
    spark: SparkSession, workspace: Workspace, spec: JobSpec, begun: list[int]
) -> None:
    version = _version(workspace, spec)
    replay = Replay(spark, workspace, spec)
    ahead = QueryAhead(spark, workspace, spec, replay.rows, CHECKPOINT)
    assert ahead.rows() == begun
    reader = CheckpointReader(workspace.storage, CHECKPOINT)
    _wait(lambda: reader.last_offset() == 3)
    ahead.drop()
    assert (reader.last_offset(), reader.last_commit(), _version(workspace, spec)) == (3, 2, version)
    writer = _writer(spark, workspace, spec)
    query = RunningQuery(spec, replay.rows, writer, workspace.uri(CHECKPOINT), reader)
    _wait(lambda: (reader.last_commit() or 0) >= 3)
    query.stop()
    assert _version(workspace, spec) > version


def _writer(spark: SparkSession, workspace: Workspace, spec: JobSpec) -> BatchWriter:
    return delta_tables(spark, workspace.root / "tables", spec, load_module(spec), workspace.root / CHECKPOINT)


def _table(spec: JobSpec) -> str:
    return spec.sinks[0].table


def _version(workspace: Workspace, spec: JobSpec) -> int:
    return DeltaTable(workspace.table(_table(spec))).version()


def _wait(condition: Callable[[], bool], timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "still waiting"
        time.sleep(0.1)
