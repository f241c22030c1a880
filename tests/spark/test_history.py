"""A job that begins with a table of earlier rows: its state and tables are those of one stream over all rows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from nyc_taxi.demo.batch import compare_zone_windows, expected_zone_windows
from nyc_taxi.streams.feed import FeedOptions, disordered
from nyc_taxi.streams.payments import payments_of
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from streamwarden.driver.history import History
from streamwarden.driver.pipeline.module import load_module
from streamwarden.driver.pipeline.source import _like_live, job_rows, open_source
from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.no_data_batch import begin_no_data_batch
from streamwarden.model.kafka_spec import JsonValue, KafkaSource
from streamwarden.model.source_spec import HistorySource
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import load_job
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import as_trips, delta_tables, in_order_of_arrival, read_table, run

pytestmark = pytest.mark.spark

JOBS = {"zone_windows": "trips", "dedup_events": "payments_delivered"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    config = tmp_path / "config"
    (config / "profiles").mkdir(parents=True)
    (config / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=config)


def _pieces(job: str, trips: pa.Table) -> list[pa.Table]:
    if job == "zone_windows":
        return in_order_of_arrival(trips, seed=4, late_share=0.3, latest=timedelta(hours=1), batches=6)
    return list(disordered(payments_of(trips), FeedOptions(pieces=6, repeated=0.3)))


def _add(workspace: Workspace, table: str, *pieces: pa.Table) -> None:
    for piece in pieces:
        write_deltalake(workspace.table(table), piece, mode="append")


def _spec(job: str, **history: str) -> JobSpec:
    found = load_job(job, config=REPOSITORY / "config").model_dump(mode="json")
    found["source"] |= {"max_files_per_batch": 1, "history": {**history, "max_files_per_batch": 1}}
    found["state"] |= {"partitions": 2}
    return JobSpec.model_validate(found)


def _stream(spark: SparkSession, workspace: Workspace, spec: JobSpec, folder: str) -> list[str]:
    """Run a job as its driver does until nothing is left to read; return which sources its queries read."""
    module, path, read = load_module(spec), f"checkpoints/{folder}", []
    checkpoint = workspace.root / path
    writer = delta_tables(spark, workspace.root / folder, spec, module, checkpoint)
    history = History(workspace, spec, path, lambda: None)
    while not read or read[-1] != spec.source.table:  # type: ignore[union-attr]
        now = history.begin(spark)
        read.append(now.source.table)  # type: ignore[union-attr]
        rows = job_rows(spark, workspace, now, module)
        begin_no_data_batch(workspace.storage, path)
        run(rows, writer, checkpoint).awaitTermination()
    return read


def _rows(workspace: Workspace, folder: str, spec: JobSpec) -> list[str]:
    return sorted(map(str, read_table(workspace.root / folder / spec.sinks[0].table).to_pylist()))


@pytest.mark.long
@pytest.mark.parametrize("job", [pytest.param("zone_windows", marks=pytest.mark.ci), "dedup_events"])
def test_history_and_source_give_what_one_stream_gives(
    spark: SparkSession, workspace: Workspace, make_trips: TripMaker, job: str
) -> None:
    trips, table = as_trips(make_trips(1500, cards=40)), JOBS[job]
    pieces = _pieces(job, trips)
    # The source exists, and is empty: its first rows come after the history is read.
    _add(workspace, "before", *pieces[:3])
    _add(workspace, table, pieces[3].slice(0, 0))
    spec = _spec(job, table="before")
    assert _stream(spark, workspace, spec, "both") == ["before", table]
    _add(workspace, table, *pieces[3:5])
    assert _stream(spark, workspace, spec, "both") == [table]
    _add(workspace, table, pieces[5])
    assert _stream(spark, workspace, spec, "both") == [table]

    one = spec.model_copy(update={"source": spec.source.model_copy(update={"table": "all", "history": None})})  # type: ignore[union-attr]
    _add(workspace, "all", *pieces)
    _stream(spark, workspace, one, "one")
    found = _rows(workspace, "both", spec)
    assert found == _rows(workspace, "one", spec) and len(found) > 50
    if job == "zone_windows":
        difference = compare_zone_windows(expected_zone_windows(trips), read_table(workspace.root / "both" / job))
        assert difference.equal, str(difference)
    both, alone = (CheckpointReader(workspace.storage, f"checkpoints/{one}") for one in ("both", "one"))
    ends = [reader.offsets(reader.last_offset() or 0) for reader in (both, alone)]
    assert ends[0] is not None and ends[1] is not None and ends[0].watermark_ms == ends[1].watermark_ms > 0


@pytest.mark.long
@pytest.mark.ci
def test_rows_that_the_source_has_too_are_left_out(
    spark: SparkSession, workspace: Workspace, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(600))
    middle = np.array(trips["lpep_pickup_datetime"].cast(pa.int64()))[300]
    spec = _spec("zone_windows", table="before", where=f"lpep_pickup_datetime < timestamp_micros({middle})")
    later = trips.filter(pa.compute.greater_equal(trips["lpep_pickup_datetime"].cast(pa.int64()), middle))
    _add(workspace, "before", trips)
    _add(workspace, "trips", later)
    _stream(spark, workspace, spec, "both")
    difference = compare_zone_windows(
        expected_zone_windows(trips), read_table(workspace.root / "both" / "zone_windows")
    )
    assert difference.equal, str(difference)


@pytest.mark.long
@pytest.mark.ci
def test_a_history_with_other_columns_or_without_rows_is_named(
    spark: SparkSession, workspace: Workspace, make_trips: TripMaker
) -> None:
    trips, spec = as_trips(make_trips(5)), _spec("zone_windows", table="before")
    _add(workspace, "trips", trips)
    other = trips.drop_columns(["fare_amount"]).append_column("more", pa.array([1] * 5))
    place = other.column_names.index("PULocationID")
    _add(workspace, "before", other.set_column(place, "PULocationID", other["PULocationID"].cast(pa.string())))
    with pytest.raises(StreamwardenError) as raised:
        open_source(spark, workspace, spec.on_history(), "source")
    assert raised.value.code == "HISTORY_INVALID"
    assert raised.value.what == (
        "table before: column PULocationID is string, and is int in the live source; column fare_amount is missing,"
        " and is double in the live source"
    )
    empty = _spec("zone_windows", table="nothing")
    _add(workspace, "nothing", trips.slice(0, 0))
    with pytest.raises(StreamwardenError, match="table nothing has no rows"):
        History(workspace, empty, "checkpoints/job", lambda: None).begin(spark)


def test_what_describes_a_live_record_is_null_or_false_in_the_history(
    spark: SparkSession, workspace: Workspace
) -> None:
    value = pa.table({"id": [1, 2], "more": ["a", "b"]})
    _add(workspace, "before", value)
    live = pa.table({"id": [3], "_tombstone": [True], "_corrupt": ["x"], "_kafka": [{"offset": 5}]})
    _add(workspace, "trips", live)
    rows = open_source(spark, workspace, _spec("zone_windows", table="before").on_history(), "source")
    assert rows.columns == ["id", "_tombstone", "_corrupt", "_kafka"]
    found: list[tuple[object, ...]] = []
    query = run(rows, lambda batch, _: found.extend(map(tuple, batch.collect())), workspace.root / "c")
    query.awaitTermination()
    assert sorted(found, key=str) == [(1, False, None, None), (2, False, None, None)]


def test_kafkas_headers_are_null_in_a_history_without_them(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("k",)], "key string")
    live = KafkaSource(kind="kafka", topic="t", bootstrap_servers="one:9092")
    source = HistorySource(kind="delta", table="before", where=None, live=live)
    schema = StructType.fromDDL("key string, headers array<struct<key:string,value:binary>>")
    assert [tuple(row) for row in _like_live(rows, schema, source).collect()] == [("k", None)]
    # Rows that the live source has, too, are left out.
    assert _like_live(rows, schema, source.model_copy(update={"where": "key <> 'k'"})).collect() == []
    # A field of that name in the values is a column like any other.
    parsed = live.model_copy(update={"value": JsonValue(format="json", columns="headers string")})
    with pytest.raises(StreamwardenError, match="column headers is missing"):
        _like_live(rows, schema, source.model_copy(update={"live": parsed}))
