"""Every expectation that is shipped is broken on purpose, and must be named; then whole runs over Delta tables."""

import json
import shutil
import subprocess
import sys

import pytest
from pyspark.sql import functions as F

from streamwarden.errors import StreamwardenError
from streamwarden.quality import check, engine
from streamwarden.quality.documents import read_run
from streamwarden.storage import LocalStorage
from tests.quality_cases import (
    BAD_ROWS,
    CHANGES,
    EXPECTATIONS,
    GOOD,
    ROW_EXPECTATIONS,
    SCHEMAS,
    SUITES,
    bad_rows,
    session,
    trip,
    window,
)

pytestmark = pytest.mark.spark


def frame_of(spark, table, rows):
    names = [column.name for column in spark.createDataFrame([], SCHEMAS[table]).schema]
    # One partition: tasks are most of the cost of small frames.
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], SCHEMAS[table]).coalesce(1)


@pytest.fixture(scope="module")
def judge(spark):
    checker = engine.SparkChecker(examples=3)
    built = {name: engine.build(suite, EXPECTATIONS / f"{name}.json") for name, suite in SUITES.items()}

    def run(table, frame, rows):
        frame = frame.persist()
        try:
            return checker.run(SUITES[table], built[table], frame, rows)
        finally:
            frame.unpersist()

    return run


@pytest.fixture(scope="module")
def judged(spark, judge):
    """All bad rows of a table judged at once: ID to (result, number of rows)."""
    found = {}
    for table in BAD_ROWS:
        rows = bad_rows(table)
        found |= {item.id: (item, len(rows)) for item in judge(table, frame_of(spark, table, rows), len(rows))}
    return found


def test_every_shipped_expectation_is_broken_below():
    shipped = {item.meta.id for table in GOOD for item in SUITES[table].expectations}
    # A drift takes a thousand rows: tests/unit/quality/test_planted_faults.py.
    shipped = {name for name in shipped if not name.endswith(".drift")}
    assert set(ROW_EXPECTATIONS) | {name for change in CHANGES for name in change.fails} == shipped


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("table", sorted(GOOD))
def test_good_rows_meet_every_expectation(spark, judge, table):
    results = judge(table, frame_of(spark, table, GOOD[table]), len(GOOD[table]))
    assert [item.summary() for item in results if not item.success] == []
    # In the suite's order.
    assert [item.id for item in results] == [item.meta.id for item in SUITES[table].expectations]


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("expectation", ROW_EXPECTATIONS)
def test_an_expectation_finds_its_bad_rows_and_no_others(judged, expectation):
    found, rows = judged[expectation]
    table = expectation.split(".")[0]
    assert not found.success
    assert found.error is None
    assert found.unexpected_count == sum(case.fails.get(expectation, 0) for case in BAD_ROWS[table])
    assert found.unexpected_percent == pytest.approx(100 * found.unexpected_count / found.checked)
    assert found.checked <= rows
    # What failed can be found again.
    assert len(found.examples) == min(found.unexpected_count, 3)
    if "unexpected_rows_query" not in found.arguments:
        for name in (*SUITES[table].meta.keys, *found.columns):
            assert name in found.examples[0]


@pytest.mark.long
@pytest.mark.ci
def test_bad_rows_fail_no_other_expectation(judged):
    assert {name for name, (found, _) in judged.items() if not found.success} == set(ROW_EXPECTATIONS)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(sorted(change.fails)))
def test_a_wrong_table_fails_exactly_its_expectations(spark, judge, change):
    frame = frame_of(spark, change.table, GOOD[change.table])
    if change.drop:
        frame = frame.drop(change.drop)
    for name, kind in change.columns.items():
        values = F.lit(None).cast("int") if kind is None else F.col(name).cast(kind)
        frame = frame.withColumn(name, values)
    results = {item.id: item for item in judge(change.table, frame, len(GOOD[change.table]))}
    assert {name for name, item in results.items() if not item.success} == change.fails | change.unevaluated
    assert {name for name, item in results.items() if item.error is not None} == change.unevaluated


@pytest.mark.long
@pytest.mark.ci
def test_an_example_holds_keys_and_the_value_in_question(spark, judge):
    rows = [*GOOD["trips"], trip(20, PULocationID=300)]
    results = {item.id: item for item in judge("trips", frame_of(spark, "trips", rows), len(rows))}
    found = results["trips.PULocationID.zone"]
    assert found.examples == (
        {
            "source_file": "trips-1.parquet",
            "source_row": 20,
            "lpep_pickup_datetime": "2023-03-06T08:20:00Z",
            "PULocationID": 300,
        },
    )
    assert (found.checked, found.unexpected_count, found.unexpected_percent) == (17, 1, pytest.approx(100 / 17))


def test_nulls_are_no_unexpected_values_but_a_share_of_them_is_counted(spark, judge):
    results = {item.id: item for item in judge("trips", frame_of(spark, "trips", GOOD["trips"]), 16)}
    share = results["trips.passenger_count.not_null"]
    assert share.success
    assert (share.checked, share.unexpected_count, share.unexpected_percent) == (16, 2, 12.5)
    values = results["trips.passenger_count.plausible"]
    assert (values.checked, values.unexpected_count) == (14, 0)


def test_failing_rows_are_fetched_up_to_a_limit(spark):
    rows = [window(number, zone_id=0) for number in range(8)]
    suite = SUITES["zone_windows"]
    built = engine.build(suite, EXPECTATIONS)
    frame = frame_of(spark, "zone_windows", rows)
    for limit in (0, 2):
        results = {item.id: item for item in engine.SparkChecker(examples=limit).run(suite, built, frame, 8)}
        found = results["zone_windows.zone_id.zone"]
        assert (found.unexpected_count, len(found.examples)) == (8, limit)


# Whole runs


@pytest.fixture
def place(tmp_path):
    return tmp_path / "tables", tmp_path / "quality"


@pytest.fixture(scope="module")
def good_tables(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for table, rows in GOOD.items():
        frame_of(spark, table, rows).write.format("delta").save(str(folder / table))
    return folder


def run_check(spark, place, **over):
    tables_dir, results_dir = place
    options = {"tables_dir": tables_dir, "expectations_dir": EXPECTATIONS, "results_dir": results_dir, "spark": spark}
    return check(**{**options, **over})


def statuses(run):
    return {table.table: table.status for table in run.tables}


def test_a_whole_run_over_good_tables(spark, place, good_tables):
    run = run_check(spark, place, tables_dir=good_tables)
    run.raise_for_failures()
    assert statuses(run) == {"card_sessions": "passed", "trips": "passed", "zone_windows": "passed"}
    assert {(table.table, table.version, table.rows) for table in run.tables} == {
        ("card_sessions", 0, 4),
        ("trips", 0, 16),
        ("zone_windows", 0, 4),
    }
    assert all(table.version_time for table in run.tables)
    results = place[1]
    assert read_run(LocalStorage(results.parent), results.name, run.run_id) == run
    assert (results / run.run_id / "report.html").is_file()
    assert run.run_id in (results / "index.html").read_text(encoding="utf-8")
    # A session that was given goes on, without what the check had cached.
    assert spark.range(1).count() == 1
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


@pytest.mark.long
@pytest.mark.parametrize(
    "rows_of",
    [pytest.param(lambda table: GOOD[table]), pytest.param(bad_rows, marks=pytest.mark.ci)],
    ids=["good", "bad"],
)
def test_a_check_in_memory_finds_what_spark_finds(spark, place, rows_of):
    for table in GOOD:
        frame_of(spark, table, rows_of(table)).write.format("delta").save(str(place[0] / table))
    by_spark = run_check(spark, place)
    in_memory = run_check(None, place)
    assert (by_spark.spark, in_memory.spark) == (spark.version, None)

    def said(run):
        # Of many failing rows, each engine shows some.
        return [
            {
                **item.model_dump(exclude={"examples"}),
                "table": (one.table, one.status, one.version, one.rows, one.suite),
            }
            for one in run.tables
            for item in one.expectations
        ]

    assert said(in_memory) == said(by_spark)
    # Spark takes a commit's time from the file, delta-rs from what is in it.
    assert all(one.version_time for run in (in_memory, by_spark) for one in run.tables)


@pytest.mark.long
@pytest.mark.ci
def test_a_version_is_checked_as_it_was(spark, place):
    path = str(place[0] / "card_sessions")
    frame_of(spark, "card_sessions", GOOD["card_sessions"]).write.format("delta").save(path)
    frame_of(spark, "card_sessions", [session(9, status="ajar")]).write.format("delta").mode("append").save(path)
    latest = run_check(spark, place, tables=["card_sessions"])
    assert (latest.tables[0].status, latest.tables[0].version, latest.tables[0].rows) == ("failed", 1, 5)
    with pytest.raises(StreamwardenError) as caught:
        latest.raise_for_failures()
    assert caught.value.code == "EXPECTATIONS_FAILED"
    assert (
        "card_sessions@1: card_sessions.status.known [expect_column_values_to_be_in_set] on status: 1 of 5 rows"
        in str(caught.value)
    )
    before = run_check(spark, place, tables=["card_sessions"], versions={"card_sessions": 0})
    assert (before.tables[0].status, before.tables[0].version, before.tables[0].rows) == ("passed", 0, 4)
    beyond = run_check(spark, place, tables=["card_sessions"], versions={"card_sessions": 7})
    assert beyond.tables[0].status == "not_found"
    assert "no version 7" in beyond.tables[0].what


@pytest.mark.long
@pytest.mark.ci
def test_one_bad_table_does_not_hide_the_others(spark, place, good_tables):
    shutil.copytree(good_tables / "card_sessions", place[0] / "card_sessions")
    frame_of(spark, "trips", []).write.format("delta").save(str(place[0] / "trips"))
    assert statuses(run_check(spark, place)) == {"card_sessions": "passed", "trips": "no_rows"}
    run = run_check(spark, place, tables=["card_sessions", "trips", "zone_windows"])
    assert statuses(run) == {"card_sessions": "passed", "trips": "no_rows", "zone_windows": "not_found"}
    assert not run.success
    by_name = {table.table: table for table in run.tables}
    assert by_name["zone_windows"].code == "TABLE_NOT_FOUND"
    assert by_name["trips"].rows == 0
    with pytest.raises(StreamwardenError) as caught:
        run.raise_for_failures()
    assert caught.value.code == "EXPECTATIONS_FAILED"
    assert "trips: the table has no rows" in caught.value.what
    assert "no Delta table" in caught.value.what
    report = (place[1] / run.run_id / "report.html").read_text(encoding="utf-8")
    assert "no rows" in report
    assert "not found" in report


def test_missing_tables_are_said_as_such(spark, place):
    with pytest.raises(StreamwardenError) as caught:
        run_check(spark, place, tables=["trips"]).raise_for_failures()
    assert caught.value.code == "TABLE_NOT_FOUND"


def test_a_table_that_lost_a_file_is_unreadable(spark, place, good_tables):
    shutil.copytree(good_tables / "zone_windows", place[0] / "zone_windows")
    for path in (place[0] / "zone_windows").glob("*.parquet"):
        path.unlink()
    run = run_check(spark, place, tables=["zone_windows"])
    assert statuses(run) == {"zone_windows": "unreadable"}
    assert not run.success


@pytest.mark.long
@pytest.mark.ci
def test_warnings_are_reported_and_pass(spark, place):
    rows = [*GOOD["trips"], trip(20, VendorID=9, store_and_fwd_flag="<script>alert('x')</script>")]
    frame_of(spark, "trips", rows).write.format("delta").save(str(place[0] / "trips"))
    run = run_check(spark, place, tables=["trips"])
    run.raise_for_failures()
    assert statuses(run) == {"trips": "warned"}
    assert {item.id for item in run.tables[0].warnings} == {"trips.VendorID.known", "trips.store_and_fwd_flag.known"}
    report = (place[1] / run.run_id / "report.html").read_text(encoding="utf-8")
    assert "<script" not in report
    assert "&lt;script&gt;" in report


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"type": "expect_wonders"}, "there is no expectation 'expect_wonders'"),
        ({"kwargs": {"colum": "trips"}}, "z.a"),
        ({"kwargs": {"column": "trips", "mostly": 3}}, "z.a"),
    ],
)
def test_what_great_expectations_refuses_is_named(spark, place, good_tables, tmp_path, over, said):
    item = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "trips"},
        "severity": "critical",
        "meta": {"id": "z.a"},
        **over,
    }
    suite = {"name": "zone_windows", "meta": {"keys": ["zone_id"]}, "expectations": [item]}
    path = tmp_path / "zone_windows.json"
    path.write_text(json.dumps(suite), encoding="utf-8")
    with pytest.raises(StreamwardenError) as caught:
        run_check(spark, place, tables_dir=good_tables, expectations_dir=tmp_path)
    assert caught.value.code == "SUITE_INVALID"
    assert str(path) in caught.value.what
    assert said in caught.value.what
    assert not place[1].exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_check_with_a_session_of_its_own(place, good_tables):
    # `python -c` on purpose: PySpark's Connect client would end such a process silently; see quality/engine.py.
    code = (
        "import sys, pathlib; from streamwarden.quality import check\n"
        "run = check(tables_dir=sys.argv[1], expectations_dir=pathlib.Path(sys.argv[2]),"
        " results_dir=pathlib.Path(sys.argv[3]))\n"
        "print(run.run_id, run.success)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(good_tables), str(EXPECTATIONS), str(place[1])],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # Nothing else on stdout: a command that writes JSON there relies on it.
    run_id, success = ran.stdout.split()
    assert success == "True"
    assert (place[1] / run_id / "results.json").is_file()
