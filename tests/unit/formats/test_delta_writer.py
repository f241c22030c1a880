"""Batches that delta-rs writes: the table is what a dictionary would be, whatever others commit meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import SHUT
from streamwarden.formats.delta_writer import DeltaWriter, Finality, UnfitTableError, has_duplicates

pytestmark = pytest.mark.unit

T0 = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("zone", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("total", pa.decimal128(18, 2)),
        ("zones", pa.list_(pa.int32())),
        ("is_final", pa.bool_()),
    ]
)
KEYS = ("zone", "at")


def minute(number: int | None) -> datetime | None:
    return None if number is None else T0 + timedelta(minutes=number, microseconds=123_456)


def table_of(rows: list[dict[str, Any]], *more: pa.Field) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([*SCHEMA, *more]))


def row(zone: int | None, at: int | None, name: str = "", **more: Any) -> dict[str, Any]:
    return {
        "zone": zone,
        "at": minute(at),
        "name": name,
        "total": None,
        "zones": [1, 2],
        "is_final": None,
        "_deleted": False,
        **more,
    }


class Place:
    """A table in a folder, and its writer."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.path = str(folder / "t")
        DeltaTable.create(self.path, SCHEMA, configuration=values.pop("configuration", None))
        self.writer = DeltaWriter(self.path, None, **{"keys": KEYS, "application": "a", **values})
        self.batch = -1

    def append(self, rows: list[dict[str, Any]], *, batch: int | None = None, guard: Any = lambda: None) -> int | None:
        self.batch = self.batch + 1 if batch is None else batch
        return self.writer.append(table_of(rows), self.batch, author="me", guard=guard)

    def upsert(
        self,
        rows: list[dict[str, Any]],
        *,
        passed: tuple[int, int] | None = None,
        batch: int | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> int | None:
        self.batch = self.batch + 1 if batch is None else batch
        given = table_of(rows, pa.field("_deleted", pa.bool_()))
        return self.writer.upsert(given, self.batch, deleted="_deleted", passed=passed, author="me", guard=guard)

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda one: str((one["zone"], one["at"], one["name"])))

    @property
    def names(self) -> list[str]:
        return sorted(one["name"] for one in self.rows)


CHANGE = st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(CHANGE, max_size=6, unique_by=lambda one: one[:2]), max_size=5))
def test_upserts_leave_what_a_dictionary_would_hold(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int, bool]]]
) -> None:
    place = Place(tmp_path_factory.mktemp("upsert"))
    expected: dict[tuple[int, int], str] = {}
    for number, batch in enumerate(batches):
        touched = 0
        for zone, at, gone in batch:
            touched += not gone or (zone, at) in expected
            if gone:
                expected.pop((zone, at), None)
            else:
                expected[zone, at] = f"{number}"
        rows = [row(zone, at, f"{number}", _deleted=gone) for zone, at, gone in batch]
        # A batch that is repeated after a kill changes nothing.
        assert place.upsert(rows) == touched
        assert place.upsert(rows, batch=number) == (None if touched else 0)
    assert [(one["zone"], one["at"], one["name"]) for one in place.rows] == sorted(
        (zone, minute(at), name) for (zone, at), name in expected.items()
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(0, 3)), max_size=8), max_size=4)
)
def test_of_equal_keys_the_first_is_appended_once_and_nulls_are_equal(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int | None, int | None]]]
) -> None:
    place = Place(tmp_path_factory.mktemp("append"), first_by=("name",))
    expected: dict[tuple[int | None, int | None], str] = {}
    for number, batch in enumerate(batches):
        # The first by name is the last in the batch.
        rows = [row(zone, at, f"{number} {9 - place}") for place, (zone, at) in enumerate(batch)]
        first: dict[tuple[int | None, int | None], str] = {}
        for (zone, at), one in zip(batch, rows, strict=True):
            first[zone, at] = min(first.get((zone, at), "~"), one["name"])
        new = {key: name for key, name in first.items() if key not in expected}
        expected |= new
        assert place.append(rows) == len(new)
    assert place.names == sorted(expected.values())


def test_every_type_of_key_and_column_comes_back(tmp_path: Path) -> None:
    kinds = {
        "i": pa.array([1, 2], pa.int16()),
        "s": pa.array(["x" * 70, "quote \" and ' ä"], pa.string()),
        "d": pa.array([date(2024, 2, 29), date(1, 1, 1)]),
        "m": pa.array([Decimal("1.25"), Decimal(2)], pa.decimal128(10, 2)),
        "b": pa.array([True, False]),
        "t": pa.array([T0, datetime(99, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "st": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
        "mp": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        "ümlaut ID": pa.array(["u", "v"]),
    }
    rows = pa.table(kinds)
    path = str(tmp_path / "t")
    DeltaTable.create(path, rows.schema)
    keys = ["i", "s", "d", "m", "b", "t", "ümlaut ID"]
    writer = DeltaWriter(path, None, keys=keys, application="a")
    for batch in range(2):
        done = writer.upsert(rows, batch, deleted="_", passed=None, author="", guard=lambda: None)
        assert done == rows.num_rows
    assert writer.append(rows, 2, author="", guard=lambda: None) == 0
    found = DeltaTable(path).to_pyarrow_table()
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))


def test_rows_that_the_watermark_has_passed_become_final(tmp_path: Path) -> None:
    place = Place(tmp_path, finality=Finality("at", "is_final"))

    def at(number: int) -> int:
        return round(T0.timestamp() * 1000) + number * 60_000 + 124

    place.upsert([row(1, 1, "old", is_final=None), row(1, 5, "open", is_final=False), row(1, None, "no end")])
    # One of them changes in the same batch, and its mark is the batch's.
    assert place.upsert([row(2, 2, "new", is_final=True)], passed=(-1, at(2))) == 2
    marks = {one["name"]: one["is_final"] for one in place.rows}
    assert marks == {"old": True, "open": False, "no end": None, "new": True}
    assert place.upsert([row(1, 5, "late", is_final=True)], passed=(at(2), at(5))) == 1
    assert {one["name"]: one["is_final"] for one in place.rows}["late"] is True
    # Nothing has changed: there is no commit.
    version = DeltaTable(place.path).version()
    assert place.upsert([], passed=(at(5), at(6))) == 0
    assert DeltaTable(place.path).version() == version


@pytest.mark.parametrize("how", ["append", "upsert"])
def test_a_commit_of_somebody_else_meanwhile_is_built_upon(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)
    getattr(place, how)([row(1, 1, "a")])
    asked = []

    def guard() -> None:
        asked.append(1)
        if len(asked) == 1:
            # The row that the batch is about to write: for the append it is known by then.
            write_deltalake(place.path, table_of([row(1, 2, "theirs")]), mode="append")

    getattr(place, how)([row(1, 2, "ours"), row(1, 3, "c")], guard=guard)
    assert len(asked) == 2
    assert place.names == (["a", "c", "theirs"] if how == "append" else ["a", "c", "ours"])


@pytest.mark.parametrize("how", ["append", "upsert"])
def test_who_is_fenced_off_meanwhile_writes_nothing(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)
    getattr(place, how)([row(1, 1, "a")])

    def fence() -> None:
        shut = CommitProperties(app_transactions=[Transaction("a", SHUT)])
        table = DeltaTable(place.path)
        table.create_write_transaction([], "append", table.schema(), commit_properties=shut)

    assert getattr(place, how)([row(1, 2, "b")], guard=fence) is None
    assert place.names == ["a"]


@pytest.mark.parametrize("how", ["append", "upsert"])
def test_a_guard_that_refuses_leaves_the_table_as_it_is(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)

    def lost() -> None:
        raise StreamwardenError("LEASE_LOST", "another driver has it")

    with pytest.raises(StreamwardenError, match="LEASE_LOST"):
        getattr(place, how)([row(1, 2, "b")], guard=lost)
    assert DeltaTable(place.path).version() == 0


def test_a_commit_names_its_author_and_its_batch(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.upsert([row(1, 1, "a")], batch=7)
    place.append([row(1, 2, "b")], batch=8)
    table = DeltaTable(place.path)
    assert [one.get("userMetadata") for one in table.history(2)] == ["me", "me"]
    assert table.transaction_version("a") == 8


def test_statistics_that_are_cut_to_milliseconds_hide_no_row(tmp_path: Path) -> None:
    """Spark cuts a file's greatest moment down to the millisecond, and texts to 32 characters."""
    place = Place(tmp_path)
    place.append([row(1, 0, "a"), row(1, 1, "b")])
    entry = Path(place.path, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats["maxValues"]["at"] = "2024-01-01T00:01:00.123Z"
            action["add"]["stats"] = json.dumps(stats)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    assert place.append([row(1, 1, "again")]) == 0
    assert place.upsert([row(1, 1, "c")]) == 1
    assert place.names == ["a", "c"]


def test_files_that_the_keys_do_not_reach_are_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for batch in range(4):
        place.append([row(zone, 1000 * batch, "old") for zone in range(3)])
    before = set(DeltaTable(place.path).file_uris())
    place.upsert([row(1, 3000, "new"), row(9, 3001, "new")])
    assert len(before & set(DeltaTable(place.path).file_uris())) == 3


@pytest.mark.parametrize(
    "configuration",
    [{"delta.enableChangeDataFeed": "true"}, {"delta.appendOnly": "true"}, {"delta.enableDeletionVectors": "true"}],
    ids=str,
)
def test_a_table_that_needs_spark_is_not_touched(tmp_path: Path, configuration: dict[str, str]) -> None:
    place = Place(tmp_path, configuration=configuration)
    with pytest.raises(UnfitTableError):
        place.upsert([row(1, 1, "a")])
    assert DeltaTable(place.path).version() == 0


def test_columns_of_others_are_null_in_rows_that_are_inserted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.append([row(1, 1, "a")])
    theirs = table_of([row(1, 2, "b", note="theirs")], pa.field("note", pa.string()))
    write_deltalake(place.path, theirs, mode="append", schema_mode="merge")
    place.upsert([row(1, 2, "c"), row(1, 3, "d")])
    place.append([row(1, 4, "e")])
    assert {one["name"]: one["note"] for one in place.rows} == {"a": None, "c": "theirs", "d": None, "e": None}


def test_duplicates_are_seen() -> None:
    assert has_duplicates(table_of([row(None, 1), row(None, 1)]), KEYS)
    assert not has_duplicates(table_of([row(None, 1), row(None, 2), row(1, 1)]), KEYS)
