"""Repeated keys of older rows, compared with a search in all of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from streamwarden.quality import older_files, older_rows
from streamwarden.quality.older_rows import OlderRows
from streamwarden.quality.suites import load_suite
from streamwarden.quality.table_versions import TableVersions
from streamwarden.store.workspace import open_workspace

BEGIN = datetime(2023, 3, 6, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("zone", pa.int32()), ("file", pa.string())])
SUITE = {
    "name": "t",
    "meta": {"keys": ["zone"]},
    "expectations": [
        {
            "type": "expect_compound_columns_to_be_unique",
            "kwargs": {"column_list": ["at", "zone"]},
            "severity": "critical",
            "meta": {"id": "of_numbers"},
        },
        {
            "type": "expect_compound_columns_to_be_unique",
            "kwargs": {"column_list": ["file", "zone"]},
            "severity": "critical",
            "meta": {"id": "of_texts"},
        },
    ],
}

moments = st.one_of(
    st.none(),
    # Some are less than a millisecond apart, and some are far from all others.
    st.integers(0, 5).map(lambda n: BEGIN + timedelta(microseconds=300 * n)),
    st.integers(0, 400).map(lambda n: BEGIN + timedelta(hours=n)),
    st.sampled_from([datetime(2009, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)]),
)
texts = st.one_of(st.none(), st.sampled_from(["a", "b", "x" * 40 + "1", "x" * 40 + "2", "\U0010ffff" * 33]))
rows = st.lists(st.tuples(moments, st.one_of(st.none(), st.integers(1, 4)), texts), min_size=1, max_size=12)


def table_of(found: list[tuple[datetime | None, int | None, str | None]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


def keys_of(table: pa.Table, names: list[str]) -> set[tuple[object, ...]]:
    keys = {tuple(row[name] for name in names) for row in table.to_pylist()}
    return {key for key in keys if any(value is not None for value in key)}


@settings(max_examples=30, deadline=None)
@given(older=st.lists(rows, min_size=1, max_size=4), new=rows)
def test_exactly_the_keys_that_older_rows_have_are_found(older, new):
    with TemporaryDirectory() as folder:
        (Path(folder) / "t.json").write_text(json.dumps(SUITE))
        suite = load_suite(Path(folder) / "t.json")
        workspace = open_workspace("local", root=folder)
        for part in [*older, new]:
            write_deltalake(workspace.table("t"), table_of(part), mode="append")
        versions = TableVersions(workspace, "t")
        latest = len(older)
        older_rows_of = OlderRows(versions, versions.added(latest - 1, latest), table_of(new), latest)
        repeated = [older_rows_of.repeated(one, suite.meta.keys) for one in suite.expectations]
        found = {one.expectation.meta.id: one.rows.slice(len(new)) for one in repeated if one is not None}
    everything = pa.concat_tables(table_of(part) for part in older)
    for rule, names in (("of_numbers", ["at", "zone"]), ("of_texts", ["file", "zone"])):
        expected = keys_of(everything, names) & keys_of(table_of(new), names)
        assert (keys_of(found[rule], names) if rule in found else set()) == expected


def test_an_outlier_among_the_new_rows_lets_no_older_file_be_read_again(tmp_path, monkeypatch):
    (tmp_path / "t.json").write_text(json.dumps(SUITE))
    suite = load_suite(tmp_path / "t.json")
    workspace = open_workspace("local", root=tmp_path)
    long_ago = datetime(2009, 1, 1, tzinfo=UTC)
    for month in range(3):
        times = [BEGIN + timedelta(days=31 * month, minutes=n) for n in range(100)]
        part = [(at, 1, f"month-{month}") for at in [long_ago + timedelta(hours=month), *times]]
        write_deltalake(workspace.table("t"), table_of(part), mode="append")
    versions = TableVersions(workspace, "t")
    added = versions.added(1, 2)
    fresh = versions.read(added.files, 2)
    older = OlderRows(versions, added, fresh, 2)
    assert not any(older.repeated(one, suite.meta.keys) for one in suite.expectations)
    assert {file for _, file, _ in older_files._spans_of} >= {one.path for one in versions.whole(1).files}

    def read(*_: object) -> None:
        pytest.fail("an older file was read")

    monkeypatch.setattr(older_files, "_spans", read)
    monkeypatch.setattr(older_rows, "run", read)
    assert not any(older.repeated(one, suite.meta.keys) for one in suite.expectations)
