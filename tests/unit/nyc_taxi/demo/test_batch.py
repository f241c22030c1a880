"""The batch computations: against the job's own parser, by hand, and that a comparison finds what differs."""

from __future__ import annotations

import gzip
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nyc_taxi.demo.batch import (
    compare_card_sessions,
    compare_quarantine,
    compare_trips,
    compare_zone_windows,
    expected_card_sessions,
    expected_quarantine,
    expected_trips,
    expected_zone_windows,
    read_landed,
)

from spark_jobs.ingest_trips import Options, rules_of
from spark_jobs.trip_files import read_file
from tests.conftest import TripMaker
from tests.landed import describe

pytestmark = pytest.mark.unit

EARLIEST, LATEST = datetime(2023, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
RULES = rules_of(Options(earliest=EARLIEST, latest=LATEST))


def by_the_job(files: list[Path]) -> tuple[pa.Table, pa.Table]:
    parts = [batch for path in files for batch in read_file(describe(path), RULES)]
    rows = pa.Table.from_batches(parts)
    return rows.filter(pc.is_null(rows["reasons"])), rows.filter(pc.is_valid(rows["reasons"]))


@pytest.fixture
def landing(tmp_path: Path, make_trips: TripMaker) -> list[Path]:
    """Files of both schemas, with every kind of bad row, and some that are no trips."""
    day = datetime(2023, 3, 8)
    tables = {
        "a": make_trips(200),
        "b": make_trips(200, schema="2025", seed=2, cards=0),
        "c": make_trips(
            6,
            PULocationID=pa.array([0, None, 266, 7, 7, 7]),
            total_amount=[1.0, math.nan, math.inf, 1e10, 2.0, 3.0],
            lpep_pickup_datetime=[day, None, day, datetime(2008, 1, 1), day, day],
            lpep_dropoff_datetime=[day, day, datetime(2020, 1, 1), day, day, None],
            passenger_count=[1.0, 1.5, math.nan, None, 2.0, 3.0],
        ),
        "d": make_trips(
            4,
            PULocationID=["7", "7.0", "7.5", "x"],
            fare_amount=["1.5", "inf", "x", None],
            lpep_pickup_datetime=["2023-03-08 00:00:00", "2023-03-08T00:00:00", "x", None],
        ),
        "foreign": pa.table({"a": [1]}),
        "none": make_trips(1).slice(0, 0),
    }
    paths = []
    for name, table in tables.items():
        paths.append(tmp_path / f"{name}.parquet")
        pq.write_table(table, paths[-1])
    trips = [*make_trips(20, seed=5).to_pylist(), *make_trips(20, seed=7).to_pylist()]
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in trips]
    said, more = lines[:20], lines[20:]
    header = ",".join(name.title() for name in trips[0])
    old = make_trips(7, seed=6).rename_columns([f"{name.upper()} " for name in trips[0]])
    pq.write_table(old, tmp_path / "old.parquet")
    paths.append(tmp_path / "old.parquet")
    doubled = make_trips(7, seed=6).append_column("EXTRA", pa.array(range(7)))
    pq.write_table(doubled, tmp_path / "doubled.parquet")
    paths.append(tmp_path / "doubled.parquet")
    spelled = make_trips(7, seed=6).rename_columns([name.replace("trip_type", "Trip Type") for name in trips[0]])
    pq.write_table(spelled, tmp_path / "spelled.parquet")
    paths.append(tmp_path / "spelled.parquet")
    for name, content in {
        "text.csv": b"a,b\n1,2\n",
        "trips.csv": "\n".join([header, *said[:10], "1,2", "", *said[10:], said[0] + ",3"]).encode(),
        "trips.csv.gz": gzip.compress("\n".join([header, *more]).replace(",7,", ",x,").encode()),
        "empty.csv": b"",
        "readme.txt": b"a,b\n1,2\n",
        "cut.parquet": (tmp_path / "a.parquet").read_bytes()[:-20],
    }.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    return paths


def test_it_agrees_with_the_job_on_every_row(landing: list[Path]) -> None:
    trips, quarantine = by_the_job(landing)
    expected = expected_trips(landing, earliest=EARLIEST, latest=LATEST)
    reasons = expected_quarantine(landing, earliest=EARLIEST, latest=LATEST)
    assert str(compare_trips(expected, trips)) == f"trips: equal, {trips.num_rows} rows"
    difference = compare_quarantine(reasons, quarantine)
    assert difference.equal, str(difference)
    assert len(reasons) >= 8 and sum(reasons.values()) == quarantine.num_rows


def test_it_agrees_with_the_job_on_real_months(data_dir: Path) -> None:
    files = sorted(data_dir.glob("green_tripdata_*.parquet"))
    trips, quarantine = by_the_job(files)
    landed = read_landed(files, earliest=EARLIEST, latest=LATEST)
    assert compare_trips(landed.trips, trips).equal
    assert compare_quarantine(landed.quarantine, quarantine).equal
    assert landed.duplicates == 0


def test_hidden_files_are_no_files(tmp_path: Path, make_trips: TripMaker) -> None:
    for name in (".a.parquet", "_a.parquet"):
        pq.write_table(make_trips(3), tmp_path / name)
    landed = read_landed(tmp_path.iterdir(), earliest=EARLIEST, latest=LATEST)
    assert (landed.trips.num_rows, landed.quarantine) == (0, {})


def test_of_one_trip_delivered_twice_the_first_stays(tmp_path: Path, make_trips: TripMaker) -> None:
    first = make_trips(5)
    again = first.set_column(first.schema.get_field_index("tip_amount"), "tip_amount", pa.array([9.0] * 5))
    for name, table in (("b", again), ("a", pa.concat_tables([first, first]))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    landed = read_landed(tmp_path.iterdir(), earliest=EARLIEST, latest=LATEST)
    assert landed.duplicates == 10
    assert landed.trips.select(["source_file", "source_row", "tip_amount"]).to_pylist() == [
        {"source_file": "a.parquet", "source_row": row, "tip_amount": 0.0} for row in range(5)
    ]


def trips(*rows: tuple[str, int, int | None, float | None, float | None, str | None]) -> pa.Table:
    """Make trips of (pickup, zone, dropoff zone, fare, total, card)."""
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {
            "lpep_pickup_datetime": pa.array(
                [datetime.fromisoformat(f"2023-03-08T{time}+00:00") for time in columns[0]], pa.timestamp("us", "UTC")
            ),
            "PULocationID": pa.array(columns[1], pa.int32()),
            "DOLocationID": pa.array(columns[2], pa.int32()),
            "fare_amount": pa.array(columns[3], pa.float64()),
            "total_amount": pa.array(columns[4], pa.float64()),
            "card_id": pa.array(columns[5], pa.string()),
        }
    )


def test_windows_by_hand() -> None:
    found = expected_zone_windows(
        trips(
            ("00:00:00", 7, 1, 0.1, 0.1, None),
            ("00:59:59.999999", 7, 1, 0.2, 0.2, None),
            ("01:00:00", 7, 1, None, None, None),
            ("00:30:00", 8, 1, -3.0, -4.125, None),
        )
    )
    start, end = datetime(2023, 3, 8), datetime(2023, 3, 8, 1)
    names = ["window_start", "window_end", "zone_id", "trips", "revenue", "average_fare"]
    assert found.schema.names == names
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (start, end, 7, 2, Decimal("0.30"), 0.15),
        (start, end, 8, 1, Decimal("-4.13"), -3.0),
        (end, datetime(2023, 3, 8, 2), 7, 1, Decimal("0.00"), None),
    ]


def test_sessions_by_hand() -> None:
    found = expected_card_sessions(
        trips(
            ("00:00:00", 7, 1, 0, 0.1, "a"),
            ("00:30:00", 7, None, 0, 0.2, "a"),
            ("01:00:00.000001", 9, 9, 0, 5.0, "a"),
            ("00:00:00", 3, 3, 0, 1.0, "b"),
            ("00:00:00", 3, 4, 0, None, "b"),
            ("00:10:00", 3, 3, 0, 1.0, None),
        )
    )
    at = datetime(2023, 3, 8)
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("a", at, at.replace(minute=30), 2, Decimal("0.30"), [1, 7]),
        ("a", at.replace(hour=1, microsecond=1), at.replace(hour=1, microsecond=1), 1, Decimal("5.00"), [9]),
        ("b", at, at, 2, Decimal("1.00"), [3, 4]),
    ]


def test_a_comparison_finds_what_differs() -> None:
    rows = trips(*((f"{hour:02d}:00:00", 7, 1, 1.0, 1.0, "a") for hour in range(20)))
    windows = expected_zone_windows(rows)
    assert compare_zone_windows(windows, windows.take(pa.array(range(19, -1, -1)))).equal
    aware = windows.set_column(0, "window_start", windows["window_start"].cast(pa.timestamp("us", "UTC")))
    assert compare_zone_windows(windows, aware).equal

    changed = windows["average_fare"].to_pylist()
    changed[3] = math.nextafter(changed[3], 2)
    actual = windows.set_column(5, "average_fare", pa.array(changed))
    actual = pa.concat_tables([actual.slice(1), actual.slice(5, 1)])
    difference = compare_zone_windows(windows, actual)
    assert (difference.missing, difference.extra, difference.different) == (1, 1, 1)
    assert (difference.expected, difference.actual, difference.equal) == (20, 20, False)
    assert "1.0000000000000002" in str(difference) and "window_start=2023-03-08 00:00:00" in str(difference)

    sessions = expected_card_sessions(rows)
    assert compare_card_sessions(sessions, sessions).equal
    assert compare_card_sessions(sessions, sessions.slice(0, 0)).missing == 20
    assert compare_card_sessions(sessions.slice(0, 0), sessions).extra == 20


def test_a_comparison_of_the_quarantine_ignores_messages() -> None:
    actual = pa.table({"reasons": [["FILE_UNREADABLE: cut off"], ["NO_PICKUP_TIME"], ["NO_PICKUP_TIME"]]})
    assert compare_quarantine({("FILE_UNREADABLE",): 1, ("NO_PICKUP_TIME",): 2}, actual).equal
    difference = compare_quarantine({("FILE_FOREIGN",): 1, ("NO_PICKUP_TIME",): 1}, actual)
    assert (difference.missing, difference.extra) == (1, 2)
    assert "NO_PICKUP_TIME: 1 expected, 2 found" in str(difference)
