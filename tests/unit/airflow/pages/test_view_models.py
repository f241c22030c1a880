from __future__ import annotations

import dataclasses
import math
import shlex
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

pytest.importorskip("airflow")

from streamwarden.airflow.pages.acts import ACTS
from streamwarden.airflow.pages.charts import sparkline
from streamwarden.airflow.pages.events import Event, events_of
from streamwarden.airflow.pages.fresh import Fresh
from streamwarden.airflow.pages.links import Links, page_address
from streamwarden.airflow.pages.operations import timeline_of
from streamwarden.airflow.pages.quality import TableQuality, checks_of
from streamwarden.airflow.pages.rates import Rates, rates_of
from streamwarden.airflow.pages.reading import read_curves, since_when
from streamwarden.airflow.pages.savepoints import lineage
from streamwarden.airflow.pages.stream import stream_page
from streamwarden.airflow.pages.streams import list_streams
from streamwarden.airflow.pages.words import ago, percent, rate, seconds, size
from streamwarden.cli.app import app
from streamwarden.formats.progress_history import Curves, Window
from streamwarden.formats.published_log import PublishedAt
from streamwarden.model.gate import GateRecord, Hold
from streamwarden.model.operation import Operation, OperationPlan, Step
from streamwarden.model.record import utc_now
from streamwarden.operations.overview import overview
from streamwarden.quality.gate_state import GateState
from streamwarden.savepoints import catalog
from streamwarden.savepoints.documents import manifest_document
from streamwarden.store.workspace import Workspace
from tests.unit.airflow.pages.made import OPERATION, batch, opened, populated, ran, spec
from tests.unit.savepoints import test_catalog

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ([1, 1, 9, 9, 9], 2),
        ([9, 1, 1, 9, 9], 3),
        # One small batch is no recovery; two are.
        ([1, 9, 1, 9, 9], 1),
        ([1, 9, 9, 1, 1], None),
        ([None, 9, None, 9], 1),
        ([1, 1], None),
        ([], None),
    ],
)
def test_since_when(values: list[float | None], start: int | None) -> None:
    assert since_when(values, 5) == start


def curves(window: Window, **columns: list[float]) -> Curves:
    zeros = np.zeros(window.points)
    known = {name: np.array(values, dtype=float) for name, values in columns.items()}
    names = ("duration_ms", "commit_ms", "checkpoint_ms", "rows_in", "late_rows", "source_pending")
    return Curves(window, np.ones(window.points), zeros, {name: known.get(name, zeros) for name in names})


def alone(_: Window) -> Curves | None:
    """Return nothing closer than what there is."""
    return None


def test_since_when_is_told_from_closer_curves_with_the_input_before() -> None:
    window = Window.of(NOW, timedelta(days=5), points=5)
    found = curves(window, duration_ms=[1000, 1000, 9000, 12000, 12000], rows_in=[864e3, 864e3, 864e4, 864e5, 864e5])
    asked: list[Window] = []

    def closer(near: Window) -> Curves:
        asked.append(near)
        steps = near.points
        slow = steps * 3 // 4
        took = [1000.0] * slow + [12000.0] * (steps - slow)
        rows = [10 * near.step] * slow + [1000 * near.step] * (steps - slow)
        return curves(near, duration_ms=took, rows_in=rows)

    told = read_curves(found, spec("lamp"), [], closer)
    day = window.times[2]
    assert asked[0].since.timestamp() == day - window.step and asked[0].until.timestamp() == day + window.step
    # Ever closer, until a point is a few seconds.
    near = asked[-1]
    assert len(asked) > 1 and near.step <= 5
    assert told[0].at is not None and told[0].at.timestamp() == near.times[near.points * 3 // 4]
    assert told[0].text.endswith("Before, they took 1 s.")
    assert told[1].text == "The input has risen since then, from 10 to 1,000 rows/s."


def test_the_time_in_which_a_driver_was_away_does_not_count_as_little_input() -> None:
    window = Window.of(NOW, timedelta(minutes=10), points=120)
    took: list[float] = [1000.0] * 60 + [math.nan] * 20 + [12000.0] * 40
    rows = [5000.0 if not math.isnan(value) else 0.0 for value in took]
    told = [one.text for one in read_curves(curves(window, duration_ms=took, rows_in=rows), spec("lamp"), [], alone)]
    assert told[0].endswith("Before, they took 1 s.")
    assert not any("input has risen" in one for one in told)


def test_a_backlog_that_comes_and_goes_is_not_called_empty() -> None:
    window = Window.of(NOW, timedelta(minutes=5), points=5)
    for pending, told in (([1, 0, 1, 0, 0], False), ([1, 1, 0, 0, 0], True)):
        found = curves(window, duration_ms=[1000] * 5, source_pending=pending)
        texts = [one.text for one in read_curves(found, spec("lamp"), [], alone)]
        assert ("Nothing is left to read." in texts) is told


def test_rates_are_of_several_batches(tmp_path: Path) -> None:
    now = utc_now()
    workspace = opened(tmp_path)
    took = [batch(n, now - timedelta(seconds=5 * (19 - n)), ms=2000, rows=1000 * (n % 2)) for n in range(20)]
    took[-1] = took[-1].model_copy(update={"watermark_lag_s": None})
    ran(workspace, "lamp", batches=took)
    found = rates_of(overview(workspace, "lamp"), now)
    # Six batches of a thousand rows in a minute; one that had rows took two seconds.
    assert found == Rates(input=100, processed=500, took=2, lag_s=7200)
    ran(workspace, "off", batches=took, wanted="suspended", stopped=True)
    assert rates_of(overview(workspace, "off"), now).input is None


def test_a_slow_job_is_told_with_what_happened_before() -> None:
    window = Window.of(NOW, timedelta(minutes=5), points=5)
    found = curves(window, duration_ms=[1000, 1000, 12000, 12000, 12000])
    slow = datetime.fromtimestamp(window.times[2], UTC)
    events = [Event(slow - timedelta(seconds=40), "rescale", "rescale by ann: done")]
    texts = [one.text for one in read_curves(found, spec("lamp"), events, alone)]
    assert texts[0].startswith("Batches take 12 s; one is to start each 10 s.")
    assert texts[1] == "Probable cause, 40 s before that: rescale by ann: done."


def test_the_operation_is_the_cause_and_not_the_end_of_its_driver() -> None:
    window = Window.of(NOW, timedelta(minutes=5), points=5)
    found = curves(window, duration_ms=[1000, 1000, 12000, 12000, 12000])
    slow = datetime.fromtimestamp(window.times[2], UTC)
    events = [
        Event(slow - timedelta(seconds=90), "rescale", "rescale by ann: done, partitions 4 → 96", ("operations",)),
        Event(slow - timedelta(seconds=60), "end", "driver ended after batch 30: stopped"),
        Event(slow - timedelta(seconds=30), "rescale", "driver started by rescale"),
    ]
    texts = [one.text for one in read_curves(found, spec("lamp"), events, alone)]
    assert texts[1] == "Probable cause, 1 min 30 s before that: rescale by ann: done, partitions 4 → 96."
    texts = [one.text for one in read_curves(found, spec("lamp"), events[1:], alone)]
    assert "Probable cause, 30 s before that: driver started by rescale." in texts


@pytest.mark.parametrize(("late", "told"), [([0, 4, 0, 0, 0], False), ([0, 0, 400, 5, 0], True)])
def test_late_rows_are_told_for_the_whole_time(late: list[float], told: bool) -> None:
    window = Window.of(NOW, timedelta(minutes=5), points=5)
    found = curves(window, duration_ms=[1000] * 5, rows_in=[400] * 5, late_rows=late)
    texts = [
        (one.text, one.at) for one in read_curves(found, spec("lamp"), [], alone) if "after the watermark" in one.text
    ]
    assert len(texts) == told
    if told:
        assert texts[0][0].startswith("405 of 2,000 rows")
        assert texts[0][1] == datetime.fromtimestamp(window.times[2], UTC)


@pytest.mark.parametrize(
    ("value", "text"), [(0.44, "0.4 s"), (3.0, "3 s"), (12.3, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"),
                        (352800, "4 d 2 h"), (None, "-"), (59.7, "60 s"), (3600, "1 h")],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_numbers() -> None:
    assert (size(999), size(1500), size(2.5e9), size(None)) == ("999 B", "1.5 kB", "2.5 GB", "-")
    assert (rate(0), rate(2.34), rate(12345.6)) == ("0", "2.3", "12,346")
    assert (percent(0.5), percent(0.004), percent(0)) == ("50 %", "under 1 %", "0 %")
    assert str(ago("2026-01-01T00:00:00+00:00")).startswith('<time datetime="2026-01-01T00:00:00+00:00" data-ago>')


def test_a_small_curve_has_gaps_and_fits() -> None:
    path = sparkline([0, 10, None, 5], width=30, height=22)
    assert path == "M0.0 21.0L10.0 1.0M30.0 11.0"
    assert sparkline([None, None]) == "" and sparkline([0, 0]) != ""


def test_addresses_are_quoted_and_have_the_prefix() -> None:
    links = Links("/air/streamwarden")
    assert links.page("streams", "a/b?") == "/air/streamwarden/streams/a%2Fb%3F"
    assert links.page("streams", q="", span="1h") == "/air/streamwarden/streams?span=1h"
    assert links.airflow("dags", "x") == "/air/dags/x"
    assert Links("/streamwarden").airflow("dags", "x") == "/dags/x"
    assert page_address("http://h:1", "streams", "a b") == "http://h:1/plugin/streams/streamwarden/streams/a%20b"
    assert page_address("http://h/air/", "streams", "a") == "http://h/air/plugin/streams/air/streamwarden/streams/a"


def test_results_are_shared_and_bounded() -> None:
    fresh, calls = Fresh(60, size=3), []

    def slow() -> int:
        calls.append(1)
        return len(calls)

    threads = [threading.Thread(target=lambda: fresh.get("a", slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    for number in range(50):
        fresh.get(number, lambda: 0)
    assert len(fresh._kept) == 3 and len(fresh._locks) == 3
    assert Fresh(0).get("a", slow) == 2
    with pytest.raises(ZeroDivisionError):
        fresh.get("b", lambda: 1 // 0)
    assert fresh.get("b", lambda: 7) == 7


def test_events_are_those_of_the_time(tmp_path: Path) -> None:
    workspace = populated(tmp_path)
    now = utc_now()
    found = events_of(workspace, "slow", Window.of(now, timedelta(hours=1)))
    assert [one.kind for one in found] == ["deploy", "rescale"]
    assert found[1].link == ("operations", "slow", OPERATION)
    assert events_of(workspace, "slow", Window.of(now - timedelta(hours=3), timedelta(hours=1))) == []
    assert "hold" in {one.kind for one in events_of(workspace, "ingest", Window.of(now, timedelta(hours=1)))}
    # The reason of a rescale is its, and the person's name is enough.
    assert found[1].text.startswith("rescale by ann: done, partitions 2 → 4, ")


def test_a_restart_is_one_also_after_the_supervisor_has_forgotten_it(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    documents = ran(workspace, "lamp")
    document = documents.launch(documents.incarnations()[-1])
    launch = document.read()
    assert launch is not None
    by = "airflow:job_lamp/manual__2026, for ann"
    document.write(launch.model_copy(update={"reason": "restart: its process 7 is gone", "by": by}))
    (one,) = events_of(workspace, "lamp", Window.of(utc_now(), timedelta(hours=1)))
    assert (one.kind, one.text) == ("restart", "driver started by ann: restart: its process 7 is gone")


def test_a_timeline_has_steps_and_the_downtime() -> None:
    def step(name: str, begin: float, end: float | None) -> Step:
        ended = NOW + timedelta(seconds=end) if end is not None else None
        return Step(name=name, started_at=NOW + timedelta(seconds=begin), ended_at=ended)

    steps = [step("precheck", 0, 10), step("stop", 10, 20), step("first batch", 20, 60), step("catch up", 60, None)]
    plan = OperationPlan(stopped_at=NOW + timedelta(seconds=20), downtime_s=50)
    one = Operation(id="x", kind="rescale", job="lamp", by="ann", params={}, plan=plan, started_at=NOW, seen_at=NOW,
                    process=None, steps=steps)  # fmt: skip
    found = timeline_of(one, NOW + timedelta(seconds=100))
    assert [(bar.left, bar.width, bar.away) for bar in found.bars] == [
        (0, 10, False), (10, 10, True), (20, 40, True), (60, 40, False),
    ]  # fmt: skip
    assert found.bars[-1].seconds is None and found.down == (10, 50) and found.seconds == 100


def based(workspace: Workspace, name: str, generation: int, parent: str | None) -> None:
    found = test_catalog.manifest(name, generation=generation, parent=parent)
    test_catalog.put(workspace, manifest_document(workspace, test_catalog.JOB, name).key, found.model_dump_json())


def test_lineage_shows_which_generation_began_from_which_savepoint(tmp_path: Path) -> None:
    workspace = test_catalog.opened(tmp_path)
    based(workspace, "s1", 1, None)
    based(workspace, "s2", 1, None)
    based(workspace, "s3", 2, "s1")
    based(workspace, "s9", 5, "gone")
    roots = lineage(catalog.savepoints(workspace, test_catalog.JOB), 3, "s3")
    assert [root.number for root in roots] == [1, 5]
    (second,) = roots[0].later["s1"]
    assert second.number == 2 and not second.current
    (third,) = second.later["s3"]
    assert third.current and third.savepoints == []


def test_checks_are_grouped_by_run() -> None:
    def row(run: str, expectation: str, success: bool, passed: bool) -> dict[str, object]:
        return {
            "table": "t",
            "run": run,
            "at": NOW,
            "passed": passed,
            "rows": 3,
            "success": success,
            "expectation": expectation,
        }

    rows = [row("r1", "a", True, True), row("r1", "b", False, True), row("r2", "a", False, False)]
    (first, second) = checks_of(rows)["t"]
    assert first.failed == ("b",) and first.tone == "warn" and second.tone == "bad"


def test_values_of_an_act_go_into_form_and_command() -> None:
    given = {"partitions": "8", "reason": "it's slow", "job": "x", "evil": "1"}
    assert ACTS["rescale"].conf("lamp", given) == {"job": "lamp", "partitions": 8, "reason": "it's slow"}
    assert (
        ACTS["rescale"].as_command("lamp", given)
        == "streamwarden rescale lamp --partitions 8 --reason 'it'\"'\"'s slow'"
    )
    assert ACTS["savepoint"].conf("lamp", {"note": "42"}) == {"job": "lamp", "note": "42"}
    assert ACTS["check"].conf("trips", {}) == {"tables": ["trips"]}
    # A run without a note fails.
    assert ACTS["accept"].conf("trips", {}) == {"table": "trips", "decision": "accept", "note": "WHY"}
    assert ACTS["accept"].conf("trips", {"note": "x"}) == {"table": "trips", "decision": "accept", "note": "x"}
    assert ACTS["accept"].as_command("trips", {}) == "streamwarden gate accept trips --note WHY"
    assert ACTS["deploy"].conf("lamp", given) == {} and ACTS["deploy"].dag_id("lamp") == "job_lamp"


def test_every_command_of_an_act_is_one() -> None:
    for act in ACTS.values():
        numbers = dict.fromkeys(("partitions", "cores", "executors"), "4")
        for given in ({}, {name: numbers.get(name, "x1g") for name in act.fields}):
            words = shlex.split(act.as_command("lamp", given))[1:]
            command: Any = get_command(app)
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            # Refuses what it does not know.
            context = command.make_context(command.name, words)
            assert "lamp" in str(context.params.values())


def test_every_act_of_a_form_is_a_param_of_its_dag() -> None:
    text = "".join(path.read_text() for path in (Path(__file__).resolve().parents[4] / "dags").glob("*.py"))
    for act in ACTS.values():
        if act.dag:
            assert f'dag_id="{act.dag}"' in text
            body = text.split(f'dag_id="{act.dag}"')[1].split("with DAG(")[0]
            assert all(f'"{name}": Param(' in body for name in act.conf("x", {}))
            assert all(f'"{name}": Param(' in body for name in act.fields), act


def test_streams_have_rates_and_curves(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    ran(workspace, "ingest")
    (one,) = list_streams(workspace, ["ingest"], timedelta(hours=1), utc_now()).streams
    assert one.rates.processed == 500 and one.input_path.startswith("M") and one.state == "running"
    assert one.matches("INGEST run", "all") and not one.matches("ingest", "trouble")


def test_the_list_tells_of_batches_longer_than_the_interval(tmp_path: Path) -> None:
    workspace = opened(tmp_path)
    now = utc_now()
    ran(workspace, "ingest", batches=[batch(n, now, ms=25_000, rows=500 * (n < 9)) for n in range(10)])
    (one,) = list_streams(workspace, ["ingest"], timedelta(hours=1), now).streams
    assert one.reasons == ["batches take 25 s; one is to start each 10 s"]
    assert one.tone == "warn" and one.matches("", "trouble")
    # The newest batch had no input.
    assert one.rates.processed == 20


@pytest.mark.parametrize(
    ("latest", "content", "tone"), [(None, -1, "off"), (4, -1, "off"), (4, 4, "good"), (5, 4, "busy")]
)
def test_versions_that_wait_for_the_gate_have_the_colour_of_work(latest: int | None, content: int, tone: str) -> None:
    state = GateState("trips", latest, PublishedAt(0, content), GateRecord(table="trips", began=0))
    found = TableQuality("trips", ["ingest"], state, [])
    assert found.tone == tone
    hold = Hold(after=4, version=5, since=NOW, run="r", failures=[], batches=[])
    held = dataclasses.replace(state, record=GateRecord(table="trips", began=0, hold=hold))
    assert dataclasses.replace(found, state=held).tone == "warn"


@pytest.mark.parametrize(("rows", "told"), [(5_000, "rescale, cores 1 → 2. "), (0, "cores, partitions, or")])
def test_a_slow_stream_quotes_the_advice_if_it_has_a_remedy(tmp_path: Path, rows: int, told: str) -> None:
    workspace = opened(tmp_path)
    now = utc_now()
    took = [batch(n, now - timedelta(seconds=30 * (49 - n)), ms=25_000, rows=rows) for n in range(50)]
    ran(workspace, "lamp", batches=took)
    found = stream_page(workspace, "lamp", timedelta(hours=1), until=now, live=True).readings
    (one,) = [one for one in found if one.see]
    assert one.text.startswith(f"What to do: {told}") and one.see == "advice"
