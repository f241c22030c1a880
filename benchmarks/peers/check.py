"""Compare a peer's output with a batch computation over the same rows."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

EXPECTED = {
    "windows": """
        SELECT pickup_ms // 3600000 * 3600000 AS start_ms, PULocationID AS zone, count(*) AS trips, sum(cents) AS cents
        FROM trips GROUP BY ALL""",
    "sessions": """
        WITH marked AS (
            SELECT card_id, pickup_ms, cents, coalesce(pickup_ms - lag(pickup_ms) OVER card > 1800000, true) AS begins
            FROM trips WINDOW card AS (PARTITION BY card_id ORDER BY pickup_ms)
        ), numbered AS (
            SELECT *, count(*) FILTER (begins) OVER (
                -- Not ROWS: trips of one moment may be in another order than above.
                PARTITION BY card_id ORDER BY pickup_ms RANGE UNBOUNDED PRECEDING
            ) AS session FROM marked
        ) SELECT card_id AS card, min(pickup_ms) AS start_ms, max(pickup_ms) AS end_ms, count(*) AS trips,
            sum(cents) AS cents FROM numbered GROUP BY card_id, session""",
    "statistics": """
        SELECT PULocationID AS zone, count(*) AS trips, sum(cents) AS cents, max(pickup_ms) AS last_ms
        FROM trips GROUP BY ALL""",
    # Each moment at which a card has had five trips within three minutes.
    "velocity": """
        SELECT DISTINCT card, at_ms, trips FROM (
            SELECT card_id AS card, pickup_ms AS at_ms, count(*) OVER (
                PARTITION BY card_id ORDER BY pickup_ms RANGE BETWEEN 180000 PRECEDING AND CURRENT ROW
            ) AS trips FROM trips
        ) WHERE trips >= 5""",
}

COLUMNS = {
    "windows": ("start_ms", "zone", "trips", "cents"),
    "sessions": ("card", "start_ms", "end_ms", "trips", "cents"),
    "statistics": ("zone", "trips", "cents", "last_ms"),
    "velocity": ("card", "at_ms", "trips"),
}


def check_csv(job: str, rows: pa.Table, folder: Path) -> str:
    """Compare the CSV files of a folder with the batch computation; exit if they differ."""
    files = [str(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))]
    types = {name: "VARCHAR" if name == "card" else "BIGINT" for name in COLUMNS[job]}
    with duckdb.connect() as db:
        if not files:
            db.execute(f"CREATE TABLE found ({', '.join(f'{name} {kind}' for name, kind in types.items())})")
            return compared(db, job, rows)
        columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
        db.execute(f"CREATE TABLE found AS SELECT * FROM read_csv({files}, header=false, columns={{{columns}}})")
        return compared(db, job, rows)


def compared(db: duckdb.DuckDBPyConnection, job: str, rows: pa.Table) -> str:
    """Compare the table `found` with the batch computation; exit if they differ."""
    db.register("trips", rows)
    db.execute(f"CREATE TABLE expected AS {EXPECTED[job]}")
    if job == "velocity":
        # Some forms say it once for each trip of a moment.
        db.execute("CREATE OR REPLACE TABLE found AS SELECT DISTINCT * FROM found")
    if job == "statistics":
        # Each update is there: the last one counts all trips.
        last = "SELECT * FROM found QUALIFY row_number() OVER (PARTITION BY zone ORDER BY trips DESC) = 1"
        db.execute(f"CREATE OR REPLACE TABLE found AS {last}")
    names = ", ".join(COLUMNS[job])
    counts = [
        db.execute(query).fetchone()
        for query in (
            "SELECT count(*) FROM expected",
            f"SELECT count(*) FROM (SELECT {names} FROM expected EXCEPT ALL SELECT {names} FROM found)",
            f"SELECT count(*) FROM (SELECT {names} FROM found EXCEPT ALL SELECT {names} FROM expected)",
        )
    ]
    number, missing, extra = (one[0] for one in counts if one is not None)
    if missing or extra:
        raise SystemExit(f"{job}: of {number:,} rows {missing:,} are missing, and {extra:,} are not expected")
    return f"{number:,} rows equal to batch"
