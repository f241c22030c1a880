"""Rescales by their DAG: a real Airflow, real drivers, and targets that can't be healthy."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamwarden.devserver.rest import AirflowClient
from streamwarden.devserver.standalone import Standalone
from streamwarden.model.operation import Operation
from streamwarden.runtime.processes import kill
from streamwarden.supervision.observe import Phase, observe
from tests.integration.conftest import REPOSITORY, Place
from tests.integration.test_rescale import Counts, running

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(1800)]

JOB = "job_counts"


def at(operation: Operation) -> str:
    """Return the step that an operation is in; empty before its first."""
    return operation.steps[-1].name if operation.steps else ""


def rescaled(client: AirflowClient, counts: Counts, *, rows: list[int], **form: Any) -> tuple[str, str]:
    """Trigger a rescale as the form does, land rows while the job is away, and return the run and how it ended."""
    run = client.trigger_dag("rescale", {"job": "counts", **form})
    document = counts.place.documents("counts").operation
    deadline = time.monotonic() + 300
    while (found := document.read()) is None or found.state != "running" or at(found) != "stop":
        ended = client.dag_run("rescale", run)["state"]
        assert ended not in ("success", "failed") and time.monotonic() < deadline, (ended, found)
        time.sleep(0.1)
    counts.add(rows)
    return run, client.wait_for_run("rescale", run, timeout=600)


def airflow_for(place: Place, home: Path, **settings: str) -> Standalone:
    """Return an Airflow with the project's DAGs over a place, not started yet."""
    env = {
        "STREAMWARDEN_PROFILE": "test",
        "STREAMWARDEN_CONFIG": str(place.config),
        "STREAMWARDEN_ROOT": str(place.workspace.root),
        "STREAMWARDEN_HOUSEKEEPING_SCHEDULE": "",
        "STREAMWARDEN_WATCH_SCHEDULE": "",
        "PYTHONPATH": str(REPOSITORY),
        **settings,
    }
    return Standalone(home=home, port=0, env=env)


@pytest.mark.long
def test_a_sick_target_goes_back_by_itself_with_the_reason_on_the_run(place: Place, tmp_path: Path) -> None:
    counts = Counts(place, module="tests.integration.jobs.sickly", failures={"tolerable_consecutive": 0})
    counts.add([1, 2, 2])
    with airflow_for(place, tmp_path / "airflow") as airflow:
        airflow.wait_for_dags([JOB, "rescale", "stop"])
        client = airflow.client
        own = client.trigger_dag(JOB)
        client.wait_for_task(JOB, own, "supervise", ("deferred",), timeout=300)
        running(place)
        counts.check()
        before = counts.reference()
        sick: dict[str, dict[str, Any]] = {
            "OUT_OF_MEMORY": {"partitions": 5, "memory": "512m"},
            "seven is too many": {"partitions": 7},
        }
        for words, target in sick.items():
            # For the rehearsal, which looks at the newest: of no memory to speak of.
            for _ in range(3):
                counts.add([2])
                counts.check()
            run, state = rescaled(client, counts, rows=[400], mode="offline", reason="for the test", **target)
            assert state == "failed"
            error = client.xcom("rescale", run, "rescale", "error")
            assert error["code"] == "RESCALE_UNHEALTHY" and words in error["what"], error
            summary = client.xcom("rescale", run, "rescale", "summary")
            assert summary["state"] == "rolled back" and summary["reason"] == "for the test" and summary["savepoint"]
            assert summary["downtime_s"] > 0 and "roll back" in summary["steps"]
            log = client.task_log("rescale", run, "rescale")
            assert words in log and "step roll back: " in log and "What to do" in log
            # What ran before, watched by the same run as before.
            assert (counts.reference().path, counts.partitions()) == (before.path, 2)
            assert client.task_state(JOB, own, "supervise") == "deferred"
            counts.check()
        run, state = rescaled(client, counts, rows=[400], partitions=8, mode="online")
        assert state == "success" and counts.partitions() == 8
        told = client.xcom("rescale", run, "rescale")
        assert told["state"] == "done" and told["to"]["partitions"] == 8
        counts.check()
        assert client.wait_for_run("stop", client.trigger_dag("stop", {"job": "counts"}), timeout=120) == "success"
        assert client.wait_for_run(JOB, own, timeout=120) == "success"


def kill_worker(airflow: Standalone, task: str) -> None:
    """Kill (SIGKILL) the worker that has a task instance, and the task's process; not the JVMs, nor a driver."""
    for worker in airflow.processes("scheduler"):
        try:
            if " ".join(worker.cmdline()).strip() != f"airflow worker -- LocalExecutor: {task}":
                continue
            family = [worker, *worker.children(recursive=True)]
        except psutil.Error:
            continue
        for process in family:
            # One of them may be gone by now, or be a zombie without a command line.
            with contextlib.suppress(psutil.Error):
                if process.name() != "java" and "-m" not in process.cmdline():
                    process.send_signal(signal.SIGKILL)
        return
    raise AssertionError(f"no worker has {task}")


KILLS = (
    # Mode, step, whether the driver is killed, too.
    ("online", "repartition", False),
    ("online", "stop", True),
    ("offline", "copy", False),
    ("offline", "first batch", True),
)


def test_a_run_whose_worker_is_killed_in_a_step_goes_on_by_its_next_try(place: Place, tmp_path: Path) -> None:
    counts = Counts(place, restarts={"max": 100, "backoff": "1s", "backoff_max": "1s"})
    counts.add(list(range(500)))
    # So long a lost worker's task counts as running.
    noticed = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20"}
    with airflow_for(place, tmp_path / "airflow", **noticed) as airflow:
        airflow.wait_for_dags([JOB, "rescale", "stop"])
        client = airflow.client
        own = client.trigger_dag(JOB)
        client.wait_for_task(JOB, own, "supervise", ("deferred",), timeout=300)
        running(place)
        document = place.documents("counts").operation
        for number, (mode, step, driver_too) in enumerate(KILLS):
            was, wanted = counts.partitions(), 3 + number
            run = client.trigger_dag("rescale", {"job": "counts", "partitions": wanted, "mode": mode})
            deadline = time.monotonic() + 300
            landed = False
            while (found := document.read()) is None or found.state != "running" or at(found) != step:
                assert time.monotonic() < deadline, found
                if not landed and found is not None and found.state == "running" and at(found) == "repartition":
                    # For the new driver: of one with nothing to read the first batch is over before it is seen.
                    counts.add([3])
                    landed = True
                time.sleep(0.05)
            kill_worker(airflow, client.tasks("rescale", run)["rescale"]["id"])
            beat = observe(place.workspace, "counts").heartbeat
            if driver_too and beat is not None:
                kill(beat.process)
            counts.add([1, 2, 700 + number])
            state = client.wait_for_run("rescale", run, timeout=600)
            assert client.tasks("rescale", run)["rescale"]["try_number"] == 2
            ended = document.read()
            assert ended is not None and (ended.id, ended.state) in ((found.id, "done"), (found.id, "rolled back"))
            assert (state == "success") is (ended.state == "done")
            assert counts.partitions() == (wanted if ended.state == "done" else was)
            counts.check()
            # It may have found no input, and so committed no batch.
            place.wait("counts", lambda seen: seen.phase is Phase.RUNNING, "the job to run")
            assert client.task_state(JOB, own, "supervise") == "deferred"
        assert client.wait_for_run("stop", client.trigger_dag("stop", {"job": "counts"}), timeout=120) == "success"
        assert client.wait_for_run(JOB, own, timeout=120) == "success"
