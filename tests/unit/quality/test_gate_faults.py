"""Faults that the gate must name, survive or notice: each was seen, or found by review."""

import json
import threading
import time
from datetime import timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.gate import Verdict
from streamwarden.model.spec import JobSpec
from streamwarden.quality import kept_results, range_judge
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.gate_watch import watch
from streamwarden.quality.table_versions import TableVersions, UnreadableHereError
from streamwarden.supervision.held_tables import held_tables
from tests.unit.quality.gate_place import KEY, START, ZONE, Place, rows, rule

pytestmark = pytest.mark.unit

MICROSECOND = timedelta(microseconds=1)
RECENT = {"recent": {"column": "start", "days": 1}}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def wait_until(done, seconds=60.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


class Watching:
    """`gate watch` in a thread."""

    def __init__(self, place):
        self.told, self._stop = [], threading.Event()
        tell = lambda name, found: self.told.append((name, found))  # noqa: E731
        given = (place.workspace, place.gate, tell, self._stop)
        self._thread = threading.Thread(target=watch, args=given, kwargs={"poll": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def wait_for(self, count):
        wait_until(lambda: len(self.told) >= count)
        return self.told[count - 1]


# Repeated keys


def test_a_repeated_key_with_microseconds_is_found(place):
    moment = START + timedelta(milliseconds=1) + 500 * MICROSECOND
    place.write(1, start=moment)
    place.decide()
    place.write(1, start=moment)
    assert place.decide().verdict is Verdict.HELD
    assert set(place.failures) == {"key"}


def test_a_repeated_key_with_a_null_is_found(place):
    place.suite(KEY)
    place.write(None, 1)
    place.decide()
    place.write(None, 2)
    assert place.decide().verdict is Verdict.HELD
    assert place.failures["key"].finding == "2 of 3 rows fail (66.67 %)"


def test_the_query_for_a_repeated_key_finds_the_older_row_as_well(place):
    place.write(1, 2)
    place.decide()
    place.write(2, 3)
    place.decide()
    found = duckdb.sql(place.failures["key"].query).fetchall()
    assert [row[1] for row in found] == [2, 2]


# Errors of one table


def test_an_error_of_any_kind_is_shown_and_does_not_stop_the_watch(place, monkeypatch):
    place.suite(ZONE, name="broken")
    place.write(1, table="broken")
    decide = Gate.decide

    def failing(self, table, **options):
        if table == "broken":
            raise RuntimeError("no space left")
        return decide(self, table, **options)

    monkeypatch.setattr(Gate, "decide", failing)
    with Watching(place) as watching:
        assert "no space left" in str(watching.wait_for(1)[1])
        place.write(1)
        name, decision = watching.wait_for(2)
        assert (name, decision.verdict) == ("windows", Verdict.PUBLISHED)
    trouble = gate_document(place.workspace, "broken").read().trouble
    assert (trouble.code, trouble.what) == ("RuntimeError", "no space left")
    given = ["gate", "status", "--root", str(place.workspace.root), "--expectations", str(place.suites)]
    shown = CliRunner().invoke(app, given).output
    assert "broken: no decision since" in shown and "no space left" in shown


def test_an_unreadable_suite_concerns_its_table_only(place):
    (place.suites / "broken.json").write_text("{")
    place.write(1, table="broken")
    place.write(1)
    with Watching(place) as watching:
        found = {watching.wait_for(count)[0]: watching.told[count - 1][1] for count in (1, 2)}
        assert found["broken"].code == "SUITE_INVALID"
        assert found["windows"].verdict is Verdict.PUBLISHED
        place.suite(ZONE, name="broken")
        assert watching.wait_for(3)[1].verdict is Verdict.PUBLISHED
    assert gate_document(place.workspace, "broken").read().trouble is None


def test_a_lasting_error_is_an_alarm(place):
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "module": "m",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "windows", "mode": "append"}],
        }
    )
    place.gate.note("windows", StreamwardenError("SUITE_INVALID", "windows.json: not JSON"))
    document = gate_document(place.workspace, "windows")
    assert held_tables(place.workspace, spec) == ()
    trouble = document.read().trouble
    document.update(lambda now: now.failed(trouble.since + timedelta(minutes=2), trouble.code, trouble.what))
    from streamwarden.supervision import held_tables as module

    module._known.clear()
    (found,) = held_tables(place.workspace, spec)
    assert found.since == trouble.since
    assert "cannot decide about windows" in found.what and "SUITE_INVALID: windows.json: not JSON" in found.what


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.timestamp("us", "UTC"), "2023-03-06 08:00:00"),
        (pa.timestamp("us", "UTC"), "2023-03-06T08:00:00.000000Z"),
        (pa.timestamp("us"), "2023-03-06 08:00:00"),
    ],
    ids=["utc", "utc, with a zone", "no zone"],
)
def test_a_table_partitioned_by_a_timestamp_is_checked(place, kind, text):
    start = START if kind.tz else START.replace(tzinfo=None)
    place.write(data=rows(1, start=start, kind=kind), partition_by=["start"])
    place.decide()
    place.write(data=rows(2, 300, start=start, kind=kind), partition_by=["start"])
    # As Delta on Spark writes it, by its setting.
    log = place.workspace.root / "tables/windows/_delta_log/00000000000000000001.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for add in (one["add"] for one in actions if "add" in one):
        add["partitionValues"]["start"] = text
    log.write_text("\n".join(map(json.dumps, actions)))
    assert place.decide().verdict is Verdict.HELD
    assert place.failures["zone"].examples[0]["start"] == "2023-03-06T08:00:00Z"
    assert [row[1] for row in duckdb.sql(place.failures["zone"].query).fetchall()] == [300]


def test_a_missing_older_file_is_damage(place):
    place.write(1)
    place.decide()
    for path in (place.workspace.root / "tables/windows").glob("*.parquet"):
        path.unlink()
    place.write(1)
    with pytest.raises(StreamwardenError, match="TABLE_DAMAGED"):
        place.decide()


def test_rules_that_only_spark_can_judge_go_to_spark(place, monkeypatch):
    place.suite(rule("table_row_count_to_be_between", "some", meta=RECENT, min_value=1))
    place.write(1)
    asked = []

    def by_spark(workspace, suite, path, version, added, **_):
        asked.append((suite.expectations[0].meta.id, version, added is None))
        return []

    def unreadable(self, files, version):
        raise UnreadableHereError("the table may have deletion vectors")

    monkeypatch.setattr(range_judge, "judge_wider_by_spark", by_spark)
    assert place.decide().verdict is Verdict.PUBLISHED
    monkeypatch.setattr(TableVersions, "scan", unreadable)
    assert place.decide(idle=True) is None
    assert asked == [("some", 0, True)]


# Decisions of a person


def test_a_range_that_is_held_after_anew_is_accepted_as_such(place):
    place.write(1)
    place.decide()
    place.write(300, hour=1)
    place.write(2, hour=2)
    DeltaTable(place.table).create_checkpoint()
    (place.workspace.root / "tables/windows/_delta_log/00000000000000000001.json").unlink()
    with pytest.raises(StreamwardenError, match="GATE_LOG_GONE"):
        place.decide()
    assert place.decide(anew=True).verdict is Verdict.HELD
    accepted = place.gate.accept("windows", by="ann", note="as it is")
    assert (accepted.verdict, accepted.after, accepted.version) == (Verdict.ACCEPTED, -1, 2)
    assert place.published == [1, 2, 300]


def test_after_accept_the_watch_decides_about_what_waits(place):
    place.write(300)
    with Watching(place) as watching:
        assert watching.wait_for(1)[1].verdict is Verdict.HELD
        place.write(2, hour=1)
        Gate(place.workspace, place.suites).accept("windows", by="ann", note="a new zone")
        assert watching.wait_for(2)[1].version == 1
    assert place.published == [2, 300]


def test_a_passing_error_is_tried_again_without_a_new_version(place, monkeypatch):
    decide, calls = Gate.decide, []

    def once(self, table, **options):
        calls.append(table)
        if len(calls) == 1:
            raise StreamwardenError("S3_UNREACHABLE", "no answer")
        return decide(self, table, **options)

    monkeypatch.setattr(Gate, "decide", once)
    place.write(1)
    with Watching(place) as watching:
        assert watching.wait_for(1)[1].code == "S3_UNREACHABLE"
        assert watching.wait_for(2)[1].verdict is Verdict.PUBLISHED
    assert place.state.record.trouble is None


def test_a_gate_that_is_overtaken_writes_no_hold(place, monkeypatch):
    place.write(1)
    place.decide()
    place.write(300, hour=1)
    slow, judge = Gate(place.workspace, place.suites), range_judge.RangeJudge.judge

    def overtaken(self, suite, versions, added, version):
        found = judge(self, suite, versions, added, version)
        if self is slow._judge and version == 1:
            # Meanwhile the rows are corrected, and another gate publishes.
            DeltaTable(place.table).update({"zone": "2"}, predicate="zone = 300")
            place.decide()
        return found

    monkeypatch.setattr(range_judge.RangeJudge, "judge", overtaken)
    assert slow.decide("windows") is None
    assert (place.state.record.hold, place.published) == (None, [1, 2])


def test_a_hold_that_a_killed_gate_left_behind_holds_nothing(place):
    place.write(1)
    place.decide()
    place.write(300, hour=1)
    place.decide()
    held = place.state.record.hold
    place.gate.accept("windows", by="ann", note="as it is")
    # As if the gate was killed between the log and the document.
    gate_document(place.workspace, "windows").update(lambda now: now.model_copy(update={"hold": held}))
    assert place.state.hold is None
    place.write(2, hour=2)
    assert place.decide().verdict is Verdict.PUBLISHED


def test_a_broken_rule_without_new_versions_is_no_held_range(place):
    place.suite(ZONE, rule("column_max_to_be_between", "fresh", meta=RECENT, column="zone", max_value=9))
    place.write(1)
    place.decide()
    place.suite(ZONE, rule("column_max_to_be_between", "fresh", meta=RECENT, column="zone", max_value=0))
    assert place.decide(idle=True).verdict is Verdict.HELD
    given = ["gate", "status", "windows", "--root", str(place.workspace.root), "--expectations", str(place.suites)]
    shown = CliRunner().invoke(app, given).output
    assert "no version waits, but what is published up to version 0 fails a rule" in shown
    assert "gate accept" not in shown and "1 to 0" not in shown
    history = CliRunner().invoke(app, ["gate", "history", "windows", "--root", str(place.workspace.root)]).output
    assert "none new" in history


# Limits of memory


def test_too_many_recent_rows_go_to_spark(place, monkeypatch):
    place.suite(rule("table_row_count_to_be_between", "some", meta=RECENT, min_value=1))
    place.write(*range(1, 9))
    asked = []
    monkeypatch.setattr(range_judge, "judge_wider_by_spark", lambda *_, **__: asked.append(1) or [])
    monkeypatch.setattr("streamwarden.quality.in_memory.ROWS", 8)
    place.decide()
    assert not asked
    place.write(1, hour=1)
    place.decide()
    assert asked


def test_results_that_cannot_be_kept_are_bounded_and_counted(place, monkeypatch):
    monkeypatch.setattr(kept_results, "WAITING", 3)
    refused = StreamwardenError("QUALITY_TABLE_FAILED", "disk full")

    def fail(*_):
        raise refused

    with monkeypatch.context() as patch:
        patch.setattr("streamwarden.formats.quality_table.QualityTable.append", fail)
        for hour in range(3):
            place.write(hour + 1, hour=hour)
            place.decide()
        with pytest.raises(StreamwardenError, match="disk full; 3 older results are in the reports in quality/ only"):
            place.gate.keep_results()
    assert place.gate.keep_results() == 3


# Tables and suites that change


def test_a_suite_that_changes_during_a_check_is_named(place, monkeypatch):
    place.write(1, 300)
    judge = range_judge.RangeJudge.judge

    def changed(*given):
        found = judge(*given)
        place.suite({**ZONE, "kwargs": {**ZONE["kwargs"], "max_value": 300}}, KEY)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(range_judge.RangeJudge, "judge", changed)
        first = place.decide()
    assert (first.verdict, first.suite_changed) == (Verdict.HELD, True)
    second = place.decide(again=True)
    assert (second.verdict, second.suite_changed) == (Verdict.PUBLISHED, False)
    assert first.suite != second.suite and len(first.suite) == 12
    shown = (
        CliRunner().invoke(app, ["gate", "history", "windows", "--root", str(place.workspace.root), "--json"]).output
    )
    assert [one["suite"] for one in json.loads(shown)] == [first.suite, second.suite]


def test_two_checks_at_once_in_one_process_find_the_same(place):
    place.write(1, 300)
    gates, found = [Gate(place.workspace, place.suites) for _ in range(2)], []
    threads = [threading.Thread(target=lambda one=one: found.append(one.decide("windows"))) for one in gates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(one.verdict for one in found if one is not None) is Verdict.HELD
    assert place.failures["zone"].finding == "1 of 2 rows fails (50.00 %)"


def test_an_empty_range_is_published_without_a_check(place):
    place.write(1)
    place.decide()
    place.write()
    decision = place.decide()
    assert (decision.verdict, decision.rows, decision.run) == (Verdict.PUBLISHED, None, None)


def test_a_table_that_is_emptied_is_held_with_words(place):
    place.write(1)
    place.decide()
    DeltaTable(place.table).delete()
    assert place.decide().verdict is Verdict.HELD
    assert place.failures["no_rows"].finding == "version 1 removed all rows of the table"


@pytest.mark.parametrize("gone", ["zone", "start"])
def test_a_column_that_is_gone_is_named(place, gone):
    place.suite(ZONE, KEY, rule("column_values_to_not_be_null", "start", meta=RECENT, column="start"))
    place.write(1)
    place.decide()
    write_deltalake(place.table, rows(2).drop_columns([gone]), mode="overwrite", schema_mode="overwrite")
    assert place.decide().verdict is Verdict.HELD
    found = {one.expectation: one.finding for one in place.failures.values()}
    assert gone in found and gone in found[gone] and "could not be evaluated" in found[gone]


def test_nan_is_a_value_and_null_is_none(place):
    place.suite(
        rule("column_values_to_not_be_null", "null", column="x"),
        rule("column_values_to_be_between", "bounds", column="x", max_value=10),
        rule("column_max_to_be_between", "max", column="x", max_value=10),
        keys=["id"],
    )
    place.write(data=pa.table({"id": [1, 2, 3], "x": [1.0, float("nan"), None]}))
    assert place.decide().verdict is Verdict.HELD
    assert place.failures["null"].examples == [{"id": 3, "x": None}]
    assert place.failures["bounds"].examples == [{"id": 2, "x": "nan"}]
    assert place.failures["max"].finding == "found nan"


def test_decimals_are_compared_and_shown_exactly(place):
    money = pa.decimal128(38, 18)
    place.suite(
        rule("column_values_to_be_between", "bounds", column="x", max_value=10.5),
        rule("column_values_to_be_in_set", "set", severity="warning", column="x", value_set=[1.1, 10.5]),
        rule("column_max_to_be_between", "max", severity="warning", column="x", max_value=10.5),
        keys=["id"],
    )
    values = [Decimal("1.1"), Decimal("10.5"), Decimal("10.500000000000000001")]
    place.write(data=pa.table({"id": [1, 2, 3], "x": pa.array(values, money)}))
    assert place.decide().verdict is Verdict.HELD
    assert place.failures["bounds"].examples == [{"id": 3, "x": "10.500000000000000001"}]


def test_a_million_failing_rows_are_held_in_seconds_and_bounded_memory(place):
    rows_held = pa.table({"id": pa.array(range(1_000_000)), "x": pa.nulls(1_000_000, pa.int32())})
    place.suite(rule("column_values_to_not_be_null", "x", column="x"), keys=["id"])
    place.write(data=rows_held)
    before, began = pa.total_allocated_bytes(), time.process_time()
    assert place.decide().verdict is Verdict.HELD
    assert time.process_time() - began < 60
    assert place.failures["x"].finding.startswith("1,000,000 of 1,000,000 rows fail")
    assert len(place.failures["x"].examples) == 20
    # Nothing of it is kept.
    assert pa.total_allocated_bytes() - before < 50 * 2**20
    document = place.workspace.root / "control/gate/windows.json"
    assert not document.exists() or document.stat().st_size < 50_000


# What a person sees of a held range


def test_a_held_range_is_named_with_all_that_is_needed_to_find_it(place):
    place.write(1)
    place.decide()
    batch = CommitProperties(app_transactions=[Transaction("streamwarden/windows/g1", 7)])
    write_deltalake(place.table, rows(2, 300, 301, hour=1), mode="append", commit_properties=batch)
    place.decide()
    hold = place.state.record.hold
    assert (hold.batches, hold.source_files) == (["windows/g1/7"], ["trips-1.parquet"])
    given = ["gate", "status", "windows", "--root", str(place.workspace.root), "--expectations", str(place.suites)]
    shown = CliRunner().invoke(app, given).output
    spec = JobSpec.model_validate(
        {
            "name": "windows",
            "module": "m",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "windows", "mode": "append"}],
        }
    )
    (alarm,) = held_tables(place.workspace, spec)
    for text in (shown, alarm.what):
        for word in ("windows", "windows/g1/7", "trips-1.parquet", "zone=300", "start=2023-03-06T09:00:00Z"):
            assert word in text
        query = text[text.index("SET TimeZone") :].splitlines()[0].split("; see `streamwarden")[0]
        assert sorted(row[1] for row in duckdb.sql(query).fetchall()) == [300, 301]
    assert "version 1 is held" in shown and "from version 1 on" in alarm.what


def test_a_query_runs_for_each_kind_of_rule_about_rows(place):
    place.suite(
        ZONE,
        rule("unexpected_rows_expectation", "sql", unexpected_rows_query=(
            "WITH batch_rows AS (SELECT zone, start FROM {batch}) SELECT * FROM batch_rows WHERE zone > 265"
            " AND start = date_trunc('HOUR', start)"
        )),
        rule("column_values_to_be_in_set", "condition", column="zone", value_set=[1], condition_parser="spark",
             row_condition="source_file = 'trips-0.parquet'"),
    )  # fmt: skip
    place.write(1, 300)
    place.decide()
    assert set(place.failures) == {"zone", "sql", "condition"}
    for failure in place.failures.values():
        assert 300 in duckdb.sql(failure.query).fetchall()[0]


def test_times_are_shown_in_utc_whatever_the_machines_zone(place, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        place.write(1, 300)
        place.decide()
        assert place.failures["zone"].examples[0]["start"] == "2023-03-06T08:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_published_log_that_is_damaged_does_not_hide_other_tables(place):
    place.suite(ZONE, name="other")
    place.write(1, table="other")
    place.decide("other")
    place.write(1)
    place.decide()
    log = place.workspace.root / PublishedLog(place.workspace, "windows").key(0)
    log.write_bytes(b"{")
    given = ["gate", "status", "--root", str(place.workspace.root), "--expectations", str(place.suites)]
    shown = CliRunner().invoke(app, given).output
    assert "PUBLISHED_LOG_DAMAGED" in shown and "other" in shown
