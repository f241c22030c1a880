"""A check of whole tables in memory: no Spark is started, except for what does not fit."""

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.quality import check, runner
from tests.unit.quality.gate_place import KEY, ZONE, Place, rows, rule

pytestmark = pytest.mark.unit


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def run(place, **over):
    root = Path(place.workspace.root)
    given = {"tables_dir": root / "tables", "expectations_dir": place.suites, "results_dir": root / "quality"}
    return check(**{**given, **over})


def test_each_table_gets_its_verdict_without_spark(place):
    for name in ("bad", "empty", "lost", "absent", "bad_quarantine"):
        place.suite(ZONE, KEY, name=name)
    place.write(1, 2)
    place.write(3, hour=1)
    place.write(1, 300, table="bad")
    place.write(table="empty")
    place.write(table="bad_quarantine")
    place.write(1, table="lost")
    for path in (place.workspace.root / "tables/lost").glob("*.parquet"):
        path.unlink()
    found = {
        one.table: one
        for one in run(place, tables=["bad", "bad_quarantine", "empty", "lost", "absent", "windows"]).tables
    }
    statuses = {name: one.status for name, one in found.items()}
    assert statuses == {
        "bad": "failed",
        "bad_quarantine": "passed",
        "empty": "no_rows",
        "lost": "unreadable",
        "absent": "not_found",
        "windows": "passed",
    }
    assert (found["windows"].version, found["windows"].rows) == (1, 3)
    assert found["windows"].version_time and found["windows"].suite
    assert found["bad"].failures[0].examples[0]["zone"] == 300
    assert found["absent"].code == "TABLE_NOT_FOUND"
    # Without names, a table that is not there is no fault.
    assert "absent" not in {one.table for one in run(place).tables}
    with pytest.raises(StreamwardenError, match="TABLE_NOT_FOUND"):
        run(place, tables_dir=place.workspace.root / "elsewhere")


def test_a_version_is_checked_as_it_was(place):
    place.write(1)
    place.write(300, hour=1)
    assert run(place, versions={"windows": 0}).tables[0].status == "passed"
    assert run(place).tables[0].status == "failed"
    gone = run(place, tables=["windows"], versions={"windows": 7}).tables[0]
    assert gone.status == "not_found" and "no version 7" in gone.what


@pytest.mark.parametrize("how", ["rows", "vectors"])
def test_what_does_not_fit_is_left_to_spark(place, monkeypatch, how):
    place.suite(ZONE, name="small")
    place.write(1, table="small")
    if how == "rows":
        place.write(1, 2, 3)
        monkeypatch.setattr("streamwarden.quality.in_memory.ROWS", 2)
    else:
        settings = {"delta.enableDeletionVectors": "true"}
        write_deltalake(place.table, rows(1), configuration=settings)
        if "deletionVectors" not in (DeltaTable(place.table).protocol().reader_features or ()):
            pytest.skip("delta-rs makes no such table")
    asked = []

    def by_spark(suites, *_):
        asked.extend(suite.name for suite in suites)
        return runner._BySpark({}, "4", 0.0)

    monkeypatch.setattr(runner, "_judged_by_spark", by_spark)
    assert [one.table for one in run(place).tables] == ["small"]
    assert asked == ["windows"]


def test_two_checks_at_once_leave_two_whole_reports(place):
    place.write(1, 300)
    found = []
    threads = [threading.Thread(target=lambda: found.append(run(place))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.run_id for one in found}) == 2
    assert {one.tables[0].expectations[0].finding() for one in found} == {"1 of 2 rows fails (50.00 %)"}
    index = (place.workspace.root / "quality/index.html").read_text()
    assert all(one.run_id in index for one in found)


def test_a_suite_that_great_expectations_refuses_fails_before_a_table_is_read(place):
    place.write(1)
    place.suite(rule("wonders", "x", column="zone"))
    with pytest.raises(StreamwardenError, match="there is no expectation 'expect_wonders'"):
        run(place)
    assert not (place.workspace.root / "quality").exists()


def test_a_partitioned_table_is_read_with_its_columns(place):
    place.write(1, 300, partition_by=["zone"])
    assert run(place).tables[0].status == "failed"
