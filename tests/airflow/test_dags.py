from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from streamwarden.airflow.describe import periodic_savepoints
from streamwarden.store.config import job_names
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import REPOSITORY, Place

pytestmark = pytest.mark.airflow

DAGS = REPOSITORY / "dags"

OTHERS = {
    *("stop", "restore", "rescale", "cancel_rescale", "watch", "advise"),
    *("quality", "gate", "gate_decide", "quarantine_replay", "corrections"),
    *("savepoint", "verify_savepoints", "housekeeping"),
}


@dataclass
class Triggered:
    """A run, as far as its conf goes."""

    dag_id: str
    conf: dict[str, Any] | None


def load(path: Path):  # type: ignore[no-untyped-def]
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(path))


def test_all_files_load(airflow_database: None) -> None:
    bag = load(DAGS)
    assert not bag.import_errors
    periodic = {f"savepoint_{name}" for name in job_names() if periodic_savepoints(name)}
    assert set(bag.dag_ids) == {*(f"job_{name}" for name in job_names()), *OTHERS, *periodic}
    for dag in bag.dags.values():
        dag.check_cycle()
        assert dag.doc_md and dag.description and "streamwarden" in dag.tags
        scheduled = dag.dag_id in periodic or dag.dag_id in ("gate", "housekeeping", "watch")
        assert (dag.schedule is not None) is scheduled and not dag.catchup


def test_what_stops_a_job_offers_one_whose_yaml_was_removed(place: Place, airflow_database: None) -> None:
    place.write_job("other")
    place.deploy()
    (place.config / "jobs" / "lamp.yaml").unlink()
    for name, others in (("operations", ["all"]), ("savepoints", [])):
        dag = load(DAGS / f"{name}.py").dags["stop" if others else "savepoint"]
        assert dag.params.get_param("job").schema["enum"] == ["other", "lamp", *others]
    driver_control.stop(place.workspace, "lamp", by="test")
    assert load(DAGS / "operations.py").dags["stop"].params.get_param("job").schema["enum"] == ["other", "all"]


def test_job_dags_are_wired_alike(airflow_database: None) -> None:
    bag = load(DAGS / "jobs.py")
    for dag in bag.dags.values():
        assert dag.max_active_runs == 1
        assert {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks} == {
            "deploy": ["supervise"],
            "supervise": ["release"],
            "release": [],
        }
        assert dag.get_task("release").is_teardown, "its success must not hide a failed supervise"
        assert dag.get_task("supervise").execution_timeout is None and dag.dagrun_timeout is None


def test_parse_is_quick_and_without_spark() -> None:
    script = textwrap.dedent(
        """
        import runpy, sys, time
        import airflow.sdk
        base = time.process_time()
        for path in sys.argv[1:]:
            began = time.process_time()
            runpy.run_path(path)
            print(path, time.process_time() - began, base)
        for name in ("pyspark", "great_expectations", "pandas", "pyarrow"):
            assert name not in sys.modules, name
        """
    )
    files = [str(path) for path in sorted(DAGS.glob("*.py"))]
    assert len(files) >= 5
    run = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        if line.startswith("/"):
            # CPU time, beside that of importing Airflow: so that it means the same on a slow machine.
            _, seconds, base = line.split()
            assert float(seconds) < float(base), line


def test_schedules_come_from_the_environment(
    place: Place, airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMWARDEN_VERIFY_SCHEDULE", "@daily")
    monkeypatch.setenv("STREAMWARDEN_HOUSEKEEPING_SCHEDULE", "")
    monkeypatch.setenv("STREAMWARDEN_ADVISE_SCHEDULE", "*/15 * * * *")
    assert load(DAGS / "operations.py").dags["advise"].schedule == "*/15 * * * *"
    dags = load(DAGS / "savepoints.py").dags
    assert dags["verify_savepoints"].schedule == "@daily" and dags["housekeeping"].schedule is None


def test_new_yaml_adds_a_dag_and_a_broken_one_harms_no_other(place: Place, airflow_database: None) -> None:
    (place.config / "jobs" / "torn.yaml").write_text("name: [")
    (place.config / "jobs" / "odd name!.yaml").write_text("just text")
    place.write_job("second")
    bag = load(DAGS / "jobs.py")
    assert not bag.import_errors
    assert set(bag.dag_ids) == {"job_lamp", "job_second", "job_torn", "job_odd_name_"}
    assert "torn.yaml cannot be read" in bag.dags["job_torn"].doc_md
    assert bag.dags["job_lamp"].description == "A stand-in."


def test_stop_form_offers_the_jobs(place: Place, airflow_database: None) -> None:
    dag = load(DAGS / "operations.py").dags["stop"]
    param = dag.params.get_param("job")
    assert param.schema["enum"] == ["lamp", "all"] and not param.has_value


def test_runs_in_airflow_from_deploy_to_stop(place: Place, airflow_database: None) -> None:
    dag = load(DAGS / "jobs.py").dags["job_lamp"]
    stop = load(DAGS / "operations.py").dags["stop"]

    def stop_later() -> None:
        place.until(lambda seen: seen.phase is Phase.RUNNING and (seen.heartbeat.batch or 0) > 10, timeout=120)  # type: ignore[union-attr]
        driver_control.stop(place.workspace, "lamp", by="test")

    thread = threading.Thread(target=stop_later, daemon=True)
    thread.start()
    run = dag.test()
    thread.join(10)
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert states == {"deploy": "success", "supervise": "success", "release": "success"}
    assert place.seen().phase is Phase.STOPPED

    place.deploy()
    run = stop.test(run_conf={"job": "lamp", "reason": "the test is over"})
    assert str(run.state) == "success"
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.note == "the test is over"


def test_broken_yaml_fails_its_deploy_task(place: Place, airflow_database: None) -> None:
    path = place.config / "jobs" / "lamp.yaml"
    path.write_text(path.read_text() + "colour: green\n")
    run = load(DAGS / "jobs.py").dags["job_lamp"].test()
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert states["deploy"] == "failed" and states["supervise"] == "failed"
    assert str(run.state) == "failed"


def test_standalone_and_client_import_no_airflow() -> None:
    script = "import sys, streamwarden.devserver.standalone; assert 'airflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ}, timeout=60)


KNOWN = {"stop": {"job": "all", "reason": "over"}, "rescale": {"job": "lamp", "cores": 2, "advised": True}}


def test_a_key_that_a_dag_does_not_know_is_refused_by_name_in_every_dag(place: Place, airflow_database: None) -> None:
    place.write_job("second", savepoints={"every": "1h"})
    for file in DAGS.glob("*.py"):
        for dag in load(file).dags.values():
            roots = [task for task in dag.tasks if not task.upstream_task_ids]
            assert roots
            for task in roots:
                check = task.partial_kwargs["pre_execute"] if task.is_mapped else task._pre_execute_hook
                given = {**KNOWN.get(dag.dag_id, dict.fromkeys(dag.params)), "approve": True, "Jobs": 1}
                with pytest.raises(AirflowFailException) as refused:
                    check({"dag": dag, "dag_run": Triggered(dag.dag_id, given)})
                said = str(refused.value)
                assert said.startswith("[RUN_CONF_UNKNOWN]") and f": {dag.dag_id}: Jobs, approve; known: " in said
                assert all(name in said for name in dag.params)
                for conf in (None, {}, KNOWN.get(dag.dag_id, dict.fromkeys(dag.params))):
                    check({"dag": dag, "dag_run": Triggered(dag.dag_id, conf)})


def test_a_run_with_an_unknown_key_fails_in_airflow_before_it_does_anything(
    place: Place, airflow_database: None
) -> None:
    place.deploy()
    stop = load(DAGS / "operations.py").dags["stop"]
    run = stop.test(run_conf={"job": "lamp", "time_out": 3})
    assert str(run.state) == "failed"
    assert place.seen().phase is Phase.RUNNING
    driver_control.stop(place.workspace, "lamp", by="test")
    # What a run says that takes over from another: its own, and no param.
    check = load(DAGS / "jobs.py").dags["job_lamp"].get_task("deploy")._pre_execute_hook
    check({"dag": load(DAGS / "jobs.py").dags["job_lamp"], "dag_run": Triggered("job_lamp", {"relieves": "manual__1"})})
