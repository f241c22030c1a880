"""CSV and JSON lines: what a table says, said in text, is read as the table's Parquet; and bad lines are kept."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import text_files, trip_files
from spark_jobs.ingest_trips import Options, rules_of
from spark_jobs.schemas import TRIP_COLUMNS
from spark_jobs.text_files import csv_rows, json_rows
from spark_jobs.trip_columns import REQUIRED, Rows
from spark_jobs.trip_files import read_file
from spark_jobs.trip_rules import PARSED, judge
from tests.conftest import TripMaker
from tests.landed import describe

pytestmark = pytest.mark.unit

RULES = rules_of(Options(earliest="2023-01-01", latest="2026-01-01"))
NAMES = list(TRIP_COLUMNS)
TRIP: dict[str, Any] = {
    "VendorID": 2,
    "lpep_pickup_datetime": "2023-03-08 10:00:00",
    "lpep_dropoff_datetime": "2023-03-08 10:10:00",
    "PULocationID": 74,
    "DOLocationID": 75,
    "fare_amount": 9.3,
    "extra": 1,
    "mta_tax": 0.5,
    "tip_amount": 0,
    "tolls_amount": 0.0,
    "total_amount": 12.8,
}


def as_csv(table: pa.Table, **options: Any) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, **options)
    writer.writerow(table.schema.names)
    writer.writerows([["" if value is None else value for value in row.values()] for row in table.to_pylist()])
    return text.getvalue().encode()


def as_json_lines(table: pa.Table) -> bytes:
    return "".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()).encode()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., pa.Table]:
    def read(content: bytes, name: str) -> pa.Table:
        path = tmp_path / name
        path.write_bytes(content)
        return pa.Table.from_batches(read_file(describe(path), RULES), PARSED)

    return read


def reasons_of(table: pa.Table) -> dict[int | None, list[str]]:
    rows = table.select(["source_row", "reasons"]).to_pylist()
    return {row["source_row"]: row["reasons"] for row in rows if row["reasons"]}


def one(found: pa.Table) -> str:
    ((row, (reason,)),) = reasons_of(found).items()
    assert found.num_rows == 1 and row is None
    return str(reason)


@pytest.mark.parametrize("schema", ["2023", "2025"])
@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("f.csv", as_csv),
        ("F.CSV", lambda table: b"\xef\xbb\xbf" + as_csv(table, quoting=csv.QUOTE_ALL, lineterminator="\n\n")),
        ("f.csv", lambda table: as_csv(table, lineterminator="\r")),
        ("f.csv.gz", lambda table: gzip.compress(as_csv(table))),
        ("f.csv", lambda table: gzip.compress(as_csv(table))),
        ("f.csv.gz", as_csv),
        ("f.jsonl", as_json_lines),
        ("f.ndjson", lambda table: b"\xef\xbb\xbf\r\n" + as_json_lines(table).replace(b"\n", b"\r\n\n")),
        ("f.json.gz", lambda table: gzip.compress(as_json_lines(table)[:-1])),
    ],
)
def test_text_says_what_parquet_says(
    make_trips: TripMaker, read: Any, tmp_path: Path, schema: str, name: str, say: Callable[[pa.Table], bytes]
) -> None:
    given = make_trips(300, schema=schema, PULocationID=[0 if row % 7 == 3 else 5 for row in range(300)])
    pq.write_table(given, tmp_path / "f.parquet")
    expected = pa.Table.from_batches(read_file(describe(tmp_path / "f.parquet"), RULES), PARSED)
    found = read(say(given), name)
    same = [column for column in PARSED.names if column not in ("raw", "source_file")]
    assert found.select(same) == expected.select(same)
    assert found["raw"].null_count == expected["raw"].null_count


def test_real_trips_as_text(data_dir: Path, read: Any) -> None:
    path = data_dir / "green_tripdata_2025-11.parquet"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    same = [column for column in PARSED.names if column not in ("raw", "source_file")]
    expected = pa.Table.from_batches(read_file(describe(path), RULES), PARSED).select(same)
    given = pq.read_table(path)
    assert read(gzip.compress(as_csv(given), 1), "f.csv.gz").select(same) == expected
    assert read(as_json_lines(given), "f.json").select(same) == expected


# CSV


def test_a_row_of_too_few_or_too_many_fields(make_trips: TripMaker, read: Any) -> None:
    lines = as_csv(make_trips(6)).splitlines()
    lines[2] += b",more,\xff"
    lines[4] = b'1,"a\nb",""'
    found = read(b"\n".join([*lines[:3], b"", b"", *lines[3:]]), "f.csv")
    assert sorted(found["source_row"].to_pylist()) == list(range(6))
    assert reasons_of(found) == {1: ["WRONG_FIELD_COUNT"], 3: ["WRONG_FIELD_COUNT"]}
    raw = {row["source_row"]: row["raw"] for row in found.to_pylist() if row["raw"]}
    assert json.loads(raw[1])[-2:] == ["more", {"base64": "/w=="}]
    assert json.loads(raw[3]) == ["1", "a\nb", ""]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n1,2\n", "FILE_FOREIGN: no column VendorID, "),
        (b"\n\n", "FILE_UNREADABLE: no header"),
        (b"\xff\xfe1\x002\x00", "FILE_FOREIGN: no column VendorID, "),
        (",".join([*REQUIRED, "Extra"]).encode() + b"\n", "FILE_AMBIGUOUS: extra is there as 'extra' and 'Extra'"),
        (",".join(REQUIRED).encode() + b'\n1,"2', "FILE_UNREADABLE: line 2: unexpected end of data"),
        (",".join(REQUIRED).encode() + b'\n1,"2"3,\n', "FILE_UNREADABLE: line 2: ',' expected after '\"'"),
        (",".join(REQUIRED).encode() + b"\n" + b"x" * 3_000_000, "FILE_UNREADABLE: line 2 or a row there is longer"),
        (
            ",".join(REQUIRED).encode() + b"\n" + b'"1\n",' * 1_000_000,
            "FILE_UNREADABLE: line 2 or a row there is longer",
        ),
    ],
)
def test_csv_that_is_refused_whole(read: Any, content: bytes, reason: str) -> None:
    for name, packed in (("f.csv", content), ("f.csv.gz", gzip.compress(content))):
        assert one(read(packed, name)).startswith(reason)


@pytest.mark.parametrize("written", ["9007199254740993", "-9007199254740993", "9" * 17])
def test_whole_numbers_that_a_double_would_change_are_refused(make_trips: TripMaker, read: Any, written: str) -> None:
    found = read(as_csv(make_trips(2, trip_distance=[written, "9007199254740992"])), "f.csv").to_pylist()
    assert found[0]["reasons"] == ["UNPARSABLE:trip_distance"], "as in Parquet and JSON"
    assert found[1]["reasons"] is None and found[1]["trip_distance"] == 2.0**53


def test_csv_without_rows_is_nothing(read: Any) -> None:
    assert read(",".join(NAMES).encode(), "f.csv").num_rows == 0


def test_text_that_is_none_hurts_its_value_only(make_trips: TripMaker, read: Any) -> None:
    content = as_csv(make_trips(3, card_id=["a", "b", "c"], extra=["1", "2", "3"]))
    lines = content.splitlines()
    place = NAMES.index("extra")
    for number, bad in ((2, b"\xff"), (3, b"2\xff")):
        fields = lines[number].split(b",")
        fields[place if number == 3 else -1] = bad
        lines[number] = b",".join(fields)
    found = read(b"\n".join(lines), "f.csv")
    assert list(reasons_of(found)) == [1, 2]
    assert reasons_of(found)[2] == ["UNPARSABLE:extra"]
    assert json.loads(found["raw"][2].as_py())["extra"] == {"base64": "Mv8="}


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), max_size=8), st.sampled_from(["", "1.50", " 2 ", "x", "1e400"])
        ),
        max_size=20,
    )
)
def test_what_is_written_is_read(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*REQUIRED, "card_id", "trip_distance"])
    for card, distance in rows:
        writer.writerow([str(TRIP[name]) for name in REQUIRED] + [card, distance])
    found = list(csv_rows(io.BytesIO(text.getvalue().encode())))
    assert all(isinstance(part, Rows) for part in found)
    judged = pa.Table.from_batches([judge(part, "f", RULES) for part in found if isinstance(part, Rows)], PARSED)
    assert judged["source_row"].to_pylist() == list(range(len(rows)))
    assert judged["card_id"].to_pylist() == [card or None for card, _ in rows]
    expected = {"": (None, None), "1.50": (1.5, None), " 2 ": (2.0, None)}
    bad = (None, ["UNPARSABLE:trip_distance"])
    assert list(zip(judged["trip_distance"].to_pylist(), judged["reasons"].to_pylist(), strict=True)) == [
        expected.get(distance, bad) for _, distance in rows
    ]
    for (card, distance), raw in zip(rows, judged["raw"].to_pylist(), strict=True):
        if raw is not None:
            said = json.loads(raw)
            assert (said["card_id"], said["trip_distance"]) == (card or None, distance)


# JSON lines


def line(*without: str, **changed: Any) -> str:
    return json.dumps({name: value for name, value in (TRIP | changed).items() if name not in without})


def test_fields_by_name(read: Any) -> None:
    lines = [
        line(),
        line("total_amount", Total_Amount=3, trip_distance=None, unknown={"a": [1]}),
        line("total_amount"),
        line("VendorID", "extra"),
        line(Extra=2),
        line()[:-1] + ', "extra": 3}',
        line(total_amount=None),
        line(**{"trip type": 1}),
        line()[:-1] + ', "x": 1, "x": {"extra": 1, "extra": 2}}',
    ]
    found = read("\n".join(lines).encode(), "f.jsonl")
    assert reasons_of(found) == {
        2: ["NO_FIELD:total_amount"],
        3: ["NO_FIELD:VendorID", "NO_FIELD:extra"],
        4: ["FIELD_TWICE:extra"],
        5: ["FIELD_TWICE:extra"],
        7: ["NO_FIELD:trip_type"],
    }
    by_row = {row["source_row"]: row for row in found.to_pylist()}
    assert [by_row[row]["total_amount"] for row in (0, 1, 6, 8)] == [12.8, 3.0, None, 12.8]
    assert by_row[5]["raw"] == json.dumps(lines[5]), "the line as it is"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("nothing", "NOT_JSON"),
        ("{", "NOT_JSON"),
        ("[1]", "NOT_AN_OBJECT"),
        ("null", "NOT_AN_OBJECT"),
        ("[" * 100_000, "NOT_JSON"),
        (line()[:40], "NOT_JSON"),
    ],
)
def test_a_bad_line_is_kept(read: Any, bad: str, reason: str) -> None:
    found = read(f"{bad}\n\n{line()}\n{bad}".encode(), "f.jsonl")
    assert reasons_of(found) == {0: [reason], 2: [reason]}
    assert {row["raw"] for row in found.to_pylist() if row["raw"]} == {json.dumps(bad)}
    assert one(read(bad.encode(), "f.jsonl")) == f"FILE_FOREIGN: no line is a trip; the first: {reason}"


def test_a_line_that_is_not_utf_8(read: Any) -> None:
    found = read(line().encode() + b"\n" + line(card_id="X").encode().replace(b"X", b"\xff") + b"\n", "f.jsonl")
    assert reasons_of(found) == {1: ["NOT_JSON"]}
    assert list(json.loads(found["raw"][1].as_py())) == ["base64"]


@pytest.mark.parametrize(
    ("field", "written", "expected"),
    [
        ("trip_distance", "1e400", "UNPARSABLE:trip_distance"),
        ("trip_distance", "1e308", 1e308),
        ("trip_distance", "0.1", 0.1),
        ("trip_distance", '"0.1"', 0.1),
        ("trip_distance", "true", "UNPARSABLE:trip_distance"),
        ("trip_distance", '{"miles": 1}', "UNPARSABLE:trip_distance"),
        ("trip_distance", "9007199254740993", "UNPARSABLE:trip_distance"),
        ("fare_amount", "NaN", "AMOUNT_NOT_FINITE"),
        ("fare_amount", "-Infinity", "AMOUNT_NOT_FINITE"),
        ("fare_amount", "9" * 5000, "UNPARSABLE:fare_amount"),
        ("PULocationID", "7.0", 7),
        ("PULocationID", "7.5", "UNPARSABLE:PULocationID"),
        ("PULocationID", "99999999999999999999", "UNPARSABLE:PULocationID"),
        ("card_id", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("card_id", "1.5", "UNPARSABLE:card_id"),
        ("card_id", '"\\ud800"', "UNPARSABLE:card_id"),
        ("card_id", '"\\ud83d\\ude00"', "😀"),
        ("lpep_dropoff_datetime", "20230308", "UNPARSABLE:lpep_dropoff_datetime"),
        ("lpep_dropoff_datetime", "[]", "UNPARSABLE:lpep_dropoff_datetime"),
    ],
)
@pytest.mark.parametrize("beside", [[], ["null", "7", "7.5", '"x"', "false"]])
def test_a_value_is_read_as_it_is_whatever_stands_beside_it(
    read: Any, field: str, written: str, expected: Any, beside: list[str]
) -> None:
    def with_value(value: str) -> str:
        return f'{line(field)[:-1]}, "{field}": {value}}}'

    found = read("\n".join([with_value(written), *map(with_value, beside)]).encode(), "f.jsonl")
    row = found.to_pylist()[0]
    if row["reasons"] is None:
        assert row[field] == expected
    else:
        assert row["reasons"] == [expected]
        assert row["raw"] == with_value(written), "the line as it came"


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.integers(-(2**31), 2**31 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=3),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_column_of_all_types(values: list[Any]) -> None:
    """Each value becomes what it becomes alone."""

    def doubles(given: list[Any]) -> list[tuple[float | None, Any]]:
        content = "\n".join(line(trip_distance=value) for value in given).encode()
        judged = [judge(part, "f", RULES) for part in json_rows(io.BytesIO(content)) if isinstance(part, Rows)]
        table = pa.Table.from_batches(judged)
        return list(zip(table["trip_distance"].to_pylist(), table["reasons"].to_pylist(), strict=True))

    together = doubles(values)
    assert str(together) == str([doubles([value])[0] for value in values])
    for value, (found, reasons) in zip(values, together, strict=True):
        if isinstance(value, float) or (type(value) is int):
            assert found == value and reasons is None and math.copysign(1, found) == math.copysign(1, value)


# Damage and memory


@pytest.mark.parametrize("name", ["f.csv.gz", "f.jsonl.gz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_damaged_gzip_is_quarantined_whole(make_trips: TripMaker, read: Any, name: str, damage: str) -> None:
    trips = make_trips(500)
    content = bytearray(gzip.compress(as_csv(trips) if "csv" in name else as_json_lines(trips)))
    if damage == "flipped":
        content[-6] ^= 0xFF
    elif damage == "cut":
        del content[-10:]
    else:
        content += b"more"
    assert one(read(bytes(content), name)).startswith("FILE_UNREADABLE: ")


@pytest.mark.parametrize(("name", "say"), [("f.csv", as_csv), ("f.jsonl", as_json_lines)])
def test_text_is_read_in_parts(
    make_trips: TripMaker, read: Any, monkeypatch: pytest.MonkeyPatch, name: str, say: Callable[[pa.Table], bytes]
) -> None:
    content = say(make_trips(1000))
    together = read(content, name)
    monkeypatch.setattr(text_files, "_BATCH_SIZE", 5_000)
    monkeypatch.setattr(trip_files, "_KEEP_BYTES", 10_000)
    in_parts = read(content, name)
    assert in_parts == together
    assert in_parts["VendorID"].num_chunks > 10
    assert pc.max(in_parts["source_row"]).as_py() == 999
    monkeypatch.setattr(text_files, "_BATCH_ROWS", 7)
    assert read(content, name) == together
