"""Compute the tables of ``zone_running_stats`` and ``card_statistics`` with DuckDB; no code is shared with the jobs."""

from __future__ import annotations

import pyarrow as pa

from nyc_taxi.demo.compare import Difference, compare_rows, duckdb_memory, in_cents, sum_in_dollars, without_zones

__all__ = [
    "compare_card_statistics",
    "compare_zone_running_stats",
    "expected_card_statistics",
    "expected_zone_running_stats",
]


def expected_zone_running_stats(trips: pa.Table) -> pa.Table:
    """Return the expected rows of ``zone_running_stats`` after all rows of ``trips``."""
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        return db.sql(
            f"""
            SELECT PULocationID AS zone_id, count(*) AS trips, {sum_in_dollars("total_amount")} AS revenue,
                   CAST(sum({in_cents("fare_amount")}) AS DOUBLE) / (nullif(count(fare_amount), 0) * 100.0)
                       AS average_fare,
                   max(lpep_pickup_datetime) AS last_activity
            FROM trips GROUP BY PULocationID ORDER BY PULocationID
            """
        ).to_arrow_table()


def expected_card_statistics(trips: pa.Table) -> pa.Table:
    """Return the expected rows of ``card_statistics`` after all rows of ``trips``, if no card was forgotten."""
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        return db.sql(
            f"""
            WITH valid AS (SELECT * FROM trips WHERE card_id IS NOT NULL AND lpep_pickup_datetime IS NOT NULL),
            visited AS (
                SELECT card_id, PULocationID AS zone FROM valid GROUP BY card_id, PULocationID
                QUALIFY row_number() OVER (PARTITION BY card_id ORDER BY count(*) DESC, PULocationID) = 1
            )
            SELECT card_id, count(*) AS visits, {sum_in_dollars("total_amount")} AS spending,
                   any_value(visited.zone) AS favourite_zone,
                   min(lpep_pickup_datetime) AS first_activity, max(lpep_pickup_datetime) AS last_activity
            FROM valid JOIN visited USING (card_id) GROUP BY card_id ORDER BY card_id
            """
        ).to_arrow_table()


def compare_zone_running_stats(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare statistics of zones."""
    columns = ["zone_id", "trips", "revenue", "average_fare", "last_activity"]
    return compare_rows("zone_running_stats", expected, actual, ("zone_id",), columns)


def compare_card_statistics(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare statistics of cards."""
    columns = ["card_id", "visits", "spending", "favourite_zone", "first_activity", "last_activity"]
    return compare_rows("card_statistics", expected, actual, ("card_id",), columns)
