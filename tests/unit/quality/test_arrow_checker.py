"""The engine for rows in memory finds what Spark's engine finds: tests/spark/test_quality.py has the same cases."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.schemas import TRIPS
from streamwarden.quality import engine
from streamwarden.quality.arrow_checker import ArrowChecker
from tests.quality_cases import (
    BAD_ROWS,
    CHANGES,
    EXPECTATIONS,
    GOOD,
    ROW_EXPECTATIONS,
    SUITES,
    bad_rows,
    trip,
    window,
)

pytestmark = pytest.mark.unit

_TIME, _MONEY = pa.timestamp("us", "UTC"), pa.decimal128(18, 2)
SCHEMAS = {
    "trips": to_arrow_schema(TRIPS, timezone="UTC"),
    "zone_windows": pa.schema(
        {
            "window_start": _TIME,
            "window_end": _TIME,
            "zone_id": pa.int32(),
            "trips": pa.int64(),
            "revenue": _MONEY,
            "average_fare": pa.float64(),
            "is_final": pa.bool_(),
        }
    ),
    "card_sessions": pa.schema(
        {
            "card_id": pa.string(),
            "session_start": _TIME,
            "session_end": _TIME,
            "trips": pa.int64(),
            "total_amount": _MONEY,
            "zones": pa.list_(pa.int32()),
            "status": pa.string(),
        }
    ),
}
_TYPES = {"timestamp_ntz": pa.timestamp("us"), "double": pa.float64(), None: pa.int32()}


def rows_of(table, rows):
    return pa.Table.from_pylist(rows, schema=SCHEMAS[table])


@pytest.fixture(scope="module")
def judge():
    checker = ArrowChecker(examples=3)
    built = {name: engine.build(suite, EXPECTATIONS / f"{name}.json") for name, suite in SUITES.items()}
    return lambda table, rows: checker.run(SUITES[table], built[table], rows, rows.num_rows)


@pytest.fixture(scope="module")
def judged(judge):
    found = {}
    for table in BAD_ROWS:
        rows = rows_of(table, bad_rows(table))
        found |= {item.id: (item, rows.num_rows) for item in judge(table, rows)}
    return found


@pytest.mark.parametrize("table", sorted(GOOD))
def test_good_rows_meet_every_expectation(judge, table):
    results = judge(table, rows_of(table, GOOD[table]))
    assert [item.summary() for item in results if not item.success] == []
    assert [item.id for item in results] == [item.meta.id for item in SUITES[table].expectations]


@pytest.mark.parametrize("expectation", ROW_EXPECTATIONS)
def test_an_expectation_finds_its_bad_rows_and_no_others(judged, expectation):
    found, rows = judged[expectation]
    table = expectation.split(".")[0]
    assert found.error is None
    assert not found.success
    assert found.unexpected_count == sum(case.fails.get(expectation, 0) for case in BAD_ROWS[table])
    assert found.unexpected_percent == pytest.approx(100 * found.unexpected_count / found.checked)
    assert found.checked <= rows
    assert len(found.examples) == min(found.unexpected_count, 3)
    if "unexpected_rows_query" not in found.arguments:
        for name in (*SUITES[table].meta.keys, *found.columns):
            assert name in found.examples[0]


def test_bad_rows_fail_no_other_expectation(judged):
    assert {name for name, (found, _) in judged.items() if not found.success} == set(ROW_EXPECTATIONS)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(sorted(change.fails)))
def test_a_wrong_table_fails_exactly_its_expectations(judge, change):
    rows = rows_of(change.table, GOOD[change.table])
    if change.drop:
        rows = rows.drop_columns([change.drop])
    for name, kind in change.columns.items():
        index = rows.schema.names.index(name)
        values = pa.nulls(rows.num_rows, pa.int32()) if kind is None else rows[name].cast(_TYPES[kind])
        rows = rows.set_column(index, name, values)
    results = {item.id: item for item in judge(change.table, rows)}
    assert {name for name, item in results.items() if not item.success} == change.fails | change.unevaluated
    assert {name for name, item in results.items() if item.error is not None} == change.unevaluated


def test_an_example_holds_keys_and_the_value_in_question(judge):
    results = {item.id: item for item in judge("trips", rows_of("trips", [*GOOD["trips"], trip(20, PULocationID=300)]))}
    found = results["trips.PULocationID.zone"]
    assert found.examples == (
        {
            "source_file": "trips-1.parquet",
            "source_row": 20,
            "lpep_pickup_datetime": "2023-03-06T08:20:00Z",
            "PULocationID": 300,
        },
    )
    assert (found.checked, found.unexpected_count, found.unexpected_percent) == (17, 1, pytest.approx(100 / 17))


def test_nulls_are_no_unexpected_values_but_a_share_of_them_is_counted(judge):
    results = {item.id: item for item in judge("trips", rows_of("trips", GOOD["trips"]))}
    share = results["trips.passenger_count.not_null"]
    assert share.success
    assert (share.checked, share.unexpected_count, share.unexpected_percent) == (16, 2, 12.5)
    values = results["trips.passenger_count.plausible"]
    assert (values.checked, values.unexpected_count) == (14, 0)


def test_a_million_failing_rows_give_as_few_examples(judge):
    rows = rows_of("zone_windows", [window(0, zone_id=0)])
    many = pa.concat_tables([rows] * 1000).combine_chunks()
    many = pa.concat_tables([many] * 1000)
    found = {item.id: item for item in judge("zone_windows", many)}["zone_windows.zone_id.zone"]
    assert (found.unexpected_count, len(found.examples)) == (1_000_000, 3)
