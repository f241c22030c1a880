"""Lineage of the gate's decisions, received by a real server and checked against the specification."""

import logging
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.quality import gate, lineage, lineage_sender, range_judge
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_watch import watch
from streamwarden.quality.lineage import open_lineage
from tests.http_receiver import wait_until
from tests.lineage import LineageReceiver, check, configured, kinds
from tests.unit.quality.gate_place import KEY, ZONE, Place, rule

pytestmark = pytest.mark.unit

TASK = "airflow/gate.watch/0190a3c1-0000-7000-8000-000000000001"
DAG = "https://airflow.test/x/gate/0190a3c1-0000-7000-8000-000000000002"


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def receiver():
    with LineageReceiver() as found, configured(found):
        yield found


@pytest.fixture
def checked(receiver):
    """The receiver; all that it got is checked at the end."""
    yield receiver
    assert receiver.events
    assert set(receiver.paths) == {"/api/v1/lineage"}
    for event in receiver.events:
        check(event)


@pytest.fixture
def unset(tmp_path, monkeypatch):
    """No configuration of OpenLineage, whatever the machine has."""
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ, {"HOME": str(tmp_path)}):
        for name in [one for one in os.environ if one.startswith("OPENLINEAGE")]:
            del os.environ[name]
        yield


def decide(place, table="windows", **options):
    with open_lineage(place.workspace) as found:
        return Gate(place.workspace, place.suites, found).decide(table, **options)


def tags(event):
    """The tags that the gate sets; the client adds its version."""
    found = event["run"]["facets"]["tags"]["tags"]
    return {one["key"]: one["value"] for one in found if one["source"] == "STREAMWARDEN"}


def datasets(event, side):
    return [(one["namespace"], one["name"], one["facets"]["version"]["datasetVersion"]) for one in event[side]]


def test_a_published_range(place, checked):
    place.suite(ZONE, KEY, rule("column_values_to_not_be_null", "known", severity="warning", column="source_file"))
    place.write(1, 2)
    decision = decide(place)
    start, end = checked.events
    assert kinds(checked.events) == ["START", "COMPLETE"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("streamwarden", "gate.windows")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert start["inputs"] == start["outputs"] == []
    assert "parent" not in end["run"]["facets"]
    folder = place.workspace.root
    assert datasets(end, "inputs") == [("file", f"{folder}/tables/windows", "0")]
    assert datasets(end, "outputs") == [("file", f"{folder}/published/windows", "0")]
    assert tags(end) == {"decision": "published", "by": "gate", "suite": decision.suite, "check": decision.run}
    facets = end["inputs"][0]["inputFacets"]
    assert facets["dataQualityMetrics"]["rowCount"] == 2
    found = {one["name"]: one for one in facets["dataQualityAssertions"]["assertions"]}
    zone, key, known = found["zone"], found["key"], found["known"]
    assert (zone["assertion"], zone["column"]) == ("expect_column_values_to_be_between", "zone")
    assert (zone["success"], zone["severity"], zone["actual"]) == (True, "error", "all 2 rows")
    assert zone["params"]["max_value"] == 265
    assert "column" not in key and key["params"]["column_list"] == ["start", "zone"]
    assert known["severity"] == "warn"


def test_a_held_range_is_no_failed_run_and_has_no_output(place, checked):
    place.write(1, 777000333)
    decide(place)
    _, end = checked.events
    assert (end["eventType"], end["outputs"], tags(end)["decision"]) == ("COMPLETE", [], "held")
    found = {one["name"]: one for one in end["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]}
    assert (found["zone"]["success"], found["key"]["success"]) == (False, True)
    assert found["zone"]["actual"] == "1 of 2 rows fails (50.00 %)"
    # Counts, but no row: a lineage service is read by many.
    assert b"777000333" not in checked.bodies[-1]


def test_a_persons_decision_by_the_command(place, checked):
    given = ["--root", str(place.workspace.root), "--expectations", str(place.suites)]
    place.write(1)
    assert CliRunner().invoke(app, ["gate", "check", "windows", *given]).exit_code == 0
    place.write(300, hour=1)
    assert CliRunner().invoke(app, ["gate", "check", "windows", *given]).exit_code == 1
    assert CliRunner().invoke(app, ["gate", "accept", "windows", "--note", "new", *given]).exit_code == 0
    assert kinds(checked.events) == ["START", "COMPLETE"] * 3
    assert len({event["run"]["runId"] for event in checked.events}) == 3
    end = checked.events[-1]
    assert (tags(end)["decision"], tags(end)["by"][:4]) == ("accepted", "cli:")
    assert datasets(end, "inputs")[0][2] == "1"
    assert datasets(end, "outputs")[0][2] == str(place.state.published.number)
    facet = end["inputs"][0]["inputFacets"]["dataQualityAssertions"]
    assert [one["success"] for one in facet["assertions"] if one["name"] == "zone"] == [False]


def test_a_refused_acceptance_and_a_mistyped_table_are_no_runs(place, receiver):
    place.write(1)
    decide(place)
    before = len(receiver.events)
    for name in ("windows", "widnows"):
        with open_lineage(place.workspace) as found, pytest.raises(StreamwardenError):
            Gate(place.workspace, place.suites, found).accept(name, by="ann", note="why")
    with pytest.raises(StreamwardenError):
        decide(place, "widnows")
    assert decide(place) is None
    assert len(receiver.events) == before


def test_an_error_fails_the_run(place, checked):
    place.write(1)
    (place.suites / "windows.json").write_text("{")
    with pytest.raises(StreamwardenError):
        decide(place)
    assert kinds(checked.events) == ["START", "FAIL"]
    message = checked.events[-1]["run"]["facets"]["errorMessage"]
    assert message["message"].startswith("[SUITE_INVALID]") and message["programmingLanguage"] == "PYTHON"


def test_a_gate_that_is_overtaken_aborts_its_run(place, checked, monkeypatch):
    place.write(1)
    judge, calls = range_judge.RangeJudge.judge, []

    def overtaken(self, suite, versions, added, version):
        found = judge(self, suite, versions, added, version)
        calls.append(version)
        if len(calls) == 1:
            place.decide()
        return found

    monkeypatch.setattr(range_judge.RangeJudge, "judge", overtaken)
    monkeypatch.setattr(gate, "_decision", _raising_once(gate._decision))
    assert decide(place) is None
    assert kinds(checked.events) == ["START", "ABORT"]


def _raising_once(work):
    """Let the first gate lose the race: as if its write had come second."""
    calls = []

    def raising(*given):
        calls.append(given)
        if len(calls) == 2:
            raise gate.Conflict("another gate has published")
        return work(*given)

    return raising


def test_a_rule_about_recent_rows_is_a_run_only_if_it_breaks(place, checked):
    fresh = rule(
        "column_max_to_be_between", "fresh", meta={"recent": {"column": "start", "days": 1}}, column="zone", max_value=9
    )
    place.suite(ZONE, fresh)
    place.write(1)
    decide(place)
    assert decide(place, idle=True) is None
    assert kinds(checked.events) == ["START", "COMPLETE"]
    fresh["kwargs"]["max_value"] = 0
    place.suite(ZONE, fresh)
    decide(place, idle=True)
    assert kinds(checked.events) == ["START", "COMPLETE"] * 2
    assert tags(checked.events[-1])["decision"] == "held"


def test_a_watch_is_the_parent_of_its_decisions(place, checked, monkeypatch):
    monkeypatch.setattr(lineage, "RUNNING_S", 0.0)
    place.write(1)
    told, stop = [], threading.Event()
    given = {"OPENLINEAGE_PARENT_ID": TASK, "OPENLINEAGE_ROOT_PARENT_ID": DAG, "OPENLINEAGE_NAMESPACE": "ours"}
    with configured(checked, **given), open_lineage(place.workspace) as found:
        watched = Gate(place.workspace, place.suites, found)
        running = threading.Thread(
            target=watch,
            args=(place.workspace, watched, lambda *it: told.append(it), stop),
            kwargs={"poll": 0.05},
        )
        running.start()
        wait_until(lambda: told and "RUNNING" in kinds(checked.of("gate")))
        stop.set()
        running.join(30)
    own, decided = checked.of("gate"), checked.of("gate.windows")
    assert (own[0]["eventType"], own[-1]["eventType"]) == ("START", "COMPLETE")
    assert set(kinds(own[1:-1])) == {"RUNNING"}
    assert {event["job"]["namespace"] for event in checked.events} == {"ours"}
    assert {event["job"]["facets"]["jobType"]["processingType"] for event in own} == {"SERVICE"}
    assert kinds(decided) == ["START", "COMPLETE"]
    for events, parent, job in ((own, TASK.split("/")[2], "gate.watch"), (decided, own[0]["run"]["runId"], "gate")):
        for facet in (event["run"]["facets"]["parent"] for event in events):
            assert (facet["run"]["runId"], facet["job"]["name"]) == (parent, job)
            assert facet["root"]["run"]["runId"] == DAG.rsplit("/", 1)[1]
            assert facet["root"]["job"]["namespace"] == "https://airflow.test/x"


def test_a_watch_that_cannot_start_fails(place, checked):
    (place.suites / "windows.json").unlink()
    with open_lineage(place.workspace) as found, pytest.raises(StreamwardenError):
        watch(place.workspace, Gate(place.workspace, place.suites, found), print, threading.Event())
    assert kinds(checked.events) == ["START", "FAIL"]


def test_a_parent_that_is_none_is_left_out(place, checked, caplog):
    place.write(1)
    with configured(checked, OPENLINEAGE_PARENT_ID="airflow/gate.watch/try-1"):
        decide(place)
    assert "parent" not in checked.events[-1]["run"]["facets"]
    assert "OPENLINEAGE_PARENT_ID is no NAMESPACE/JOB/RUN" in caplog.text


def test_a_decision_whose_documents_are_gone_is_told_without_them(place, checked, monkeypatch, caplog):
    def unreachable(*_):
        raise StreamwardenError("S3_UNREACHABLE", "no answer")

    place.write(1)
    with open_lineage(place.workspace) as found:
        monkeypatch.setattr("streamwarden.quality.lineage_events.result_of", unreachable)
        assert Gate(place.workspace, place.suites, found).decide("windows").version == 0
    assert (kinds(checked.events), checked.events[-1]["inputs"]) == (["START", "COMPLETE"], [])
    assert "S3_UNREACHABLE" in caplog.text


def test_buckets_are_named_without_sparks_scheme():
    from streamwarden.quality.lineage_events import _place

    workspace = SimpleNamespace(uri=lambda key: f"s3a://trips/a b/{key}")
    assert _place(workspace, "tables/windows") == ("s3://trips", "a b/tables/windows")


# ---- the receiver is away, slow, or not wanted -----------------------------------------------------------------------


def closed_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


def test_nobody_listens(place, caplog, monkeypatch):
    place.write(1)
    place.decide()
    place.write(2, hour=1)
    monkeypatch.setattr(lineage_sender.Sender.close, "__defaults__", (1.0,))
    with configured(SimpleNamespace(endpoint=closed_port())), open_lineage(place.workspace) as found:
        began = time.monotonic()
        decision = Gate(place.workspace, place.suites, found).decide("windows")
        assert (decision.version, place.published) == (1, [1, 2])
        # Like a gate without lineage: the client retries for 9 seconds in its own thread.
        assert time.monotonic() - began < 5
        began = time.monotonic()
        found.close()
        assert time.monotonic() - began < 2
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said and all("OpenLineage events are lost" in one for one in said)


@pytest.mark.parametrize("status", [500, 403])
def test_a_receiver_that_refuses_is_told_once(place, caplog, status):
    once = {"OPENLINEAGE__TRANSPORT__TYPE": "http", "OPENLINEAGE__TRANSPORT__RETRY": '{"total": 0}'}
    with LineageReceiver(status=status) as refusing:
        with configured(refusing, OPENLINEAGE__TRANSPORT__URL=refusing.endpoint, **once):
            for hour in range(3):
                place.write(hour + 1, hour=hour)
            with open_lineage(place.workspace) as found:
                run = Gate(place.workspace, place.suites, found)
                for _ in range(3):
                    assert run.decide("windows", anew=True).verdict == "published"
        assert len(refusing.events) == 6
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and "1 so far" in said[0]


def test_a_slow_receiver_delays_the_end_by_a_bounded_time(place, caplog, monkeypatch):
    monkeypatch.setattr(lineage_sender.Sender.close, "__defaults__", (0.5,))
    place.write(1)
    place.decide()
    with LineageReceiver(delay=60) as slow, configured(slow):
        place.write(2, hour=1)
        began = time.monotonic()
        assert decide(place).version == 1
        assert time.monotonic() - began < 10
    assert "not sent within 0.5 s" in caplog.text


def test_a_full_queue_loses_events_and_nothing_else(caplog, monkeypatch):
    monkeypatch.setattr(lineage_sender, "QUEUED", 2)
    blocked, sent = threading.Event(), []

    def emit(event):
        blocked.wait(30)
        sent.append(event)

    sender = lineage_sender.Sender(SimpleNamespace(emit=emit, close=lambda timeout: True))
    for number in range(9):
        sender.send(number)
    blocked.set()
    sender.close()
    assert sent[0] == 0 and len(sent) in (2, 3)
    assert caplog.text.count("events are lost") == 1


def test_without_configuration_nothing_is_imported(place, unset, monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    place.write(1)
    threads = threading.active_count()
    with open_lineage(place.workspace) as found:
        assert Gate(place.workspace, place.suites, found).decide("windows").version == 0
        assert threading.active_count() == threads


def test_configured_but_not_installed(place, unset, monkeypatch, caplog):
    monkeypatch.setattr(lineage_sender, "find_spec", lambda name: None)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    assert lineage_sender.configured_client() is None
    assert "install streamwarden[lineage]" in caplog.text


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        ("facets: {}", ""),
        ("transport: {type: noop}", ""),
        ("transport: {type: carrier_pigeon}", "configuration is wrong"),
        ("transport: {type: http}", "configuration is wrong"),
    ],
)
def test_configurations_that_send_nothing(unset, tmp_path, caplog, content, warning):
    (tmp_path / "openlineage.yml").write_text(content)
    assert lineage_sender.configured_client() is None
    said = [record.message for record in caplog.records if record.name.startswith("streamwarden")]
    assert (warning in " ".join(said)) if warning else not said


def test_a_file_of_events_by_a_configuration_file(place, unset, tmp_path):
    place.write(1)
    (tmp_path / "openlineage.yml").write_text(
        f"transport: {{type: file, log_file_path: {tmp_path}/events.jsonl, append: true}}"
    )
    decide(place)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
