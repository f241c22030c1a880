from __future__ import annotations

import asyncio
import signal
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from streamwarden.airflow.assets import DecisionTrigger, published
from streamwarden.devserver.standalone import Standalone
from streamwarden.model.gate import Decision, GateRecord, Verdict
from streamwarden.model.record import utc_now
from streamwarden.quality.documents import write_run
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.results import ExpectationResult, QualityRun, TableResult
from streamwarden.storage import LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace
from tests.airflow.conftest import Place

pytestmark = pytest.mark.airflow


def expectation(name: str, *, success: bool) -> ExpectationResult:
    return ExpectationResult(
        id=name,
        type="t",
        columns=(),
        severity="critical",
        description="",
        notes="",
        arguments={},
        success=success,
    )


def decided(workspace: Workspace, version: int, *, failed: int = 0, behind: timedelta = timedelta(0)) -> None:
    results = tuple(expectation(f"rule.{number}", success=number >= failed) for number in range(4))
    result = TableResult(table="trips", status="failed" if failed else "passed", version=version, expectations=results)
    run = QualityRun(
        run_id=f"run-{version}",
        started="2023-03-06T08:00:00Z",
        ended="2023-03-06T08:00:00Z",
        seconds=1,
        tables_dir=workspace.tables,
        great_expectations="1",
        tables=(result,),
    )
    write_run(LocalStorage(workspace.root), QUALITY, run)
    decision = Decision(
        at=utc_now() + timedelta(microseconds=version) - behind,
        verdict=Verdict.HELD if failed else Verdict.PUBLISHED,
        after=version - 3,
        version=version,
        rows=10,
        seconds=1,
        run=run.run_id,
    )
    gate_document(workspace, "trips").update(lambda now: (now or GateRecord(table="trips")).decided(decision, None))


def watched(place: Place, steps: Any, number: int) -> list[dict[str, Any]]:
    """Run a trigger until it has yielded some events; `steps` runs after its first look."""
    _, arguments = DecisionTrigger(table="trips", **place.place(), poll=0.05).serialize()

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def read() -> None:
            async for event in DecisionTrigger(**arguments).run():
                found.append(event.payload)

        task = asyncio.create_task(read())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(steps)
        for _ in range(100):
            await asyncio.sleep(0.1)
            if len(found) >= number:
                break
        # It has noted them by then.
        await asyncio.sleep(0.5)
        task.cancel()
        return found

    return asyncio.run(run())


def test_each_decision_is_one_event_with_its_facts(place: Place) -> None:
    workspace = place.workspace
    decided(workspace, 3)

    def two() -> None:
        decided(workspace, 6)
        decided(workspace, 9, failed=1)

    first, second = watched(place, two, 2)
    assert {**first, "at": ""} == {
        "table": "trips",
        "decision": "published",
        "from_version": 4,
        "to_version": 6,
        "rows": 10,
        "score": 1.0,
        "failed": [],
        "run": "run-6",
        "by": "gate",
        "note": None,
        "at": "",
    }
    assert (second["decision"], second["score"], second["failed"]) == ("held", 0.75, ["rule.0"])
    # Another triggerer continues: decisions made while none ran are events, noted ones are not.
    decided(workspace, 12)
    assert [one["to_version"] for one in watched(place, lambda: None, 1)] == [12]


def test_a_decision_by_a_machine_whose_clock_is_behind_is_an_event(place: Place) -> None:
    decided(place.workspace, 3)

    def two() -> None:
        decided(place.workspace, 6)
        time.sleep(0.5)
        decided(place.workspace, 9, behind=timedelta(seconds=4))

    assert [one["to_version"] for one in watched(place, two, 2)] == [6, 9]


def test_a_place_that_cannot_be_read_is_tried_again(place: Place) -> None:
    workspace = place.workspace
    document = workspace.root / "control" / "gate" / "trips.json"
    decided(workspace, 3)
    watched(place, lambda: None, 0)
    path = next(workspace.root.rglob("trips.json"))
    assert path.name == document.name
    good = path.read_bytes()
    path.write_bytes(b"{")

    def repaired() -> None:
        path.write_bytes(good)
        decided(workspace, 6)

    assert [one["to_version"] for one in watched(place, repaired, 1)] == [6]


def test_a_dag_that_follows_a_table_registers_its_watcher(airflow_database: None, place: Place) -> None:
    asset = published("trips", **place.place())
    [watcher] = asset.watchers
    assert asset.name == "published/trips" and asset.uri == "streamwarden://published/trips"
    from airflow.serialization.encoders import encode_trigger

    encoded = encode_trigger(watcher.trigger)
    assert encoded["classpath"] == "streamwarden.airflow.assets.DecisionTrigger"
    assert encoded["kwargs"]["table"] == "trips"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_dag_that_follows_a_table_runs_for_each_decision(place: Place, tmp_path: Path) -> None:
    dags = tmp_path / "report" / "dags"
    dags.mkdir(parents=True)
    (dags / "report.py").write_text(
        textwrap.dedent(
            f"""
            from airflow.sdk import DAG, task
            from streamwarden.airflow.assets import published

            with DAG("report", schedule=[published("trips", **{place.place()!r}, poll=0.5)]):

                @task
                def tell(triggering_asset_events=None):
                    return [e.extra["payload"]["to_version"] for es in triggering_asset_events.values() for e in es]

                tell()
            """
        )
    )
    workspace = place.workspace
    with Standalone(home=tmp_path / "airflow", port=0, dags=dags) as airflow:
        airflow.wait_for_dags(["report"])
        client = airflow.client

        def told() -> list[int]:
            runs = client.request("GET", "/dags/report/dagRuns")["dag_runs"]
            done = [one["dag_run_id"] for one in runs if one["state"] == "success"]
            return sorted(one for run in done for one in client.xcom("report", run, "tell"))

        def told_of(version: int) -> list[int]:
            deadline = time.monotonic() + 120
            while version not in (found := told()) and time.monotonic() < deadline:
                time.sleep(1)
            return found

        # The triggerer's first look may come later than the DAG; decisions before it are no events.
        deadline = time.monotonic() + 120
        version = 0
        while not (first := told()) and time.monotonic() < deadline:
            version += 3
            decided(workspace, version)
            time.sleep(5)
        assert first
        decided(workspace, version + 3)
        assert told_of(version + 3)[-1] == version + 3
        # One that is made while there is no triggerer comes when there is one again.
        airflow.stop_component("triggerer", how=signal.SIGKILL)
        decided(workspace, version + 6, failed=1)
        airflow.start_component("triggerer")
        found = told_of(version + 6)
        assert found[-1] == version + 6
        # The last ones before the kill may come twice; none is left out.
        assert set(found) >= set(range(first[-1], version + 9, 3))
