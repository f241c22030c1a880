"""Airflow itself, as `make up` starts it, with drivers that are stand-ins."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from streamwarden.devserver.rest import AirflowClient
from streamwarden.devserver.standalone import COMPONENTS, Standalone, StandaloneError
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import REPOSITORY, STANDIN, Place

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

DAG = "job_lamp"


@contextmanager
def started(place: Place, home: Path, *, dags: Path | None = None, **more: str) -> Iterator[Standalone]:
    """Start Airflow with a place; `more` is environment of its processes. Checks that its stop leaves none."""
    env = {
        "STREAMWARDEN_PROFILE": "test",
        "STREAMWARDEN_CONFIG": str(place.config),
        "STREAMWARDEN_ROOT": str(place.workspace.root),
        "STREAMWARDEN_DRIVER_MODULE": STANDIN,
        "PYTHONPATH": str(REPOSITORY),
        **more,
    }
    with Standalone(home=home, port=0, dags=dags, env=env) as running:
        yield running
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("AIRFLOW_HOME") == str(home) and STANDIN not in process.info["cmdline"]
    ]
    assert not left, "something of Airflow outlived its stop"


@pytest.fixture
def airflow(place: Place, tmp_path: Path) -> Iterator[Standalone]:
    with started(place, tmp_path / "airflow") as running:
        running.wait_for_dags([DAG, "stop", "quality", "savepoint", "restore"])
        yield running


@pytest.mark.long
def test_supervises_through_kills_and_restarts(place: Place, airflow: Standalone) -> None:
    client = airflow.client
    assert client.import_errors() == []
    run = client.trigger_dag(DAG)
    client.wait_for_task(DAG, run, "supervise", ("deferred",), timeout=180)
    # Housekeeping's first run may have one for a moment.
    place.until(lambda _: _slots(client) == {"deferred_slots": 1, "occupied_slots": 0})
    first = place.seen()
    assert first.phase is Phase.RUNNING and client.xcom(DAG, run, "deploy", "incarnation") == first.incarnation

    # Killed while the triggerer is away: seen once there is one again.
    airflow.stop_component("triggerer", how=signal.SIGKILL)
    assert first.heartbeat is not None
    os.kill(first.heartbeat.process.pid, signal.SIGKILL)
    airflow.start_component("triggerer")
    second = place.until(
        lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation, timeout=120
    )
    client.wait_for_task(DAG, run, "supervise", ("deferred",), timeout=60)

    # Cleared: the next try watches the same driver.
    client.clear_task(DAG, run, "supervise")
    deadline = time.monotonic() + 60
    while client.tasks(DAG, run)["supervise"]["try_number"] < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    client.wait_for_task(DAG, run, "supervise", ("deferred",), timeout=60)
    place.until(lambda _: "driver" in client.task_log(DAG, run, "supervise"))
    time.sleep(5)
    assert place.seen().incarnation == second.incarnation and place.seen().phase is Phase.RUNNING

    # Marked failed: the driver is stopped. (The wait above made sure that it runs.)
    place.until(lambda _: "starting" in client.task_log(DAG, run, "supervise"))
    client.set_task_state(DAG, run, "supervise", "failed")
    stopped = place.until(lambda seen: seen.phase is Phase.STOPPED, timeout=180)
    assert stopped.desired is not None and stopped.desired.state == "suspended"
    assert "its supervise task" in stopped.desired.note
    # By the trigger's on_kill, or, where Airflow does not call that soon after a triggerer's start, by `release`.
    assert client.wait_for_run(DAG, run, timeout=60) == "failed"

    # And back, and to its proper end.
    again = client.trigger_dag(DAG)
    client.wait_for_task(DAG, again, "supervise", ("deferred",), timeout=180)
    stop = client.trigger_dag("stop", {"job": "lamp"})
    assert client.wait_for_run("stop", stop, timeout=180) == "success"
    assert client.wait_for_run(DAG, again, timeout=180) == "success"
    assert client.xcom(DAG, again, "supervise")["phase"] == "stopped"
    log = client.task_log(DAG, run, "supervise", attempt=1)
    assert "restarted as" in log and "DRIVER_DIED" in log


def _slots(client: AirflowClient) -> dict[str, int]:
    pool = client.request("GET", "/pools/default_pool")
    return {name: pool[name] for name in ("deferred_slots", "occupied_slots")}


@pytest.mark.long
def test_supervised_run_survives_restores(place: Place, airflow: Standalone) -> None:
    client, documents = airflow.client, JobDocuments(place.workspace.storage, "lamp")
    run = client.trigger_dag(DAG)
    client.wait_for_task(DAG, run, "supervise", ("deferred",), timeout=180)
    place.batch(1)
    taken = client.trigger_dag("savepoint", {"job": "lamp", "note": "for the test"})
    assert client.wait_for_run("savepoint", taken, timeout=180) == "success"
    savepoint = client.xcom("savepoint", taken, "take")
    assert client.xcom("savepoint", taken, "verify") == {"verified": [savepoint["id"]]}

    # From the one that was verified; the job's own run goes on.
    first = place.seen().incarnation
    restored = client.trigger_dag("restore", {"job": "lamp", "reason": "for the test"})
    assert client.wait_for_run("restore", restored, timeout=120) == "success"
    done = client.xcom("restore", restored, "restore")
    assert (done["savepoint"], done["generation"]) == (savepoint["id"], 2)
    assert client.xcom("restore", restored, "supervise") == DAG
    assert client.task_state(DAG, run, "supervise") == "deferred" and place.seen().incarnation != first
    # The trigger looks every few seconds, and another process writes its log.
    watched = f"{place.seen().incarnation} is running"
    place.until(lambda _: watched in client.task_log(DAG, run, "supervise"))

    # Marked failed while it waits for an idle job: the job stays on the new checkpoint, and its driver is stopped.
    place.write_job(standin_mute=0)
    half = client.trigger_dag("restore", {"job": "lamp", "savepoint": savepoint["id"], "health_timeout": 600})
    place.until(lambda _: _step(documents) == "wait for health", timeout=180)
    client.set_task_state("restore", half, "restore", "failed")
    place.until(lambda seen: seen.operation is None, timeout=60)
    operation = documents.operation.read()
    assert operation is not None and operation.state == "running", "it may be resumed"
    assert client.wait_for_run("restore", half, timeout=180) == "failed"
    assert client.task_state("restore", half, "supervise") == "success"
    reference = documents.checkpoint.read()
    assert reference is not None and reference.generation == 3
    assert client.task_state(DAG, run, "supervise") == "deferred" and place.seen().phase is Phase.RUNNING

    # The next one does not become healthy either, and goes back to that.
    unwell = client.trigger_dag("restore", {"job": "lamp", "savepoint": savepoint["id"], "health_timeout": 3})
    assert client.wait_for_run("restore", unwell, timeout=120) == "failed"
    assert client.xcom("restore", unwell, "restore", "error")["code"] == "RESTORE_UNHEALTHY"
    log = client.task_log("restore", unwell, "restore")
    assert "RESTORE_UNHEALTHY" in log and "What to do" in log and "step roll back: " in log
    place.until(lambda seen: bool(seen.heartbeat and seen.heartbeat.generation == 3))
    assert client.tasks(DAG, run)["supervise"]["try_number"] == 1, "not one try was lost"
    assert client.task_state(DAG, run, "supervise") == "deferred"

    # And a killed driver is still restarted, by the same run.
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.heartbeat is not None
    os.kill(seen.heartbeat.process.pid, signal.SIGKILL)
    place.until(lambda now: now.phase is Phase.RUNNING and now.incarnation != seen.incarnation, timeout=180)
    stop = client.trigger_dag("stop", {"job": "lamp"})
    assert client.wait_for_run("stop", stop, timeout=180) == "success"
    assert client.wait_for_run(DAG, run, timeout=180) == "success"

    # Nobody supervises it now: the restore sees to that.
    place.write_job()
    alone = client.trigger_dag("restore", {"job": "lamp", "savepoint": savepoint["id"]})
    assert client.wait_for_run("restore", alone, timeout=120) == "success"
    triggered = client.xcom("restore", alone, "supervise", "trigger_run_id")
    client.wait_for_task(DAG, triggered, "supervise", ("deferred",), timeout=180)
    launched = client.xcom(DAG, triggered, "deploy")
    assert launched["launched"] is False and launched["incarnation"] == place.seen().incarnation
    watch = client.trigger_dag("watch")
    assert client.wait_for_run("watch", watch, timeout=120) == "success"
    assert client.xcom("watch", watch, "watch") == ["lamp"]
    client.request("PATCH", f"/dags/{DAG}", json={"is_paused": True})
    watch = client.trigger_dag("watch")
    client.wait_for_task("watch", watch, "watch", ("up_for_retry",), timeout=120)
    assert "it is running, and job_lamp is paused" in client.task_log("watch", watch, "watch")


def _step(documents: JobDocuments) -> str:
    found = documents.operation.read()
    return found.steps[-1].name if found is not None and found.state == "running" and found.steps else ""


def test_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StandaloneError, match=f"port {port} is taken"):
            Standalone(home=tmp_path / "home", port=port).start()


@pytest.mark.long
@pytest.mark.ci
def test_component_that_ends_is_said_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPONENTS, "scheduler", ("no-such-command",))
    airflow = Standalone(home=tmp_path / "home", port=0)
    with pytest.raises(StandaloneError, match=r"scheduler ended with(?s:.)*no-such-command"):
        airflow.start()
    assert not airflow.running()


def test_settings_of_another_airflow_are_left_out_and_connections_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__CORE__SECURITY", "kerberos")
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", "smtp://mail:secret@mail.example.org")
    environment = Standalone(home=tmp_path / "home", port=0).environment()
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "AIRFLOW__CORE__SECURITY" not in environment
    assert environment["AIRFLOW_CONN_ONCALL"] == "smtp://mail:secret@mail.example.org"
