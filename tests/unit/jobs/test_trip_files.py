"""Files of every format, whole, damaged, changed or gone; and what of their columns is known by which name."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs import parquet_files, trip_files
from spark_jobs.ingest_trips import Options, rules_of
from spark_jobs.schemas import TRIP_COLUMNS
from spark_jobs.trip_columns import REQUIRED, FileRefusedError, match_columns
from spark_jobs.trip_files import read_file
from spark_jobs.trip_rules import PARSED
from streamwarden.landing.file import LandedFile, LandedFileChanged, LandedFileGone
from tests.conftest import TripMaker
from tests.landed import describe

pytestmark = pytest.mark.unit

RULES = rules_of(Options(earliest="2023-01-01", latest="2026-01-01"))


def read(file: LandedFile) -> pa.Table:
    return pa.Table.from_batches(read_file(file, RULES), PARSED)


def whole(file: LandedFile) -> str:
    """Return why a file was quarantined whole."""
    (row,) = read(file).to_pylist()
    assert row.pop("source_file") == file.label
    (reason,) = row.pop("reasons")
    assert set(row.values()) == {None}, "a whole file has no row, no number"
    return str(reason)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., LandedFile]:
    def write(content: bytes | pa.Table, name: str = "f.parquet", **options: Any) -> LandedFile:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path, **options)
        return describe(path, tmp_path)

    return write


# Columns


def renamed(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.schema.names])


def test_names_are_matched_whatever_their_capitals(make_trips: TripMaker, write: Any) -> None:
    # So the TLC wrote them in 2013.
    given = make_trips(5)
    old = renamed(given, total_amount="Total_amount", fare_amount="Fare_amount", trip_type="Trip_type ")
    found = read(write(old))
    assert found["reasons"].null_count == 5
    for name in ("total_amount", "fare_amount", "trip_type"):
        assert found[name].to_pylist() == given[name].to_pylist()


@pytest.mark.parametrize("again", ["total_amount", "Total_Amount", " total_amount"])
def test_a_column_that_is_there_twice(make_trips: TripMaker, write: Any, again: str) -> None:
    trips = make_trips(3)
    both = pa.Table.from_arrays([*trips.columns, trips["tip_amount"]], [*trips.schema.names, again])
    assert whole(write(both)) == f"FILE_AMBIGUOUS: total_amount is there as 'total_amount' and {again!r}"


@pytest.mark.parametrize("column", REQUIRED)
def test_a_column_that_every_file_has_must_be_there(make_trips: TripMaker, write: Any, column: str) -> None:
    assert whole(write(renamed(make_trips(3), **{column: "something"}))) == f"FILE_FOREIGN: no column {column}"


def test_a_column_that_some_years_lack_may_be_missing(make_trips: TripMaker, write: Any) -> None:
    found = read(write(make_trips(3).select(list(REQUIRED))))
    assert found["reasons"].null_count == 3
    assert all(found[name].null_count == 3 for name in TRIP_COLUMNS if name not in REQUIRED)


@pytest.mark.parametrize("name", ["Congestion Surcharge", "congestion-surcharge", "congestionSurcharge"])
def test_a_column_that_is_spelled_otherwise_is_not_passed_over(make_trips: TripMaker, write: Any, name: str) -> None:
    reason = whole(write(renamed(make_trips(3), congestion_surcharge=name)))
    assert reason == f"FILE_FOREIGN: no column congestion_surcharge, but {name!r}"


def test_other_columns_are_kept_with_bad_rows(make_trips: TripMaker, write: Any) -> None:
    trips = make_trips(1, PULocationID=[999])
    more = pa.Table.from_arrays([*trips.columns, pa.array([1]), pa.array(["b"])], [*trips.schema.names, "x", "x"])
    assert read(write(more))["raw"][0].as_py().endswith('"x": 1, "x (2)": "b"}')


@given(st.lists(st.sampled_from(list(TRIP_COLUMNS)), unique=True), st.data())
def test_columns_are_found_where_they_are_or_refused(columns: list[str], data: st.DataObject) -> None:
    def written(name: str) -> str:
        letters = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
        return "".join(letter.swapcase() if swap else letter for letter, swap in zip(name, letters, strict=True))

    names = [written(column) for column in columns]
    if set(REQUIRED) <= set(columns):
        assert match_columns(names) == {column: place for place, column in enumerate(columns)}
        with pytest.raises(FileRefusedError, match="FILE_AMBIGUOUS"):
            match_columns([*names, written(columns[0])])
    else:
        with pytest.raises(FileRefusedError, match="FILE_FOREIGN"):
            match_columns(names)


# Formats


@pytest.mark.parametrize("name", ["f", "f.csv", "f.json.gz", "f.txt", "f.PARQUET"])
def test_parquet_is_read_whatever_its_name(make_trips: TripMaker, write: Any, name: str) -> None:
    assert read(write(make_trips(3), name))["reasons"].null_count == 3


@pytest.mark.parametrize("name", ["f.parquet", "f.txt", "f", "f.csv.bz2", "csv", "f.gz", "f.parquet.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_is_no_known_format_is_refused(write: Any, name: str, pack: Callable[[bytes], bytes]) -> None:
    assert whole(write(pack(b"VendorID,extra\n1,2\n"), name)).startswith("FILE_UNREADABLE: not Parquet")


@pytest.mark.parametrize("name", ["f.parquet", "f.csv", "f.jsonl", "f"])
def test_a_file_of_no_bytes(write: Any, name: str) -> None:
    assert whole(write(b"", name)) == "FILE_UNREADABLE: the file is empty"


# Opening


def test_a_refused_file_is_not_opened(write: Any) -> None:
    file = dataclasses.replace(write(b"x"), refused="FILE_TOO_LARGE: 3 TB", folder="/nowhere")
    assert whole(file) == "FILE_TOO_LARGE: 3 TB"


def test_a_file_that_is_gone_is_for_the_driver(make_trips: TripMaker, write: Any, tmp_path: Path) -> None:
    file = write(make_trips(3))
    (tmp_path / file.name).unlink()
    with pytest.raises(LandedFileGone):
        read(file)


def test_a_file_that_was_replaced(make_trips: TripMaker, write: Any) -> None:
    file = write(make_trips(3))
    write(make_trips(4))
    assert whole(file).startswith("FILE_CHANGED: f.parquet: planned with")
    assert whole(file).endswith("read it again with streamwarden landing reread")


@pytest.mark.parametrize("keep", [0, 10**9])
def test_a_file_that_is_replaced_while_it_is_read(
    make_trips: TripMaker, write: Any, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    file = write(make_trips(30), row_group_size=10)
    monkeypatch.setattr(trip_files, "_KEEP_BYTES", keep)

    def replaced(source: Any) -> Iterator[Any]:
        yield from parquet_files.parquet_rows(source)
        os.utime(Path(file.folder) / file.name, (1, 1))

    monkeypatch.setattr(trip_files, "parquet_rows", replaced)
    assert whole(file).startswith("FILE_CHANGED: ")


def test_a_file_that_was_taken_away_after_it_was_read(
    make_trips: TripMaker, write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write(make_trips(30))
    batches = read_file(file, RULES)
    opened = LandedFile.open

    def once(self: LandedFile) -> Any:
        handle = opened(self)
        (tmp_path / file.name).unlink()
        return handle

    monkeypatch.setattr(LandedFile, "open", once)
    assert sum(batch.num_rows for batch in batches) == 30


class _Failing(LandedFile):
    """A file whose storage fails, at once or after some bytes."""

    error: OSError
    after: int | None = None

    def open(self) -> Any:
        if self.after is None:
            raise self.error
        return _FailingHandle(super().open(), self.after, self.error)


class _FailingHandle:
    def __init__(self, handle: Any, after: int, error: OSError) -> None:
        self._handle, self._left, self._error = handle, after, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._error
        return bytes(self._handle.read(size))


def failing(file: LandedFile, error: OSError, **changes: Any) -> LandedFile:
    after = changes.pop("after", None)
    made = _Failing(**(dataclasses.asdict(file) | changes))
    object.__setattr__(made, "error", error)
    object.__setattr__(made, "after", after)
    return made


@pytest.mark.parametrize("number", [errno.EACCES, errno.EISDIR])
def test_a_file_that_may_not_be_opened(write: Any, number: int) -> None:
    reason = whole(failing(write(b"x"), OSError(number, os.strerror(number))))
    assert reason.startswith("FILE_UNREADABLE: ") and os.strerror(number) in reason


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (OSError(errno.EMFILE, "Too many open files"), {}),
        (OSError(errno.EIO, "Input/output error"), {}),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), {"folder": "s3a://b/landing"}),
        (PermissionError(errno.EACCES, "AWS Error ACCESS_DENIED"), {"folder": "s3a://b/landing"}),
        (OSError(errno.EIO, "Input/output error"), {"after": 0}),
        (OSError("AWS Error NETWORK_CONNECTION during GetObject operation"), {"after": 20_000}),
    ],
)
@pytest.mark.parametrize("name", ["f.parquet", "f.csv", "f.jsonl.gz"])
def test_an_outage_is_not_the_files_fault(
    make_trips: TripMaker, write: Any, error: OSError, changes: dict[str, Any], name: str
) -> None:
    trips = make_trips(20_000, hours=100)
    if name == "f.parquet":
        file = write(trips)
    else:
        text = ",".join(trips.schema.names) + "\n" + "".join(os.urandom(16).hex() + "\n" for _ in range(60_000))
        file = write(gzip.compress(text.encode()) if name.endswith("gz") else text.encode(), name)
    with pytest.raises(OSError, match=str(error.args[-1])):
        read(failing(file, error, **changes))


def test_a_file_without_permission(make_trips: TripMaker, write: Any, tmp_path: Path) -> None:
    file = write(make_trips(3))
    (tmp_path / file.name).chmod(0)
    if os.access(tmp_path / file.name, os.R_OK):
        pytest.skip("whoever runs this may read everything")
    assert "Permission denied" in whole(file)


def test_names_are_those_of_the_landing_folder(make_trips: TripMaker, write: Any) -> None:
    files = [write(make_trips(2), f"day={day}/a.parquet") for day in (1, 2)]
    found = [read(dataclasses.replace(file, reading=reading)) for file in files for reading in (1, 2)]
    assert [set(rows["source_file"].to_pylist()) for rows in found] == [
        {"day=1/a.parquet"}, {"day=1/a.parquet#2"}, {"day=2/a.parquet"}, {"day=2/a.parquet#2"}
    ]  # fmt: skip


# Memory


class _Watched:
    """A storage that remembers the largest part read at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.largest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int) -> bytes:
        self.largest = max(self.largest, size)
        return self._file.read(size)


def test_a_row_group_is_read_in_parts(make_trips: TripMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = make_trips(100_000, hours=1000)
    pq.write_table(trips, tmp_path / "f.parquet", use_dictionary=False, compression="none", data_page_size=10_000)
    monkeypatch.setattr(parquet_files, "_BUFFER_BYTES", 20_000)
    watched = _Watched(tmp_path / "f.parquet")
    batches = list(parquet_files.parquet_rows(watched))
    assert sum(rows.batch.num_rows for rows in batches) == 100_000
    assert max(rows.batch.num_rows for rows in batches) <= 16_384
    size = (tmp_path / "f.parquet").stat().st_size
    assert watched.largest < 100_000 < size / 20, "a column of the row group has 800,000 bytes"


@pytest.mark.parametrize("keep", [1, 10**9])
def test_rows_go_out_only_when_the_file_is_seen_whole(
    make_trips: TripMaker, write: Any, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    monkeypatch.setattr(trip_files, "_KEEP_BYTES", keep)
    file = write(make_trips(60_000, hours=100), row_group_size=20_000, write_page_checksum=True)
    assert read(file)["source_row"].to_pylist() == list(range(60_000))
    path = Path(file.folder) / file.name
    late = pq.ParquetFile(path).metadata.row_group(2).column(9).data_page_offset + 100
    content = bytearray(path.read_bytes())
    content[late : late + 200] = bytes(200)
    assert whole(write(bytes(content))).startswith("FILE_UNREADABLE: ")


def test_what_is_kept_is_bounded(make_trips: TripMaker, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(make_trips(60_000, hours=100))
    kept = list(read_file(file, RULES))
    readings = []
    rows = parquet_files.parquet_rows
    monkeypatch.setattr(trip_files, "parquet_rows", lambda source: readings.append(1) or rows(source))
    for keep, expected in ((sum(batch.nbytes for batch in kept), 1), (kept[0].nbytes, 2)):
        monkeypatch.setattr(trip_files, "_KEEP_BYTES", keep)
        readings.clear()
        assert list(read_file(file, RULES)) == kept
        assert len(readings) == expected


def test_a_folder_is_no_file(tmp_path: Path, write: Any) -> None:
    file = write(b"x", "f.csv")
    (tmp_path / "f.csv").unlink()
    (tmp_path / "f.csv").mkdir()
    found = (tmp_path / "f.csv").stat()
    now = dataclasses.replace(file, length=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000)
    assert whole(now).startswith("FILE_UNREADABLE: ")
    shutil.rmtree(tmp_path / "f.csv")
    with pytest.raises((LandedFileGone, LandedFileChanged)):
        read(now)


def test_views_of_text_are_text(make_trips: TripMaker, write: Any) -> None:
    trips = make_trips(4, seed=3, PULocationID=[0, 1, 300, 5])
    fare = trips.schema.get_field_index("fare_amount")
    as_text = trips["fare_amount"].cast(pa.string())
    plain = trips.set_column(fare, "fare_amount", as_text)
    views = trips.set_column(fare, "fare_amount", as_text.cast(pa.string_view()))
    assert read(write(views)).drop(["source_file"]) == read(write(plain)).drop(["source_file"])
    assert read(write(views))["reasons"].null_count == 2


@pytest.mark.parametrize(
    "extra",
    [
        pa.array([3_000_000, 1], pa.date32()),
        pa.array([2**62, 1], pa.timestamp("us")),
        pa.array([[b"\xff"], []], pa.list_(pa.binary())).cast(pa.list_(pa.binary())),
    ],
    ids=["date", "timestamp", "bytes"],
)
def test_a_value_that_python_lacks_refuses_no_more_than_its_row(
    make_trips: TripMaker, write: Any, extra: pa.Array
) -> None:
    trips = make_trips(2, PULocationID=[0, 1]).append_column("note", extra)
    found = read(write(trips))
    assert found["reasons"].to_pylist() == [["ZONE_OUT_OF_RANGE"], None]
    assert "note" in found["raw"][0].as_py()
