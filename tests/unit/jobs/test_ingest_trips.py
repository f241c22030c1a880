"""The rules of ingestion, each with a row that breaks it, and files that are none."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from spark_jobs import ingest_trips, trip_files
from spark_jobs.ingest_trips import Options, rules_of
from spark_jobs.schemas import AMOUNTS, TRIP_COLUMNS
from spark_jobs.trip_columns import REQUIRED
from spark_jobs.trip_files import read_file
from spark_jobs.trip_rules import PARSED
from streamwarden.driver.job_api import JobSettings
from streamwarden.errors import StreamwardenError
from tests.conftest import TripMaker
from tests.landed import describe

pytestmark = pytest.mark.unit

RULES = rules_of(Options(earliest="2023-01-01", latest="2024-01-01"))


def write(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def read(content: bytes, name: str = "f.parquet") -> pa.Table:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return pa.Table.from_batches(read_file(describe(path), RULES), PARSED)


def judge(table: pa.Table) -> list[list[str] | None]:
    return read(write(table))["reasons"].to_pylist()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def one(make_trips: TripMaker) -> Any:
    """Return the reasons of one row with these columns replaced; a value is given as an arrow array or bare."""

    def reasons(**columns: Any) -> list[str] | None:
        given = {name: value if isinstance(value, pa.Array) else pa.array([value]) for name, value in columns.items()}
        (found,) = judge(make_trips(1, **given))
        return found

    return reasons


@pytest.mark.parametrize("schema", ["2023", "2025"])
@pytest.mark.parametrize("cards", [0, 5])
def test_valid_rows_of_both_schemas_come_out_typed(make_trips: TripMaker, schema: str, cards: int) -> None:
    landed = make_trips(100, schema=schema, cards=cards)
    found = read(write(landed))
    assert found["reasons"].null_count == found["raw"].null_count == 100
    assert found.schema.names == [*TRIP_COLUMNS, "source_file", "source_row", "raw", "reasons"]
    for name in landed.schema.names:
        assert found[name].to_pylist() == [
            value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in landed[name].to_pylist()
        ]
    assert found["VendorID"].type == found["passenger_count"].type == pa.int32()
    assert found["cbd_congestion_fee"].null_count == (0 if schema == "2025" else 100)
    assert found["card_id"].null_count == (0 if cards else 100)
    assert found["source_row"].to_pylist() == list(range(100))
    assert set(found["source_file"].to_pylist()) == {"f.parquet"}


def test_rows_are_numbered_through_all_batches(make_trips: TripMaker) -> None:
    found = read(write(make_trips(40_000, hours=24 * 7), row_group_size=7_000))
    assert found["source_row"].to_pylist() == list(range(40_000))


@pytest.mark.parametrize(
    ("columns", "reasons"),
    [
        ({"lpep_pickup_datetime": pa.array([None], pa.timestamp("us"))}, ["NO_PICKUP_TIME"]),
        ({"lpep_pickup_datetime": at("2022-12-31T23:59:59.999999")}, ["PICKUP_OUT_OF_BOUNDS"]),
        (
            {"lpep_pickup_datetime": at("2024-01-01T00:00:00"), "lpep_dropoff_datetime": at("2024-01-01T00:05:00")},
            ["PICKUP_OUT_OF_BOUNDS"],
        ),
        ({"lpep_dropoff_datetime": at("2023-03-01T00:00:00")}, ["DROPOFF_BEFORE_PICKUP"]),
        ({"PULocationID": pa.array([None], pa.int64())}, ["NO_PICKUP_ZONE"]),
        ({"PULocationID": 0}, ["ZONE_OUT_OF_RANGE"]),
        ({"PULocationID": 266}, ["ZONE_OUT_OF_RANGE"]),
        ({"PULocationID": -1}, ["ZONE_OUT_OF_RANGE"]),
        ({"DOLocationID": 266}, ["ZONE_OUT_OF_RANGE"]),
        ({"PULocationID": 0, "DOLocationID": 999}, ["ZONE_OUT_OF_RANGE"]),
        ({"PULocationID": 74.5}, ["UNPARSABLE:PULocationID"]),
        ({"PULocationID": 2**31}, ["UNPARSABLE:PULocationID"]),
        ({"passenger_count": 1.5}, ["UNPARSABLE:passenger_count"]),
        ({"passenger_count": math.nan}, ["UNPARSABLE:passenger_count"]),
        ({"passenger_count": "two"}, ["UNPARSABLE:passenger_count"]),
        ({"fare_amount": "ten"}, ["UNPARSABLE:fare_amount"]),
        ({"fare_amount": 2**53 + 1}, ["UNPARSABLE:fare_amount"]),
        ({"lpep_pickup_datetime": "yesterday"}, ["UNPARSABLE:lpep_pickup_datetime"]),
        ({"lpep_pickup_datetime": 1_678_233_600}, ["UNPARSABLE:lpep_pickup_datetime"]),
        ({"store_and_fwd_flag": True}, ["UNPARSABLE:store_and_fwd_flag"]),
        ({"total_amount": math.nan}, ["AMOUNT_NOT_FINITE"]),
        ({"total_amount": -1e9 - 1}, ["AMOUNT_OUT_OF_RANGE"]),
    ],
)
def test_each_rule(one: Any, columns: dict[str, Any], reasons: list[str]) -> None:
    assert one(**columns) == reasons


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_amount_must_be_finite(one: Any, amount: str, value: float) -> None:
    assert one(**{amount: value}) == ["AMOUNT_NOT_FINITE"]


@pytest.mark.parametrize(
    "columns",
    [
        {"lpep_pickup_datetime": at("2023-01-01T00:00:00")},
        {"lpep_pickup_datetime": at("2023-12-31T23:59:59.999999"), "lpep_dropoff_datetime": at("2024-01-01T12:00:00")},
        {"lpep_dropoff_datetime": pa.array([None], pa.timestamp("us"))},
        {"DOLocationID": pa.array([None], pa.int64())},
        {"PULocationID": 1, "DOLocationID": 265},
        {"fare_amount": -12.5, "total_amount": -13.8},
        {"fare_amount": 0.0, "trip_distance": 0.0, "total_amount": pa.array([None], pa.float64())},
        {
            name: pa.array([None], pa.int64())
            for name in ("passenger_count", "payment_type", "RatecodeID", "trip_type", "VendorID")
        },
        {"total_amount": 1e9},
    ],
)
def test_unusual_is_not_invalid(one: Any, columns: dict[str, Any]) -> None:
    assert one(**columns) is None


def test_every_reason_is_given_in_a_fixed_order(make_trips: TripMaker) -> None:
    assert judge(
        make_trips(
            3,
            passenger_count=["2", "x", "3"],
            lpep_pickup_datetime=[at("2023-03-08T10:00:00"), at("2020-01-01T00:00:00"), at("2023-03-08T10:00:00")],
            lpep_dropoff_datetime=[at("2023-03-08T09:00:00"), at("2019-01-01T00:00:00"), at("2023-03-08T10:00:00")],
            PULocationID=pa.array([500, None, 5]),
            tip_amount=[math.inf, math.nan, 0.0],
            total_amount=[1e10, 1.0, 2.0],
        )
    ) == [
        ["DROPOFF_BEFORE_PICKUP", "ZONE_OUT_OF_RANGE", "AMOUNT_NOT_FINITE", "AMOUNT_OUT_OF_RANGE"],
        [
            "UNPARSABLE:passenger_count",
            "PICKUP_OUT_OF_BOUNDS",
            "DROPOFF_BEFORE_PICKUP",
            "NO_PICKUP_ZONE",
            "AMOUNT_NOT_FINITE",
        ],
        None,
    ]


@pytest.mark.parametrize(
    ("column", "given", "expected"),
    [
        ("PULocationID", pa.array([74.0]), 74),
        ("PULocationID", pa.array([74], pa.uint64()), 74),
        ("PULocationID", pa.array([74], pa.uint8()), 74),
        ("PULocationID", pa.array(["74"]), 74),
        ("PULocationID", pa.array(["74.0"], pa.large_string()), 74),
        ("PULocationID", pa.array([Decimal("74.00")]), 74),
        ("PULocationID", pa.array(["74"]).dictionary_encode(), 74),
        ("PULocationID", pa.array([74.0], pa.float32()), 74),
        ("fare_amount", pa.array([12]), 12.0),
        ("fare_amount", pa.array([12], pa.uint64()), 12.0),
        ("fare_amount", pa.array([0.5], pa.float32()), 0.5),
        ("fare_amount", pa.array([Decimal("12.30")]), 12.3),
        ("fare_amount", pa.array(["-12.30"]), -12.3),
        ("lpep_pickup_datetime", pa.array(["2023-03-08 01:02:03"]), at("2023-03-08T01:02:03+00:00")),
        (
            "lpep_pickup_datetime",
            pa.array(["2023-03-08T01:02:03.123456-05:00"]),
            at("2023-03-08T06:02:03.123456+00:00"),
        ),
        ("lpep_pickup_datetime", pa.array([1_678_237_323], pa.timestamp("s")), at("2023-03-08T01:02:03+00:00")),
        ("lpep_pickup_datetime", pa.array([1_678_237_323_000], pa.timestamp("ms")), at("2023-03-08T01:02:03+00:00")),
        ("lpep_pickup_datetime", pa.array([at("2023-03-08T01:02:03")], pa.timestamp("ns")), at("2023-03-08T01:02:03Z")),
        ("lpep_pickup_datetime", pa.array([at("2023-03-08T00:00:00").date()]), at("2023-03-08T00:00:00+00:00")),
        (
            "lpep_pickup_datetime",
            pa.array([at("2023-03-08T01:02:03-05:00")], pa.timestamp("us", "America/New_York")),
            at("2023-03-08T06:02:03+00:00"),
        ),
        ("card_id", pa.array([12345]), "12345"),
        ("card_id", pa.array([b"abc"], pa.binary()), "abc"),
    ],
)
def test_other_types_that_say_the_same_are_read(
    make_trips: TripMaker, column: str, given: pa.Array, expected: Any
) -> None:
    late = pa.array([at("2023-03-09T00:00:00")])
    found = read(write(make_trips(1, **{"lpep_dropoff_datetime": late, column: given})))
    assert found["reasons"].to_pylist() == [None]
    assert found[column].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("PULocationID", pa.array(["7_4"])),
        ("PULocationID", pa.array([""])),
        ("PULocationID", pa.array(["74.5"])),
        ("PULocationID", pa.array([2**40], pa.uint64())),
        ("PULocationID", pa.array([Decimal("1.5")])),
        ("PULocationID", pa.array([True])),
        ("fare_amount", pa.array(["1e999"])),
        ("fare_amount", pa.array([True])),
        ("lpep_pickup_datetime", pa.array([1_678_237_323_000_000_001], pa.timestamp("ns"))),
        ("lpep_pickup_datetime", pa.array(["2023-03-08T01:02:03.1234567"])),
        ("lpep_pickup_datetime", pa.array([2**60], pa.timestamp("ms"))),
        ("lpep_dropoff_datetime", pa.array([2**62], pa.timestamp("us"))),
        ("card_id", pa.array([1.5])),
        ("card_id", pa.array([b"\xff\xfe"], pa.binary())),
        ("card_id", pa.array([["a"]])),
    ],
)
def test_what_would_lose_something_is_unparsable(make_trips: TripMaker, column: str, given: pa.Array) -> None:
    found = read(write(make_trips(1, **{column: given}), store_schema=False))
    assert found["reasons"].to_pylist() == [[f"UNPARSABLE:{column}"]]
    assert json.loads(found["raw"][0].as_py())[column] not in (None, "null")


def test_text_that_is_not_text(make_trips: TripMaker) -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"], pa.binary()).buffers())
    found = read(write(make_trips(2, card_id=broken)))
    assert found["reasons"].to_pylist() == [None, ["UNPARSABLE:card_id"]]
    assert json.loads(found["raw"][1].as_py())["card_id"] == {"base64": "//4="}
    found.validate(full=True)


def test_the_row_is_kept_as_it_came(make_trips: TripMaker) -> None:
    landed = make_trips(
        3,
        PULocationID=[0, 7, 0],
        passenger_count=[1.0, 2.0, math.nan],
        trip_distance=[0.1 + 0.2, 1.0, -0.0],
        fare_amount=[math.nan, 1.0, math.inf],
        tip_amount=[-math.inf, 1.0, 5e-324],
        lpep_pickup_datetime=pa.array([1_678_237_323_000_000_001, 1_678_237_323_000_000_000, None], pa.timestamp("ns")),
        lpep_dropoff_datetime=pa.array([2**62, 1_678_337_323_000_000, -(2**62)], pa.timestamp("us")),
        store_and_fwd_flag=['é"\n', "N", None],
        extra_column=[{"a": [1, None]}, {"a": []}, None],
        amount=[Decimal("1.10"), Decimal("1.20"), None],
    )
    found = read(write(landed, store_schema=False))
    assert found["source_row"].to_pylist() == [0, 1, 2]
    first, good, third = found["raw"].to_pylist()
    assert good is None

    def strict(text: str) -> dict[str, Any]:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return json.loads(text, parse_constant=refuse)

    assert list(strict(first)) == landed.schema.names, "its own columns, unknown ones too, in their order"
    assert strict(first) | {} == strict(first) | {
        "PULocationID": 0,
        "trip_distance": 0.1 + 0.2,
        "fare_amount": "NaN",
        "tip_amount": "-Infinity",
        "lpep_pickup_datetime": "2023-03-08 01:02:03.000000001",
        "store_and_fwd_flag": 'é"\n',
        "extra_column": {"a": [1, None]},
        "amount": "1.10",
    }
    assert str(2**62) in strict(first)["lpep_dropoff_datetime"]
    last = strict(third)
    assert (last["passenger_count"], last["fare_amount"], last["tip_amount"]) == ("NaN", "Infinity", 5e-324)
    assert math.copysign(1, last["trip_distance"]) == -1
    assert last["lpep_pickup_datetime"] is last["store_and_fwd_flag"] is last["amount"] is None


def _whole(content: bytes) -> str:
    found = read(content)
    assert found.num_rows == 1
    (row,) = found.to_pylist()
    assert row.pop("source_file") == "f.parquet"
    (reason,) = row.pop("reasons")
    assert set(row.values()) == {None}, "a whole file has no row, no number"
    return str(reason)


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n1,2\n", b"PAR1", b"PAR1PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"\x00" * 5000],
)
def test_no_parquet_at_all(content: bytes) -> None:
    assert _whole(content).startswith("FILE_UNREADABLE: ")


def test_damaged_files_are_quarantined_whole(make_trips: TripMaker) -> None:
    # Rows of the undamaged row groups would be let through if the file were not read to its end first.
    content = write(make_trips(60_000, hours=100), row_group_size=20_000, write_page_checksum=True)
    assert read(content)["reasons"].null_count == 60_000
    assert _whole(content[:-100]).startswith("FILE_UNREADABLE: ")
    assert _whole(content[: len(content) // 2]).startswith("FILE_UNREADABLE: ")
    late = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(2).column(9).data_page_offset + 100
    flipped = bytearray(content)
    flipped[late] ^= 0xFF
    assert _whole(bytes(flipped)).startswith("FILE_UNREADABLE: ")
    assert "\n" not in _whole(bytes(flipped)) and len(_whole(bytes(flipped))) < 330


def test_parquet_that_is_not_of_trips(make_trips: TripMaker) -> None:
    assert _whole(write(pa.table({"a": [1, 2]}))) == f"FILE_FOREIGN: no column {', '.join(REQUIRED)}"
    yellow = make_trips(3).rename_columns([name.replace("lpep", "tpep") for name in make_trips(3).schema.names])
    assert _whole(write(yellow)) == "FILE_FOREIGN: no column lpep_pickup_datetime, lpep_dropoff_datetime"


def test_a_file_without_rows_is_nothing(make_trips: TripMaker) -> None:
    assert read(write(make_trips(1).slice(0, 0))).num_rows == 0


def test_a_file_too_large_to_keep_is_read_twice(make_trips: TripMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write(make_trips(30_000, hours=100), row_group_size=10_000, write_page_checksum=True)
    small = read(content)
    monkeypatch.setattr(trip_files, "_KEEP_BYTES", 1)
    assert read(content) == small
    damaged = bytearray(content)
    damaged[pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(2).column(9).data_page_offset + 100] ^= 0xFF
    assert _whole(bytes(damaged)).startswith("FILE_UNREADABLE: ")


@pytest.mark.parametrize("month", ["2023-01", "2023-02", "2023-03", "2025-11"])
def test_real_months_keep_every_row_and_amount(data_dir: Path, month: str) -> None:
    path = data_dir / f"green_tripdata_{month}.parquet"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    rules = rules_of(Options(earliest="2000-01-01", latest="2030-01-01"))
    found = pa.Table.from_batches(read_file(describe(path), rules))
    landed = pq.read_table(path)
    assert found.num_rows == landed.num_rows
    assert {tuple(reasons) for reasons in found["reasons"].to_pylist() if reasons} <= {("DROPOFF_BEFORE_PICKUP",)}
    for name in ("total_amount", "fare_amount", "trip_distance"):
        assert found[name].to_pylist() == landed[name].to_pylist()
    for name in ("PULocationID", "passenger_count", "RatecodeID"):
        assert pc.sum(found[name]).as_py() == pc.sum(landed[name]).as_py()
        assert found[name].null_count == landed[name].null_count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"earliest": "2023-01-01"},
        {"earliest": "2023-01-01", "latest": "2022-01-01"},
        {"earliest": "2023-01-01", "latest": "soon"},
        {"earliest": 5, "latest": 6},
        {"earliest": "2023-01-01", "latest": "2024-01-01", "last": "2024-01-01"},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(options)


def test_bounds_are_utc() -> None:
    assert Options(earliest="2023-01-01T00:00:00+01:00", latest=at("2024-01-01T00:00:00").date()) == Options(
        earliest="2022-12-31T23:00:00", latest="2024-01-01T00:00:00Z"
    )


def test_it_needs_its_options() -> None:
    with pytest.raises(StreamwardenError, match="earliest and latest"):
        ingest_trips.transform(None, JobSettings(watermark=None, ttl=None, options=None))  # type: ignore[arg-type]
