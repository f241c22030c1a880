"""Compute the tables of the leaderboard, the feature vectors and the rolling metrics with DuckDB.

No code is shared with ``spark_jobs/``.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from nyc_taxi.demo.compare import Difference, compare_rows, duckdb_memory, sum_in_dollars, without_zones

__all__ = [
    "compare_rolling_alerts",
    "compare_rolling_windows",
    "compare_zone_features",
    "compare_zone_leaderboard",
    "expected_rolling_alerts",
    "expected_rolling_windows",
    "expected_zone_features",
    "expected_zone_leaderboard",
]

_WINDOWS = ("key", "window_start", "window_end", "events", "average", "weighted_average", "least", "greatest")
_ALERTS = ("key", "at", "change", "average")


def expected_zone_leaderboard(trips: pa.Table, *, window: timedelta = timedelta(hours=1), places: int = 10) -> pa.Table:
    """Return the busiest zones of each window, if no trip is late, without ``is_closed``."""
    seconds = window // timedelta(seconds=1)
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        return db.sql(
            f"""
            WITH counted AS (
                SELECT time_bucket(INTERVAL {seconds} SECONDS, lpep_pickup_datetime, TIMESTAMP '1970-01-01')
                           AS window_start, PULocationID AS zone_id, count(*) AS trips
                FROM trips WHERE PULocationID IS NOT NULL AND lpep_pickup_datetime IS NOT NULL GROUP BY ALL
            )
            SELECT window_start, CAST(row_number() OVER w AS INTEGER) AS rank, zone_id, trips FROM counted
            WINDOW w AS (PARTITION BY window_start ORDER BY trips DESC, zone_id) QUALIFY rank <= {places}
            """
        ).to_arrow_table()


def compare_zone_leaderboard(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare boards, except ``is_closed``, which depends on the time of the read."""
    columns = ["window_start", "rank", "zone_id", "trips"]
    return compare_rows("zone_leaderboard", expected, actual, columns[:2], columns)


def expected_zone_features(trips: pa.Table, as_of: pa.Table, *, step: timedelta = timedelta(minutes=10)) -> pa.Table:
    """Return the vectors of zones at given moments.

    Parameters
    ----------
    trips
        All trips.
    as_of
        ``zone_id`` and ``as_of``: for which moment a zone's vector is wanted, a multiple of `step`.
    step
        The job's option.
    """
    seconds = step // timedelta(seconds=1)
    periods = ", ".join(
        f"coalesce(sum(trips) FILTER (ends > as_of - INTERVAL {hours} HOURS), 0)::BIGINT AS trips_{hours}h,"
        f" coalesce(sum(revenue) FILTER (ends > as_of - INTERVAL {hours} HOURS), 0)::DECIMAL(18, 2) AS revenue_{hours}h"
        for hours in (1, 6, 24)
    )
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        db.register("wanted", without_zones(as_of))
        return db.sql(
            f"""
            WITH steps AS (
                SELECT PULocationID AS zone_id, count(*) AS trips, {sum_in_dollars("total_amount")} AS revenue,
                       time_bucket(INTERVAL {seconds} SECONDS, lpep_pickup_datetime, TIMESTAMP '1970-01-01')
                           + INTERVAL {seconds} SECONDS AS ends
                FROM trips WHERE PULocationID IS NOT NULL AND lpep_pickup_datetime IS NOT NULL GROUP BY ALL
            )
            SELECT w.zone_id, w.as_of, {periods}
            FROM wanted w LEFT JOIN steps s ON s.zone_id = w.zone_id AND s.ends <= w.as_of GROUP BY ALL
            """
        ).to_arrow_table()


def compare_zone_features(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare all columns."""
    return compare_rows("zone_features", expected, actual, ["zone_id"], expected.column_names)


def expected_rolling_windows(
    events: pa.Table,
    *,
    key: str,
    value: str,
    weight: str | None = None,
    window: timedelta,
    every: timedelta,
) -> pa.Table:
    """Return all windows of a series, if no event is late, without ``is_final``.

    Parameters
    ----------
    events
        With a column ``at``.
    key, value, weight, window, every
        The job's options.
    """
    size, step = (one // timedelta(microseconds=1) for one in (window, every))
    # As whole ten-thousandths: sums of doubles depend on their order.
    number = "CAST(round({} * 10000) AS BIGINT)"
    heavy = weight or "1.0"
    weighted = (
        "CASE WHEN sum(w) > 0 THEN CAST(sum(vw) AS DOUBLE) / CAST(sum(w) AS DOUBLE) END" if weight else "NULL::DOUBLE"
    )
    with duckdb_memory() as db:
        db.register("events", without_zones(events))
        return db.sql(
            f"""
            WITH placed AS (
                SELECT {key} AS key, {number.format(value)} AS v, {number.format(heavy)} AS w,
                       {number.format(f"{value} * {heavy}")} AS vw, epoch_us("at") AS micros,
                       unnest(range(0, {size}, {step})) AS back, micros - micros % {step} - back AS start
                FROM events
            )
            SELECT key, make_timestamp(start) AS window_start, make_timestamp(start + {size}) AS window_end,
                   count(*) AS events, CAST(sum(v) AS DOUBLE) / (count(*) * 10000.0) AS average,
                   {weighted} AS weighted_average, min(v) / 10000.0 AS least, max(v) / 10000.0 AS greatest
            FROM placed GROUP BY key, start
            """
        ).to_arrow_table()


def compare_rolling_windows(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare windows, except ``is_final``, which depends on the time of the read."""
    return compare_rows("rolling windows", expected, actual, _WINDOWS[:2], _WINDOWS)


def expected_rolling_alerts(windows: pa.Table, *, high: float, low: float) -> pa.Table:
    """Return the alerts that windows give, one after the other.

    Parameters
    ----------
    windows
        Ended windows, as :func:`expected_rolling_windows` returns them.
    high, low
        The job's options.
    """
    with duckdb_memory() as db:
        db.register("windows", without_zones(windows))
        return db.sql(
            f"""
            WITH said AS (
                SELECT key, window_end AS "at", coalesce(weighted_average, average) AS average,
                       CASE WHEN average > {high} THEN true WHEN average < {low} THEN false END AS verdict
                FROM (SELECT * REPLACE (coalesce(weighted_average, average) AS average) FROM windows)
            ), stated AS (
                SELECT *, coalesce(last_value(verdict IGNORE NULLS) OVER w, false) AS raised FROM said
                WINDOW w AS (PARTITION BY key ORDER BY "at" ROWS UNBOUNDED PRECEDING)
            ), followed AS (
                SELECT *, coalesce(lag(raised) OVER (PARTITION BY key ORDER BY "at"), false) AS before FROM stated
            )
            SELECT key, "at", CASE WHEN raised THEN 'raised' ELSE 'ended' END AS change, average
            FROM followed WHERE raised != before
            """
        ).to_arrow_table()


def compare_rolling_alerts(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare all columns."""
    return compare_rows("rolling alerts", expected, actual, _ALERTS[:3], _ALERTS)
