"""Times of every type, in zones and without, and clocks that are put back and forward."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spark_jobs.ingest_trips import Options, rules_of
from spark_jobs.parquet_files import _exact
from spark_jobs.trip_files import read_file
from spark_jobs.trip_rules import PARSED
from spark_jobs.trip_times import read_times
from tests.conftest import TripMaker
from tests.landed import describe

pytestmark = pytest.mark.unit

PICKUP, DROPOFF = "lpep_pickup_datetime", "lpep_dropoff_datetime"
NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read(path: Path, table: pa.Table, *, time_zone: str = "UTC", **options: Any) -> pa.Table:
    pq.write_table(table, path, **options)
    rules = rules_of(Options(earliest="2023-01-01", latest="2026-01-01", time_zone=time_zone))
    return pa.Table.from_batches(read_file(describe(path), rules), PARSED)


@pytest.fixture
def trip(tmp_path: Path, make_trips: TripMaker) -> Any:
    """Return what becomes of a trip's times, and its reasons."""

    def read_one(pickup: Any, dropoff: Any, **options: Any) -> tuple[Any, Any, Any]:
        columns = {
            name: value if isinstance(value, pa.Array) else pa.array([value])
            for name, value in ((PICKUP, pickup), (DROPOFF, dropoff))
        }
        (row,) = read(tmp_path / "f.parquet", make_trips(1, **columns), **options).to_pylist()
        return row[PICKUP], row[DROPOFF], row["reasons"]

    return read_one


@pytest.mark.parametrize(
    ("pickup", "dropoff", "in_utc"),
    [
        ("2025-07-01 12:00:00", "2025-07-01 12:10:00", ("2025-07-01T16:00:00Z", "2025-07-01T16:10:00Z")),
        ("2025-01-01 12:00:00", "2025-01-01 12:10:00", ("2025-01-01T17:00:00Z", "2025-01-01T17:10:00Z")),
        # Over the hour that is there twice.
        ("2025-11-02 01:50:00", "2025-11-02 01:10:00", ("2025-11-02T05:50:00Z", "2025-11-02T06:10:00Z")),
        ("2025-11-02 00:50:00", "2025-11-02 01:10:00", ("2025-11-02T04:50:00Z", "2025-11-02T05:10:00Z")),
        ("2025-11-02 01:10:00", "2025-11-02 01:50:00", ("2025-11-02T05:10:00Z", "2025-11-02T05:50:00Z")),
        ("2025-11-02 01:50:00", "2025-11-02 02:10:00", ("2025-11-02T05:50:00Z", "2025-11-02T07:10:00Z")),
        # Over the one that is not there.
        ("2025-03-09 01:50:00", "2025-03-09 03:10:00", ("2025-03-09T06:50:00Z", "2025-03-09T07:10:00Z")),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_clock_times_of_new_york(trip: Any, pickup: str, dropoff: str, in_utc: tuple[str, str], as_text: bool) -> None:
    given = (pickup, dropoff) if as_text else (at(pickup), at(dropoff))
    assert trip(*given, time_zone=NEW_YORK) == (at(in_utc[0]), at(in_utc[1]), None)


def test_by_default_clock_times_are_taken_as_they_stand(trip: Any) -> None:
    given = at("2025-11-02 01:50:00"), at("2025-11-02 01:10:00")
    stand = tuple(time.replace(tzinfo=UTC) for time in given)
    assert trip(*given) == (*stand, ["DROPOFF_BEFORE_PICKUP"])


def test_a_time_that_no_clock_shows(trip: Any) -> None:
    skipped = at("2025-03-09 02:30:00")
    assert trip(skipped, at("2025-03-09 03:30:00"), time_zone=NEW_YORK) == (
        None,
        at("2025-03-09T07:30:00Z"),
        [f"UNPARSABLE:{PICKUP}"],
    )
    assert trip(skipped, skipped)[2] is None


def test_an_end_before_the_begin_stays_one(trip: Any) -> None:
    assert trip(at("2025-11-02 01:50:00"), at("2025-11-02 00:50:00"), time_zone=NEW_YORK)[2] == [
        "DROPOFF_BEFORE_PICKUP"
    ]
    assert trip(pa.array([None], pa.timestamp("us")), at("2025-11-02 01:10:00"), time_zone=NEW_YORK)[1:] == (
        at("2025-11-02T05:10:00Z"),
        ["NO_PICKUP_TIME"],
    )


@pytest.mark.parametrize("time_zone", ["UTC", NEW_YORK, "Asia/Tokyo"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_with_a_zone_is_an_instant_wherever_it_is_read(trip: Any, time_zone: str, unit: str) -> None:
    moment = at("2025-11-02T06:10:00Z")
    zoned = [pa.array([moment], pa.timestamp(unit, zone)) for zone in ("UTC", NEW_YORK)]
    assert trip(*zoned, time_zone=time_zone) == (moment, moment, None)
    assert trip(*zoned, time_zone=time_zone, store_schema=False) == (moment, moment, None)
    assert trip("2025-11-02T06:10:00Z", "2025-11-02T01:10:00-05:00", time_zone=time_zone) == (moment, moment, None)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.sampled_from([NEW_YORK, "Australia/Lord_Howe"]))
def test_clock_times_agree_with_python(time: datetime, zone: str) -> None:
    earlier, later = (column[0].as_py() for column in read_times(pa.array([time], pa.timestamp("us")), zone))
    expected = [time.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for fold in (0, 1)]
    if expected[0] > expected[1]:  # Skipped.
        assert earlier is later is None
    else:
        assert [earlier, later] == expected


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.sampled_from(["T", " "]))
def test_text_says_what_its_time_says(time: datetime, between: str) -> None:
    texts = [time.isoformat(between), time.isoformat(between) + "+00:00", f" {time.isoformat(between)}"]
    for column in (texts, texts[:1]):
        found, _ = read_times(pa.array(column), "UTC")
        assert found.to_pylist() == [time.replace(tzinfo=UTC)] * len(column)


def test_times_of_96_bits_beyond_64_bits_of_nanoseconds(tmp_path: Path, make_trips: TripMaker) -> None:
    given = [at("2023-03-08T01:02:03.123456"), at("3000-01-01T00:00:00.000001"), at("1500-06-01T12:00:00"), None]
    table = make_trips(4, **{PICKUP: pa.array(given, pa.timestamp("us")), DROPOFF: pa.array(given, pa.timestamp("us"))})
    found = read(tmp_path / "f.parquet", table, use_deprecated_int96_timestamps=True)
    assert found[PICKUP].to_pylist() == [time and time.replace(tzinfo=UTC) for time in given]
    assert found["reasons"].to_pylist() == [
        None, ["PICKUP_OUT_OF_BOUNDS"], ["PICKUP_OUT_OF_BOUNDS"], ["NO_PICKUP_TIME"]
    ]  # fmt: skip
    assert json.loads(found["raw"][1].as_py())[PICKUP] == "3000-01-01 00:00:00.000001"
    assert json.loads(found["raw"][2].as_py())[DROPOFF].startswith("1500-06-01 12:00:00")


@pytest.mark.parametrize("beside", ["2023-03-08T01:02:03", "3000-01-01T00:00:00"])
def test_times_of_96_bits_keep_their_nanoseconds(tmp_path: Path, make_trips: TripMaker, beside: str) -> None:
    # The first by its nanoseconds, the second by another file's row: pyarrow writes no column with both.
    nanos = pa.array([1_678_237_323_000_000_001], pa.timestamp("ns"))
    parts = [make_trips(1, **{PICKUP: nanos}), make_trips(1, **{PICKUP: pa.array([at(beside)], pa.timestamp("us"))})]
    read_as: dict[str, list[pa.Array]] = {}
    for table in parts:
        pq.write_table(table, tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
        for unit in ("ns", "us"):
            column = pq.read_table(tmp_path / "f.parquet", coerce_int96_timestamp_unit=unit)[PICKUP]
            read_as.setdefault(unit, []).append(column.combine_chunks())
    exact = _exact(pa.concat_arrays(read_as["ns"]), pa.concat_arrays(read_as["us"]))
    assert exact.cast(pa.string()).to_pylist()[0] == "2023-03-08 01:02:03.000000001"
    found, _ = read_times(exact, "UTC")
    assert found.to_pylist() == [None, at(beside).replace(tzinfo=UTC)]


@pytest.mark.parametrize("name", ["New York", "", "America", "EST5EDT4", "../UTC"])
def test_the_zone_must_be_known(name: str) -> None:
    with pytest.raises(ValidationError, match="time zone"):
        Options(earliest="2023-01-01", latest="2024-01-01", time_zone=name)


def test_a_year_of_hours_has_one_gap_and_one_hour_twice() -> None:
    hours = [datetime(2025, 1, 1, 0, 30) + timedelta(hours=hour) for hour in range(365 * 24)]
    earlier, later = read_times(pa.array(hours, pa.timestamp("us")), NEW_YORK)
    twice = [
        hour
        for hour, first, second in zip(hours, earlier.to_pylist(), later.to_pylist(), strict=True)
        if first != second
    ]
    assert twice == [datetime(2025, 11, 2, 1, 30)]
    assert [hour for hour, first in zip(hours, earlier.to_pylist(), strict=True) if first is None] == [
        datetime(2025, 3, 9, 2, 30)
    ]
