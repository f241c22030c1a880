"""trip_payments in real queries over two sources: each join equal to a batch computation."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from nyc_taxi.demo.payments import compare_trip_payments, expected_trip_payments
from nyc_taxi.streams.payments import payments_of
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs import trip_payments
from spark_jobs.schemas import PICKUP
from spark_jobs.trip_payments import Options
from streamwarden.driver.job_api import JobSettings
from streamwarden.driver.pipeline.source import QuerySource, job_rows, query_sources
from streamwarden.driver.pipeline.transformed import column_notes, refused_query
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.store.workspace import Workspace, open_workspace
from tests.conftest import REPOSITORY, TripMaker
from tests.spark.job_runs import as_trips, in_order_of_arrival, write_table
from tests.spark.test_zone_windows import real_days

pytestmark = pytest.mark.spark

LATEST = timedelta(hours=2)
AFTER = datetime(2023, 4, 1, tzinfo=UTC)


class Appended:
    """Both tables of the job; a batch that was tried before replaces its rows."""

    def __init__(self, fail_on: set[int]) -> None:
        self.batches: dict[int, list[dict[str, object]]] = {}
        self.refused: dict[int, list[dict[str, object]]] = {}
        self.fail_on = fail_on

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        split = trip_payments.outputs(batch.localCheckpoint())
        self.batches[batch_id] = [row.asDict() for row in split["main"].collect()]
        self.refused[batch_id] = [row.asDict() for row in split["quarantine"].collect()]
        if batch_id in self.fail_on:
            self.fail_on.discard(batch_id)
            raise RuntimeError("the sink fails, for once")

    def arrow(self) -> pa.Table:
        return pa.Table.from_pylist([row for rows in self.batches.values() for row in rows])


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", config=REPOSITORY / "config", root=tmp_path / "root")


def settled(payments: pa.Table, *, seed: int, batches: int) -> list[pa.Table]:
    """Let payments arrive in another order than that of their settlement, up to two hours late."""
    random = np.random.default_rng(seed)
    at = np.array(payments["settled_at"].cast(pa.int64()))
    order = np.argsort(at + random.uniform(0, LATEST / timedelta(microseconds=1), len(at)), kind="stable")
    return [payments.take(pa.array(part)) for part in np.array_split(order, batches)]


def last_ones(trips: pa.Table, payments: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return a trip and a payment weeks later, by which both watermarks pass everything before."""
    trip = trips.slice(0, 1)
    payment = payments.slice(0, 1)
    moment = pa.array([AFTER], pa.timestamp("us", "UTC"))
    for name in ("lpep_pickup_datetime", "lpep_dropoff_datetime"):
        trip = trip.set_column(trip.column_names.index(name), name, moment)
        payment = payment.set_column(payment.column_names.index(name), name, moment)
    card = pa.array(["last"], pa.string())
    trip = trip.set_column(trip.column_names.index("card_id"), "card_id", card)
    payment = payment.set_column(payment.column_names.index("settled_at"), "settled_at", moment)
    return trip, payment


@pytest.mark.parametrize(
    "join", ["full", *(pytest.param(one, marks=pytest.mark.long) for one in ("inner", "left", "right"))]
)
def test_equal_to_batch_with_late_rows_of_both_sources(
    spark: SparkSession,
    workspace: Workspace,
    tmp_path: Path,
    real_trips: Path | None,
    make_trips: TripMaker,
    join: str,
) -> None:
    real = real_trips if join == "full" else None
    trips = real_days(real, datetime(2023, 3, 8), days=1) if real else as_trips(make_trips(800, cards=60))
    payments = payments_of(trips)
    last_trip, last_payment = last_ones(trips, payments)
    batches = 4 if join == "full" else 2
    arriving = in_order_of_arrival(trips, seed=4, late_share=0.3, latest=LATEST, batches=batches)
    paying = settled(payments, seed=5, batches=batches)
    sink = Appended(fail_on={2})
    spec = small(workspace.job("trip_payments"), join)

    def run() -> None:
        query = (
            job_rows(spark, workspace, spec, trip_payments)
            .writeStream.foreachBatch(sink)
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    failed = 0
    # After each piece, a batch without input removes state: what has no counterpart yet must not go.
    for some_trips, some_payments in zip([*arriving, last_trip], [*paying, last_payment], strict=True):
        write_table(Path(workspace.table("trips")), [some_trips])
        write_table(Path(workspace.table("payments")), [some_payments])
        try:
            run()
        except StreamingQueryException as error:
            assert "the sink fails" in str(error)
            failed += 1
            run()
    assert failed == 1
    expected = expected_trip_payments(trips, payments, join=join)
    found = sink.arrow()
    found = found.filter(
        pc.less(found["lpep_pickup_datetime"], pa.scalar(AFTER.replace(tzinfo=None), pa.timestamp("us")))
    )
    difference = compare_trip_payments(expected, found)
    assert difference.equal, str(difference)
    outcomes = {row["values"]: row["counts"] for row in pc.value_counts(found["outcome"]).to_pylist()}
    assert set(outcomes) == {
        "paid",
        *({"no_payment"} if join in ("full", "left") else ()),
        *({"no_trip"} if join in ("full", "right") else ()),
    }
    assert min(outcomes.values()) > 5


def small(spec: JobSpec, join: str) -> JobSpec:
    assert spec.sources is not None
    one = {name: source.model_copy(update={"max_files_per_batch": 1}) for name, source in spec.sources.items()}
    return spec.model_copy(update={"sources": one, "options": {"join": join}})


def test_what_can_not_be_joined_is_quarantined_with_its_reasons(
    spark: SparkSession, workspace: Workspace, tmp_path: Path, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(40, cards=5))
    payments = payments_of(trips)
    bad = payments.slice(0, 6).to_pylist()
    bad[0]["card_id"] = None
    bad[1]["amount"] = float("nan")
    bad[2]["settled_at"] = datetime(2399, 1, 1, tzinfo=UTC)
    bad[3]["payment_id"] = None
    bad[4]["amount"] = float("-inf")
    bad[5]["settled_at"] = None
    write_table(Path(workspace.table("trips")), [trips])
    write_table(Path(workspace.table("payments")), [pa.Table.from_pylist(bad, payments.schema), payments.slice(6)])
    sink = Appended(fail_on=set())
    rows = job_rows(spark, workspace, workspace.job("trip_payments"), trip_payments)
    query = rows.writeStream.foreachBatch(sink).outputMode("append")
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    refused = [row for rows in sink.refused.values() for row in rows]
    assert sorted(str(row["reasons"]) for row in refused) == sorted(
        [
            "['card_id is missing']",
            "['amount is no number below 1e+09']",
            "['settled_at is not plausible']",
            "['payment_id is missing']",
            "['amount is no number below 1e+09']",
            "['settled_at is missing']",
        ]
    )
    assert {row["source"] for row in refused} == {"payments"}
    paid = [row["payment_id"] for rows in sink.batches.values() for row in rows if row["outcome"] == "paid"]
    assert len(paid) > 20 and len(set(paid)) == len(paid)


def test_sources_are_named_in_the_order_of_the_plan(
    spark: SparkSession, workspace: Workspace, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(5))
    write_table(Path(workspace.table("trips")), [trips])
    write_table(Path(workspace.table("payments")), [payments_of(trips)])
    spec = workspace.job("trip_payments")
    # The second branch of each finds what is quarantined.
    found = query_sources(job_rows(spark, workspace, spec, trip_payments))
    assert found == [QuerySource("trips", 2), QuerySource("payments", 2)]


def test_a_fault_of_transform_is_named_before_the_query_starts(
    spark: SparkSession, workspace: Workspace, tmp_path: Path, make_trips: TripMaker
) -> None:
    trips = as_trips(make_trips(5))
    write_table(Path(workspace.table("trips")), [trips])
    write_table(Path(workspace.table("payments")), [payments_of(trips)])
    spec = workspace.job("trip_payments").model_copy(update={"options": {}})

    def transform(sources: dict[str, DataFrame], _: JobSettings) -> DataFrame:
        paid = sources["payments"].withWatermark("settled_at", "2 hours").select("card_id", "settled_at")
        return sources["trips"].select("card_id", PICKUP).join(paid, "card_id", "fullOuter")

    module: Any = SimpleNamespace(SOURCES=trip_payments.SOURCES, transform=transform)
    with pytest.raises(StreamwardenError, match="withWatermark on lpep_pickup_datetime of trips") as caught:
        job_rows(spark, workspace, spec, module)
    assert caught.value.code == "JOB_MODULE_INVALID" and 'sources["trips"]' in caught.value.remedy

    # Declared to need none: then Spark's own check finds it, when the query would start.
    module.SOURCES = dict.fromkeys(trip_payments.SOURCES)

    def refusal(mode: str = "append") -> StreamwardenError:
        module.OUTPUT_MODE = mode
        rows = job_rows(spark, workspace, spec, module)
        writer = rows.writeStream.foreachBatch(lambda *_: None).outputMode(mode)
        with pytest.raises(AnalysisException) as refused:
            writer.option("checkpointLocation", str(tmp_path / "c")).start()
        found = refused_query(spec, module, rows, refused.value)
        assert found is not None
        return found

    assert refusal().code == "JOIN_WITHOUT_WATERMARK"
    # Only the side that may be null needs one.
    module.transform = lambda sources, _: left_join(sources, watermarked="trips")
    assert refusal().code == "JOIN_WITHOUT_WATERMARK"
    module.transform = lambda sources, _: left_join(sources, watermarked="payments")
    found = refusal()
    assert found.code == "JOIN_WITHOUT_TIME_RANGE" and "INTERVAL 1 HOUR" in found.remedy
    assert refused_query(spec, module, None, AnalysisException("another fault")) is None  # type: ignore[arg-type]

    found = refusal("update")
    assert (found.code, found.retryable) == ("JOB_CODE_FAILED", False)
    assert "not supported in Update output mode" in found.what and found.remedy.startswith('Set OUTPUT_MODE = "append"')
    module.transform = lambda sources, _: (
        sources["trips"].select("card_id").union(sources["payments"].select("card_id"))
    )
    whole = module.transform
    module.transform = lambda *given: whole(*given).groupBy("card_id").count()
    assert refusal().remedy.startswith("Call withWatermark before the aggregation")
    module.transform = lambda *given: whole(*given).orderBy("card_id")
    assert "does not run it as a stream" in refusal().remedy

    module.transform = lambda sources, _: sources["payment"]
    with pytest.raises(StreamwardenError, match=r"reads source 'payment'.* has trips and payments; did you mean payme"):
        job_rows(spark, workspace, spec, module)


def left_join(sources: dict[str, DataFrame], *, watermarked: str) -> DataFrame:
    columns = {"trips": PICKUP, "payments": "settled_at"}
    rows = {name: sources[name].select("card_id", column) for name, column in columns.items()}
    rows[watermarked] = rows[watermarked].withWatermark(columns[watermarked], "2 hours")
    return rows["trips"].join(rows["payments"], "card_id", "left_outer")


@pytest.mark.parametrize(
    ("transform", "code", "words"),
    [
        (lambda sources, _: sources["trips"].unoin(sources["payments"]), "JOB_CODE_FAILED", "unoin"),
        (lambda sources, _: sources["trips"].repartition(0), "JOB_CODE_FAILED", "must be positive"),
        (lambda *_: {}["gone"], "JOB_CODE_FAILED", "KeyError: 'gone'"),
        (lambda *_: None, "JOB_MODULE_INVALID", "transform returned NoneType"),
        (lambda sources, _: sources["trips"], "JOB_MODULE_INVALID", "transform does not read payments"),
    ],
)
def test_an_exception_of_transform_names_its_line_and_is_final(
    spark: SparkSession, workspace: Workspace, make_trips: TripMaker, transform: Any, code: str, words: str
) -> None:
    trips = as_trips(make_trips(5))
    write_table(Path(workspace.table("trips")), [trips])
    write_table(Path(workspace.table("payments")), [payments_of(trips)])
    module: Any = SimpleNamespace(SOURCES={}, transform=transform, __file__=__file__)
    spec = workspace.job("trip_payments").model_copy(update={"options": {}})
    with pytest.raises(StreamwardenError) as caught:
        job_rows(spark, workspace, spec, module)
    assert (caught.value.code, caught.value.retryable) == (code, False)
    assert "tests/spark/test_trip_payments.py" in caught.value.what and words in caught.value.what
    if code == "JOB_CODE_FAILED":
        assert re.search(r"test_trip_payments\.py:\d+: ", caught.value.what)


def test_a_column_that_transform_does_not_return_is_told_or_refused(spark: SparkSession, workspace: Workspace) -> None:
    rows = spark.range(1).selectExpr("id AS card_id", "id AS pay_id")
    columns = StructType([StructField(name, LongType()) for name in ("card_id", "paid_id", "is_final")])
    module: Any = SimpleNamespace(OUTPUTS={"main": columns})
    spec = workspace.job("trip_payments")
    (note,) = column_notes(spec, module, rows)
    assert "transform returns no column paid_id" in note and note.endswith("null in each row; did you mean pay_id?")
    keyed = spec.model_copy(update={"sinks": (spec.delta_sinks[0].model_copy(update={"keys": ("paid_id",)}),)})
    with pytest.raises(StreamwardenError, match=r"JOB_MODULE_INVALID.*paid_id, which OUTPUTS has, and a sink"):
        column_notes(keyed, module, rows)
    module.outputs = lambda batch: {"main": batch}
    assert column_notes(keyed, module, rows) == []


def test_a_watermark_is_required() -> None:
    settings = JobSettings(watermark=None, ttl=None, options=Options())
    with pytest.raises(StreamwardenError, match="watermark: is required"):
        trip_payments.transform({}, settings)
