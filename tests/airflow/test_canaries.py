"""A canary in every secret of an Airflow: no XCom, task log, rendered field or command line has one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from streamwarden.devserver.standalone import COMPONENTS, Standalone
from streamwarden.redaction import HIDDEN
from tests.airflow.conftest import Place
from tests.airflow.test_standalone import started
from tests.canaries import CANARIES, found_in, in_files, value_of

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

# SQLite's address has no password.
GIVEN = {name: value_of(name, secret) for name, secret in CANARIES.items() if not name.endswith("SQL_ALCHEMY_CONN")}


@contextmanager
def command_lines(airflow: Standalone) -> Iterator[set[str]]:
    """Collect the command lines, which are the titles, of Airflow's processes and their children during the block."""
    over, found = threading.Event(), set()

    def look() -> None:
        while not over.wait(0.2):
            for component in COMPONENTS:
                for process in airflow.processes(component):
                    try:
                        found.add(" ".join(process.cmdline()))
                    except psutil.Error:
                        continue

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def recorded(airflow: Standalone, dag: str, run: str) -> str:
    """Return what Airflow's database has of a run's tasks: their fields as rendered, and their XComs."""
    found: list[Any] = []
    for task, instance in airflow.client.tasks(dag, run).items():
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries"
        entries = airflow.client.request("GET", path)["xcom_entries"]
        found += [instance, *(airflow.client.xcom(dag, run, task, entry["key"]) for entry in entries)]
    return json.dumps(found)


def test_nothing_that_airflow_keeps_or_shows_of_failing_tasks_has_a_secret(place: Place, tmp_path: Path) -> None:
    place.write_job("driven", standin_fail="JOB_CODE_FAILED", standin_after=5, standin_leaks=True)
    notifier = {"name": "webhook", "class": "tests.airflow.leaks.LeakingNotifier"}
    (place.config / "alerts.yaml").write_text(yaml.safe_dump({"notifiers": [notifier]}))
    runs = {
        "job_lamp": {},
        "job_driven": {},
        "restore": {"job": "lamp"},
        "savepoint": {"job": "lamp"},
        "quality": {},
    }
    home = tmp_path / "airflow"
    dags = Path(__file__).parent / "leaking_dags"
    with started(place, home, dags=dags, **GIVEN) as airflow, command_lines(airflow) as lines:
        airflow.wait_for_dags(list(runs))
        begun = {dag: airflow.client.trigger_dag(dag, conf) for dag, conf in runs.items()}
        # Its `release` tries the notifier again for minutes.
        airflow.client.wait_for_task("job_driven", begun["job_driven"], "supervise", ("failed",), timeout=600)
        for dag in begun.keys() - {"job_driven"}:
            airflow.client.wait_for_run(dag, begun[dag], timeout=600)
        kept = {dag: recorded(airflow, dag, run) for dag, run in begun.items()}
    assert any("streamwarden.cli check" in line for line in lines)
    assert {line: found for line in lines if (found := found_in(line))} == {}
    for dag in ("job_lamp", "restore"):
        assert HIDDEN in kept[dag], "its error is in an XCom"
    assert {dag: found for dag, text in kept.items() if (found := found_in(text))} == {}
    logs = {dag: "".join(path.read_text() for path in (home / "logs").rglob(f"dag_id={dag}/**/*.log")) for dag in runs}
    # What we log is hidden by ourselves; what Airflow logs of exceptions, by Airflow.
    for dag in ("job_lamp", "restore", "savepoint", "job_driven"):
        assert "refused: ***" in logs[dag], dag
    # With the database, which is a file. The LocalExecutor copies the tasks' logs, unmasked, into the scheduler's.
    assert {path: found for path, found in in_files(home).items() if not path.endswith("/logs/scheduler.log")} == {}
