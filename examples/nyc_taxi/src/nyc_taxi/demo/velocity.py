"""Compute the tables of ``card_velocity`` with DuckDB; no code is shared with ``spark_jobs/``."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from nyc_taxi.demo.compare import EXAMPLES, Difference, compare_rows, duckdb_memory, sum_in_dollars, without_zones

__all__ = ["compare_card_alerts", "compare_card_velocity", "expected_card_velocity"]

_KEYS = ("card_id", "window_start")


def expected_card_velocity(
    trips: pa.Table,
    *,
    window: timedelta = timedelta(minutes=5),
    every: timedelta = timedelta(minutes=1),
    window_trips: int = 2,
) -> pa.Table:
    """Return the expected rows of ``card_velocity`` if no trip is late, without ``is_final``.

    Parameters
    ----------
    trips
        Rows of ``trips``; rows without a card are ignored.
    window, every, window_trips
        The job's options. `window` is a multiple of `every`.
    """
    size, step = (one // timedelta(microseconds=1) for one in (window, every))
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        return db.sql(
            f"""
            WITH placed AS (
                SELECT *, epoch_us(lpep_pickup_datetime) AS micros,
                       unnest(range(0, {size}, {step})) AS back,
                       micros - ((micros % {step}) + {step}) % {step} - back AS start
                FROM trips WHERE card_id IS NOT NULL AND lpep_pickup_datetime IS NOT NULL
            )
            SELECT card_id, make_timestamp(start) AS window_start, make_timestamp(start + {size}) AS window_end,
                   count(*) AS trips, {sum_in_dollars("total_amount")} AS total_amount
            FROM placed GROUP BY card_id, start HAVING count(*) >= {window_trips} ORDER BY card_id, start
            """
        ).to_arrow_table()


def compare_card_velocity(expected: pa.Table, actual: pa.Table) -> Difference:
    """Compare windows, except ``is_final``, which depends on the time of the read."""
    columns = ["card_id", "window_start", "window_end", "trips", "total_amount"]
    return compare_rows("card_velocity", expected, actual, _KEYS, columns)


def compare_card_alerts(
    trips: pa.Table, alerts: pa.Table, *, burst: int = 5, within: timedelta = timedelta(minutes=3)
) -> Difference:
    """Compare alerts with the episodes of all trips.

    Which trip of an episode gives the alert depends on the order of arrival, and two episodes that a late trip joins
    have had an alert each. So `missing` are episodes without an alert, and `extra` are alerts that are a repetition or
    lie at no hot trip.

    Parameters
    ----------
    trips
        Rows of ``trips``; rows without a card are ignored.
    alerts
        Rows of ``card_alerts``: ``card_id``, ``alert_at``.
    burst, within
        The job's options ``trips`` and ``within``.
    """
    micros = within // timedelta(microseconds=1)
    with duckdb_memory() as db:
        db.register("trips", without_zones(trips))
        db.register("alerts", without_zones(alerts.select(["card_id", "alert_at"])))
        db.execute(
            f"""
            CREATE TABLE hot AS
            WITH counted AS (
                SELECT card_id, epoch_us(lpep_pickup_datetime) AS micros, count(*) OVER (
                    PARTITION BY card_id ORDER BY epoch_us(lpep_pickup_datetime)
                    RANGE BETWEEN {micros} PRECEDING AND CURRENT ROW
                ) AS trips
                FROM trips WHERE card_id IS NOT NULL AND lpep_pickup_datetime IS NOT NULL
            ), hot AS (SELECT DISTINCT card_id, micros FROM counted WHERE trips >= {burst}
            ), first AS (
                SELECT *, coalesce(micros - lag(micros) OVER card > {micros}, true) AS begins
                FROM hot WINDOW card AS (PARTITION BY card_id ORDER BY micros)
            )
            SELECT card_id, micros, count(*) FILTER (begins) OVER (PARTITION BY card_id ORDER BY micros) AS episode
            FROM first
            """
        )
        db.execute(
            """
            CREATE TABLE given AS
            SELECT a.card_id, epoch_us(a.alert_at) AS micros, h.episode,
                   row_number() OVER (PARTITION BY a.card_id, a.alert_at) AS nth
            FROM alerts a LEFT JOIN hot h ON a.card_id = h.card_id AND epoch_us(a.alert_at) = h.micros
            """
        )
        missing = db.execute(
            "SELECT card_id, make_timestamp(min(micros)) FROM hot"
            " WHERE (card_id, episode) NOT IN (SELECT (card_id, episode) FROM given WHERE episode IS NOT NULL)"
            " GROUP BY card_id, episode ORDER BY 1, 2"
        ).fetchall()
        extra = db.execute(
            "SELECT card_id, make_timestamp(micros) FROM given WHERE episode IS NULL OR nth > 1 ORDER BY 1, 2"
        ).fetchall()
        (episodes,) = db.execute("SELECT count(DISTINCT (card_id, episode)) FROM hot").fetchone() or (0,)
    return Difference(
        table="card_alerts",
        expected=int(episodes),
        actual=alerts.num_rows,
        missing=len(missing),
        extra=len(extra),
        different=0,
        examples=tuple(
            f"{kind}: card_id={card} at={at}"
            for kind, rows in (("missing", missing), ("extra", extra))
            for card, at in rows
        )[:EXAMPLES],
    )
