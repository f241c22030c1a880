"""Each expectation that is shipped finds a row that breaks it, and none fails for rows as the jobs write them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.event_checks import REFUSED
from streamwarden.quality import engine
from streamwarden.quality.arrow_checker import ArrowChecker
from tests.quality_cases import BAD_ROWS, EXPECTATIONS, SUITES

pytestmark = pytest.mark.unit

AT = datetime(2023, 3, 6, 8, tzinfo=UTC)
MINUTES, HOUR, MONEY = timedelta(minutes=5), timedelta(hours=1), Decimal("11.30")
PAID = {
    "card_id": "card-1",
    "lpep_pickup_datetime": AT,
    "lpep_dropoff_datetime": AT + MINUTES,
    "total_amount": MONEY,
    "payment_id": "p-1",
    "paid": MONEY,
    "method": "card",
    "settled_at": AT + HOUR,
    "outcome": "paid",
}
TRIP = {"total_amount": MONEY}
NO_PAYMENT = {"payment_id": None, "paid": None, "method": None, "settled_at": None, "outcome": "no_payment"}
ROLLING = {
    "key": "s-1",
    "window_start": AT,
    "window_end": AT + MINUTES,
    "events": 3,
    "average": 2.0,
    "weighted_average": None,
    "least": 1.0,
    "greatest": 3.0,
    "is_final": True,
}
ALERT = {"key": "s-1", "at": AT, "change": "raised", "average": 81.0}
REFUSAL = {"source": "payments", "raw": "{}", "reasons": ["amount is null"]}
FEATURES = {f"trips_{hours}h": hours for hours in (1, 6, 24)} | {f"revenue_{hours}h": MONEY for hours in (1, 6, 24)}

# Table: module of its job, output, and one good row.
TABLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "zone_running_stats": (
        "zone_running_stats",
        "main",
        {"zone_id": 74, "trips": 2, "revenue": MONEY, "average_fare": 9.5, "last_activity": AT},
    ),
    "card_statistics": (
        "card_statistics",
        "main",
        {
            "card_id": "card-1",
            "visits": 2,
            "spending": MONEY,
            "favourite_zone": 74,
            "first_activity": AT,
            "last_activity": AT + HOUR,
        },
    ),
    "card_alerts": (
        "card_velocity",
        "main",
        {"card_id": "card-1", "alert_at": AT, "trips": 5, "total_amount": MONEY},
    ),
    "card_velocity": (
        "card_velocity",
        "windows",
        {
            "card_id": "card-1",
            "window_start": AT,
            "window_end": AT + MINUTES,
            "trips": 1,
            "total_amount": MONEY,
            "is_final": False,
        },
    ),
    "trip_payments": ("trip_payments", "main", PAID),
    "payments": (
        "dedup_events",
        "main",
        {
            "payment_id": "p-1",
            "card_id": "card-1",
            "lpep_pickup_datetime": AT,
            "lpep_dropoff_datetime": AT + MINUTES,
            "amount": 11.3,
            "method": "card",
            "settled_at": AT + HOUR,
        },
    ),
    "zone_leaderboard": (
        "zone_leaderboard",
        "main",
        {
            "window_start": AT,
            "rank": 1,
            "zone_id": 74,
            "borough": None,
            "zone": None,
            "trips": 3,
            "is_closed": True,
        },
    ),
    "zone_features": ("zone_features", "main", {"zone_id": 74, "as_of": AT, **FEATURES}),
    "sensor_metrics": ("rolling_metrics", "main", ROLLING),
    "trade_metrics": ("rolling_metrics", "main", ROLLING),
    "sensor_alerts": ("rolling_metrics", "alerts", ALERT),
    "trade_alerts": ("rolling_metrics", "alerts", ALERT),
    "trips_quarantine": (
        "ingest_trips",
        "quarantine",
        {"source_file": "trips.parquet", "source_row": 7, "raw": "{}", "reasons": ["zone is null"]},
    ),
    **{
        f"{table}_quarantine": (module, "quarantine", REFUSAL)
        for table, module in {
            "trip_payments": "trip_payments",
            "payments": "dedup_events",
            "sensor_metrics": "rolling_metrics",
            "trade_metrics": "rolling_metrics",
        }.items()
    },
}
# Rows that break a query: the good row with these values, all of them together with it.
QUERIES: dict[str, list[dict[str, Any]]] = {
    "zone_running_stats.average_fare.finite": [{"average_fare": float("nan")}, {"average_fare": float("-inf")}],
    "card_velocity.window.five_minutes": [{"window_end": AT + HOUR}],
    "trip_payments.outcome.fits": [{**NO_PAYMENT, "outcome": "paid"}, {"outcome": "no_trip"}],
    "trip_payments.payment.once": [{"outcome": "no_trip", "total_amount": None}],
    "payments.amount.finite": [{"amount": float("inf")}],
    "sensor_metrics.average.finite": [{"average": float("nan")}],
    "trade_metrics.average.finite": [{"average": float("inf")}],
    **{f"{table}.reasons.there": [{"reasons": []}, {"reasons": None}] for table in TABLES if "quarantine" in table},
}


def schema_of(table: str) -> pa.Schema:
    module, output, _ = TABLES[table]
    return to_arrow_schema(import_module(f"spark_jobs.{module}").OUTPUTS[output], timezone="UTC")


def rows_of(table: str, *changes: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**TABLES[table][2], **change} for change in changes], schema=schema_of(table))


def broken(table: str, expectation: Any) -> pa.Table:
    """Return the good row, and rows that break an expectation."""
    arguments, column = expectation.arguments, expectation.arguments.get("column")
    if expectation.meta.id in QUERIES:
        return rows_of(table, {}, *QUERIES[expectation.meta.id])
    kind = expectation.type
    if kind == "expect_column_values_to_not_be_null":
        return rows_of(table, {}, {column: None})
    if kind == "expect_column_values_to_be_between":
        ends = [(arguments.get("min_value"), -1), (arguments.get("max_value"), 1)]
        return rows_of(table, {}, *({column: end + step} for end, step in ends if end is not None))
    if kind == "expect_column_values_to_be_in_set":
        return rows_of(table, {}, {column: "another"})
    if kind in ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"):
        return rows_of(table, {}, {})
    if kind == "expect_column_pair_values_a_to_be_greater_than_b":
        a, b = arguments["column_A"], arguments["column_B"]
        good = TABLES[table][2]
        step = good[b] - good[a]
        return rows_of(table, {}, {a: good[b] - abs(step) if step else good[b] - 1})
    good = rows_of(table, {})
    if kind == "expect_table_columns_to_match_set":
        return good.drop_columns([arguments["column_set"][-1]])
    assert kind == "expect_column_values_to_be_of_type"
    index = good.schema.names.index(column)
    return good.set_column(index, column, good[column].cast(pa.float64()))


@pytest.fixture(scope="module")
def checker() -> ArrowChecker:
    return ArrowChecker(examples=1)


def results(checker: ArrowChecker, table: str, rows: pa.Table) -> dict[str, Any]:
    suite = SUITES[table]
    built = engine.build(suite, EXPECTATIONS / f"{table}.json")
    return {item.id: item for item in checker.run(suite, built, rows, rows.num_rows)}


def cases() -> Iterator[Any]:
    for table in sorted(TABLES):
        for expectation in SUITES[table].expectations:
            yield pytest.param(table, expectation, id=expectation.meta.id)


def test_every_shipped_suite_is_tested():
    assert set(TABLES) | set(BAD_ROWS) == set(SUITES)
    assert REFUSED.names == ["source", "raw", "reasons"]
    assert all(suite.meta.owner and suite.notes for suite in SUITES.values())


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_good_row_meets_every_expectation(checker, table):
    found = results(checker, table, rows_of(table, {}))
    assert [item.summary() for item in found.values() if not item.success] == []


@pytest.mark.parametrize(("table", "expectation"), cases())
def test_an_expectation_finds_what_breaks_it(checker, table, expectation):
    alone = SUITES[table].model_copy(update={"expectations": (expectation,)})
    rows = broken(table, expectation)
    (found,) = checker.run(alone, engine.build(alone, EXPECTATIONS / f"{table}.json"), rows, rows.num_rows)
    assert found.error is None
    assert not found.success
