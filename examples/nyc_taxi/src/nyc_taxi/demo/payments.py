"""Compute the table of ``trip_payments`` with DuckDB; no code is shared with ``spark_jobs/``."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from nyc_taxi.demo.compare import Difference, compare_rows, duckdb_memory, without_zones

__all__ = ["compare_trip_payments", "expected_trip_payments"]

_COLUMNS = (
    "card_id",
    "lpep_pickup_datetime",
    "lpep_dropoff_datetime",
    "total_amount",
    "payment_id",
    "paid",
    "method",
    "settled_at",
    "outcome",
)
_JOINS = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL"}


def expected_trip_payments(
    trips: pa.Table, payments: pa.Table, *, join: str = "full", settles_within: timedelta = timedelta(hours=4)
) -> pa.Table:
    """Return the expected rows if nothing is late and nothing waits any more.

    Parameters
    ----------
    trips, payments
        Rows of both tables, without implausible ones.
    join, settles_within
        The job's options.
    """
    seconds = settles_within // timedelta(seconds=1)
    money = "CAST(CAST(round({} * 100) AS BIGINT) AS DECIMAL(18, 0)) * CAST(0.01 AS DECIMAL(3, 2))"
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        db.register("payments", without_zones(payments))
        return db.sql(
            f"""
            SELECT coalesce(t.card_id, p.card_id) AS card_id,
                   coalesce(t.lpep_pickup_datetime, p.lpep_pickup_datetime) AS lpep_pickup_datetime,
                   coalesce(t.lpep_dropoff_datetime, p.lpep_dropoff_datetime) AS lpep_dropoff_datetime,
                   CAST({money.format("t.total_amount")} AS DECIMAL(18, 2)) AS total_amount,
                   p.payment_id, CAST({money.format("p.amount")} AS DECIMAL(18, 2)) AS paid, p.method, p.settled_at,
                   CASE WHEN t.card_id IS NULL THEN 'no_trip' WHEN p.card_id IS NULL THEN 'no_payment' ELSE 'paid' END
                       AS outcome
            FROM (FROM trips WHERE card_id IS NOT NULL) t {_JOINS[join]} JOIN payments p
            ON t.card_id = p.card_id AND t.lpep_pickup_datetime = p.lpep_pickup_datetime
               AND t.lpep_dropoff_datetime = p.lpep_dropoff_datetime
               AND p.settled_at BETWEEN t.lpep_pickup_datetime AND t.lpep_pickup_datetime + INTERVAL {seconds} SECONDS
            """
        ).to_arrow_table()


def compare_trip_payments(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare all columns."""
    return compare_rows("trip_payments", expected, actual, _COLUMNS, _COLUMNS)
