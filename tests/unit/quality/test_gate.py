"""The gate over real Delta tables, written and read by delta-rs."""

import json
import shutil
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.published_log import PublishedAt, PublishedLog
from streamwarden.formats.quality_table import QualityTable
from streamwarden.model.gate import Verdict
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.quality.gate_watch import watch
from streamwarden.quality.suites import Suite
from streamwarden.quality.table_versions import TableVersions
from streamwarden.quality.what_if import what_if
from streamwarden.storage import Conflict
from streamwarden.store.workspace import open_workspace

pytestmark = pytest.mark.unit

START = datetime(2023, 3, 6, 8, tzinfo=UTC)
SUITE = {
    "name": "windows",
    "meta": {"keys": ["start", "zone"]},
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "zone", "min_value": 1, "max_value": 265},
            "severity": "critical",
            "meta": {"id": "zone"},
        },
        {
            "type": "expect_compound_columns_to_be_unique",
            "kwargs": {"column_list": ["start", "zone"]},
            "severity": "critical",
            "meta": {"id": "key"},
        },
    ],
}


def rows(*zones, hour=0):
    return pa.table(
        {
            "start": pa.array([START + timedelta(hours=hour)] * len(zones), pa.timestamp("us", "UTC")),
            "zone": pa.array(zones, pa.int32()),
            "source_file": [f"trips-{hour}.parquet"] * len(zones),
        }
    )


@pytest.fixture
def place(tmp_path):
    suites = tmp_path / "expectations"
    suites.mkdir()
    (suites / "windows.json").write_text(json.dumps(SUITE))
    return open_workspace("local", root=tmp_path / "root"), suites


@pytest.fixture
def table(place):
    return place[0].table("windows")


@pytest.fixture
def gate(place):
    return Gate(*place)


def published(place):
    """Return the published zones, in order."""
    workspace = place[0]
    found = DeltaTable(str(workspace.root / "published" / "windows"))
    return sorted(row["zone"] for row in pa.table(found.scan()).to_pylist())


def test_what_passes_is_published_version_by_version(place, table, gate):
    write_deltalake(table, rows(1, 2))
    decision = gate.decide("windows")
    assert (decision.verdict, decision.after, decision.version, decision.rows) == (Verdict.PUBLISHED, -1, 0, 2)
    assert published(place) == [1, 2]
    assert gate.decide("windows") is None
    write_deltalake(table, rows(3, hour=1), mode="append")
    write_deltalake(table, rows(4, hour=2), mode="append")
    assert gate.decide("windows").version == 2
    assert published(place) == [1, 2, 3, 4]
    assert PublishedLog(place[0], "windows").versions() == [0, 1, 2]
    assert gate_state(place[0], "windows").waiting == 0


def test_a_failing_range_is_held_and_later_ones_wait(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, 300, hour=1), mode="append")
    decision = gate.decide("windows")
    assert decision.verdict is Verdict.HELD
    write_deltalake(table, rows(3, hour=2), mode="append")
    assert gate.decide("windows") is None
    state = gate_state(place[0], "windows")
    assert (state.waiting, state.published) == (2, PublishedAt(0, 0))
    (failure,) = state.record.hold.failures
    assert failure.expectation == "zone"
    assert failure.examples == [{"start": "2023-03-06T09:00:00Z", "zone": 300, "source_file": "trips-1.parquet"}]
    assert published(place) == [1]
    # Still failing, and held since the first decision.
    assert gate.decide("windows", again=True).verdict is Verdict.HELD
    assert gate_state(place[0], "windows").hold.since == state.hold.since
    DeltaTable(table).delete("zone = 300")
    assert gate.decide("windows", again=True).verdict is Verdict.PUBLISHED
    assert published(place) == [1, 2, 3]
    assert PublishedLog(place[0], "windows").at() == PublishedAt(3, 3)


def test_an_accepted_range_is_published_with_its_note(place, table, gate):
    write_deltalake(table, rows(1, 300))
    assert gate.decide("windows").verdict is Verdict.HELD
    write_deltalake(table, rows(2, hour=1), mode="append")
    accepted = gate.accept("windows", by="ann", note="a new zone")
    assert (accepted.verdict, accepted.version, accepted.by, accepted.note) == (
        Verdict.ACCEPTED,
        0,
        "ann",
        "a new zone",
    )
    assert published(place) == [1, 300]
    assert gate.decide("windows").version == 1
    assert published(place) == [1, 2, 300]
    with pytest.raises(StreamwardenError, match="GATE_NOTHING_HELD"):
        gate.accept("windows", by="ann", note="again")


def test_the_report_of_a_held_range_says_what_was_decided(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    for hour in (1, 2):
        write_deltalake(table, rows(300, hour=hour), mode="append")
    held = gate.decide("windows")
    report = place[0].root / "quality" / held.run / "report.html"
    assert "The gate holds versions 1 to 2: readers do not see that yet." in report.read_text(encoding="utf-8")
    gate.accept("windows", by="ann <a@b>", note="a new zone & more")
    text = report.read_text(encoding="utf-8")
    assert "accepted by ann &lt;a@b&gt;: “a new zone &amp; more”" in text
    assert "Readers see versions 1 to 2." in text
    assert "new rows of versions 1 to 2" in text


def test_a_key_that_repeats_an_older_row_is_found(place, table, gate):
    write_deltalake(table, rows(1, 2))
    gate.decide("windows")
    write_deltalake(table, rows(2, 3), mode="append")
    assert gate.decide("windows").verdict is Verdict.HELD
    (failure,) = gate_state(place[0], "windows").record.hold.failures
    assert (failure.expectation, failure.finding) == ("key", "2 of 3 rows fail (66.67 %)")


def test_readers_see_only_the_net_change_of_corrected_rows(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(300, hour=1), mode="append")
    DeltaTable(table).update({"zone": "2"}, predicate="zone = 300")
    assert gate.decide("windows").verdict is Verdict.PUBLISHED
    log = PublishedLog(place[0], "windows")
    assert log.versions() == [0, 1, 2]
    assert not any("add" in action for action in log.read(1))
    assert published(place) == [1, 2]


def test_a_restore_behind_held_versions_publishes_nothing_bad(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(300, hour=1), mode="append")
    assert gate.decide("windows").verdict is Verdict.HELD
    DeltaTable(table).restore(0)
    assert gate.decide("windows", again=True).rows is None
    assert published(place) == [1]


def test_an_emptied_table_is_held(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    DeltaTable(table).delete()
    assert gate.decide("windows").verdict is Verdict.HELD
    assert gate_state(place[0], "windows").record.hold.failures[0].expectation == "no_rows"
    assert published(place) == [1]


def test_rearranged_files_are_published_without_a_check(place, table, gate):
    write_deltalake(table, rows(1))
    write_deltalake(table, rows(2, hour=1), mode="append")
    gate.decide("windows")
    DeltaTable(table).optimize.compact()
    decision = gate.decide("windows")
    assert (decision.rows, decision.run) == (None, None)
    assert published(place) == [1, 2]


def test_a_publisher_that_was_killed_within_a_range_goes_on(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(300, hour=1), mode="append")
    DeltaTable(table).update({"zone": "2"}, predicate="zone = 300")
    log = PublishedLog(place[0], "windows")

    class Killed(Exception):
        pass

    calls = []

    def die():
        calls.append(1)
        if len(calls) == 2:
            raise Killed

    with pytest.raises(Killed):
        log.publish(log.at(), 2, changes=True, guard=die)
    assert log.at() == PublishedAt(1, 0)
    assert published(place) == [1]
    assert gate.decide("windows").verdict is Verdict.PUBLISHED
    assert (log.at(), published(place)) == (PublishedAt(2, 2), [1, 2])


def test_of_two_publishers_one_wins_and_the_other_decides_anew(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, hour=1), mode="append")
    log = PublishedLog(place[0], "windows")
    start = log.at()
    DeltaTable(table).update({"zone": "3"}, predicate="zone = 2")
    # The other publisher decided about both versions, and has begun.
    log.storage.create(
        log.key(1),
        b'{"commitInfo":{"timestamp":0,"tags":{"streamwarden.content":"0","streamwarden.literal":"false"}}}\n',
    )
    with pytest.raises(Conflict):
        log.publish(start, 1, changes=False)
    assert gate.decide("windows").version == 2
    assert published(place) == [1, 3]


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_a_damaged_entry_is_named_and_repaired(place, table, gate, lost, how):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, hour=1), mode="append")
    gate.decide("windows")
    write_deltalake(table, rows(300, hour=2), mode="append")
    DeltaTable(table).update({"zone": "3"}, predicate="zone = 300")
    gate.decide("windows")
    write_deltalake(table, rows(4, hour=3), mode="append")
    gate.decide("windows")
    log = PublishedLog(place[0], "windows")
    path = place[0].root / log.key(lost)
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-20])
    assert log.repair() == [lost] if not (how == "missing" and lost == 4) else log.repair() == []
    if lost < 4:
        assert path.read_bytes() == whole
    gate.decide("windows")
    assert published(place) == [1, 2, 3, 4]


def test_a_table_made_anew_is_refused_until_it_is_published_anew(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    shutil.rmtree(table)
    write_deltalake(table, rows(7))
    write_deltalake(table, rows(8, hour=1), mode="append")
    with pytest.raises(StreamwardenError, match="PUBLISHED_TABLE_REPLACED"):
        gate.decide("windows")
    assert gate.decide("windows", anew=True).version == 1
    assert published(place) == [7, 8]


def test_a_table_whose_first_commits_are_gone_is_published_as_it_is(place, table, gate):
    write_deltalake(table, rows(1))
    write_deltalake(table, rows(2, hour=1), mode="append")
    DeltaTable(table).create_checkpoint()
    (place[0].root / "tables/windows/_delta_log/00000000000000000000.json").unlink()
    write_deltalake(table, rows(3, hour=2), mode="append")
    assert gate.decide("windows").rows == 3
    assert published(place) == [1, 2, 3]
    write_deltalake(table, rows(4, hour=3), mode="append")
    gate.decide("windows")
    assert published(place) == [1, 2, 3, 4]


def test_a_lost_commit_of_the_range_is_named(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, hour=1), mode="append")
    write_deltalake(table, rows(3, hour=2), mode="append")
    DeltaTable(table).create_checkpoint()
    (place[0].root / "tables/windows/_delta_log/00000000000000000001.json").unlink()
    with pytest.raises(StreamwardenError, match="GATE_LOG_GONE"):
        gate.decide("windows")
    assert gate.decide("windows", anew=True).rows == 3
    assert published(place) == [1, 2, 3]


def test_partitioned_tables_are_read_with_their_partition_columns(place, table, gate):
    write_deltalake(table, rows(1, 300), partition_by=["zone", "source_file"])
    assert gate.decide("windows").verdict is Verdict.HELD
    assert gate_state(place[0], "windows").record.hold.failures[0].finding == "1 of 2 rows fails (50.00 %)"


def test_a_watch_publishes_new_versions_as_they_come_and_goes_on_after_an_error(place, table, gate):
    workspace, suites = place
    (suites / "absent.json").write_text(json.dumps({**SUITE, "name": "absent"}))
    told, stop = [], threading.Event()

    def tell(name, found):
        told.append((name, found))

    thread = threading.Thread(target=watch, args=(workspace, gate, tell, stop), kwargs={"poll": 0.02})
    write_deltalake(table, rows(1))
    thread.start()
    try:
        wait_until(lambda: len(told) == 1)
        write_deltalake(table, rows(2, hour=1), mode="append")
        wait_until(lambda: len(told) == 2)
        log = workspace.root / PublishedLog(workspace, "windows").key(1)
        whole = log.read_bytes()
        log.write_bytes(b"{")
        write_deltalake(table, rows(3, hour=2), mode="append")
        wait_until(lambda: len(told) == 3)
        assert isinstance(told[2][1], StreamwardenError) and told[2][1].code == "PUBLISHED_LOG_DAMAGED"
        log.write_bytes(whole)
        # Tried again without a new version.
        wait_until(lambda: len(told) == 4)
        write_deltalake(table, rows(300, hour=3), mode="append")
        wait_until(lambda: len(told) == 5)
    finally:
        stop.set()
        thread.join()
    assert [name for name, _ in told] == ["windows"] * 5
    assert [found.verdict for _, found in told[3:]] == [Verdict.PUBLISHED, Verdict.HELD]
    assert published(place) == [1, 2, 3]


def wait_until(done, seconds=30.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_suite_that_is_changed_counts_from_the_next_decision_on(place, table, gate):
    write_deltalake(table, rows(1, 300))
    assert gate.decide("windows").verdict is Verdict.HELD
    wider = json.loads(json.dumps(SUITE))
    wider["expectations"][0]["kwargs"]["max_value"] = 300
    (place[1] / "windows.json").write_text(json.dumps(wider))
    assert gate.decide("windows", again=True).verdict is Verdict.PUBLISHED


def test_the_query_of_a_failure_runs_as_it_is(place, table, gate):
    write_deltalake(table, rows(1, 300, 301))
    gate.decide("windows")
    (failure,) = gate_state(place[0], "windows").record.hold.failures
    assert [row[1] for row in duckdb.sql(failure.query).fetchall()] == [300, 301]


@given(st.lists(st.sampled_from(["good", "bad", "correct", "compact", "restore", "decide", "accept"]), max_size=14))
@settings(max_examples=25, deadline=None)
def test_readers_never_see_a_bad_row_that_nobody_accepted(tmp_path_factory, steps):
    """Whatever is done to the table in any order: published rows are a state of the table that passed."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "expectations").mkdir()
    (folder / "expectations" / "windows.json").write_text(json.dumps(SUITE))
    place = open_workspace("local", root=folder / "root"), folder / "expectations"
    gate, table = Gate(*place), place[0].table("windows")
    write_deltalake(table, rows(1))
    gate.decide("windows")
    accepted = 0
    for number, step in enumerate(steps, 1):
        if step in ("good", "bad"):
            write_deltalake(table, rows(1 if step == "good" else 300, hour=number), mode="append")
        elif step == "correct":
            DeltaTable(table).update({"zone": "2"}, predicate="zone = 300")
        elif step == "compact":
            DeltaTable(table).optimize.compact()
        elif step == "restore":
            # Refused if there is no later version.
            with suppress(DeltaError):
                DeltaTable(table).restore(0)
        elif step == "accept":
            with suppress(StreamwardenError):
                gate.accept("windows", by="ann", note="as it is")
                accepted += 1
        else:
            gate.decide("windows", again=True)
        found = published(place)
        assert accepted or 300 not in found
    if gate.decide("windows", again=True) is None or gate_state(place[0], "windows").waiting == 0:
        there = sorted(row["zone"] for row in pa.table(DeltaTable(table).scan()).to_pylist())
        assert published(place) == there


def test_results_are_kept_for_trends_and_a_changed_suite_is_tried_on_them(place, table, gate):
    for hour, zones in enumerate([(1, 2), (3,), (300,)]):
        write_deltalake(table, rows(*zones, hour=hour), mode="append")
        gate.decide("windows")
    assert gate.keep_results() == 6
    assert gate.keep_results() == 0
    found = QualityTable(place[0]).read("windows")
    assert [(row["version"], row["expectation"], row["success"]) for row in found] == [
        (0, "zone", True),
        (0, "key", True),
        (1, "zone", True),
        (1, "key", True),
        (2, "zone", False),
        (2, "key", True),
    ]
    assert [(row["checked"], row["unexpected"]) for row in found[::2]] == [(2, 0), (1, 0), (1, 1)]
    narrow, wide = json.loads(json.dumps(SUITE)), json.loads(json.dumps(SUITE))
    narrow["expectations"][0]["kwargs"]["max_value"] = 2
    wide["expectations"][0]["kwargs"]["max_value"] = 300
    for changed, held in ((SUITE, [2]), (narrow, [1, 2]), (wide, [])):
        suite = Suite.model_validate(changed)
        replayed = what_if(place[0], suite, place[1])
        assert [one.version for one in replayed if one.failed] == held
        assert [one.passed for one in replayed] == [True, True, False]
    assert PublishedLog(place[0], "windows").at() == PublishedAt(1, 1)


def test_a_check_of_the_whole_table_is_kept_beside_those_of_ranges(place, table, gate):
    write_deltalake(table, rows(1, 300))
    gate.decide("windows")
    gate.keep_results()
    root = ["--root", str(place[0].root)]
    done = CliRunner().invoke(app, ["check", "--expectations", str(place[1]), "--table", "windows", *root])
    assert done.exit_code == 1, done.output
    found = QualityTable(place[0]).read("windows")
    assert [(row["after"], row["expectation"], row["unexpected"]) for row in found] == [
        (-1, "zone", 1),
        (-1, "key", 0),
        (None, "zone", 1),
        (None, "key", 0),
    ]
    done = CliRunner().invoke(app, ["gate", "trend", "windows", "--json", *root])
    counted = {one["expectation"]: one["checked"] for one in json.loads(done.stdout)}
    assert counted == {"zone": 2, "key": 2}


def test_a_place_without_results_has_none(place, gate):
    assert QualityTable(place[0]).read("windows") == []
    assert gate.keep_results() == 0


def test_rows_that_were_rearranged_within_their_range_are_checked(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, hour=1), mode="append")
    write_deltalake(table, rows(300, hour=2), mode="append")
    DeltaTable(table).optimize.compact()
    assert gate.decide("windows").verdict is Verdict.HELD
    DeltaTable(table).delete("zone = 300")
    assert gate.decide("windows", again=True).verdict is Verdict.PUBLISHED
    assert published(place) == [1, 2]


def test_good_rows_that_were_rearranged_within_their_range_repeat_no_key(place, table, gate):
    write_deltalake(table, rows(1))
    gate.decide("windows")
    write_deltalake(table, rows(2, hour=1), mode="append")
    DeltaTable(table).optimize.compact()
    assert gate.decide("windows").verdict is Verdict.PUBLISHED
    assert published(place) == [1, 2]


def test_a_new_file_that_gets_a_deletion_vector_is_still_new(place, table):
    write_deltalake(table, rows(1))
    write_deltalake(table, rows(2, 300, hour=1), mode="append")
    versions = TableVersions(place[0], "windows")
    (new,) = versions.added(0, 1).files
    # As Delta on Spark writes a DELETE: the file with its vector, and then the removal of the file without it.
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    actions = [{"add": {**new.action, "deletionVector": vector}}, {"remove": {"path": new.path, "dataChange": True}}]
    log = place[0].root / "tables/windows/_delta_log/00000000000000000002.json"
    log.write_text("".join(json.dumps(one) + "\n" for one in actions))
    assert [one.path for one in versions.added(0, 2).files] == [new.path]
