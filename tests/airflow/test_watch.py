"""Alarms for jobs that nobody watches, with drivers that are stand-ins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators import release
from streamwarden.airflow.operators.watch import WatchOperator
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.give_up import put_down
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control
from streamwarden.supervision.alert_queue import UNWATCHED
from streamwarden.supervision.decide import decide
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import REPOSITORY, Place, Run, fired
from tests.airflow.test_dags import load
from tests.airflow.test_health import ask_again, failed_for_good, notify, said, told
from tests.airflow.test_supervise import deferred, supervise

pytestmark = pytest.mark.airflow


def watch(place: Place, *, attempt: int = 3, **run: Any) -> list[str]:
    """Look as the task does at its last try, or at an earlier one."""
    task = WatchOperator(task_id="watch", **place.place())
    found: list[str] = task.execute(Run(dag_id="watch", attempt=attempt, granted=2, **run).context("watch"))
    return found


def test_a_job_without_a_run_is_told_of_once_and_so_is_its_end(place: Place) -> None:
    paths = notify(place, "mail", level="critical")
    place.deploy()
    for attempt in (1, 2):
        with pytest.raises(AirflowException, match="once more") as raised:
            watch(place, attempt=attempt)
        assert not isinstance(raised.value, AirflowFailException) and not said(paths["mail"])
    with pytest.raises(AirflowFailException, match=r"\[JOB_UNWATCHED\](?s:.)*no run of job_lamp(?s:.)*What to do"):
        watch(place)
    first = said(paths["mail"])
    assert first.startswith("critical|Streamwarden: lamp: critical (unwatched)")
    # The alarm was sent: one check, and no second alarm.
    with pytest.raises(AirflowFailException, match="JOB_UNWATCHED"):
        watch(place, attempt=1)
    assert said(paths["mail"]) == first and UNWATCHED in told(place).rules
    assert watch(place, attempt=1, runs_of_job=1) == ["lamp"]
    assert said(paths["mail"]).removeprefix(first).startswith("ok|Streamwarden: lamp: ok again (unwatched)")
    assert not told(place).rules and place.seen().phase is Phase.RUNNING


def test_a_run_whose_supervise_has_ended_and_a_paused_dag_watch_nothing(place: Place) -> None:
    place.deploy()
    for state in ("success", "failed", "upstream_failed"):
        with pytest.raises(AirflowFailException, match="no run of job_lamp supervises"):
            watch(place, runs_of_job=1, job_states={"supervise": state})
    with pytest.raises(AirflowFailException, match="it is running, and job_lamp is paused"):
        watch(place, runs_of_job=1, job_paused=True)
    # What a dead driver means to a person who has paused it is the same.
    heartbeat = place.seen().heartbeat
    assert heartbeat is not None and kill(heartbeat.process)
    place.until(lambda seen: seen.phase is Phase.DEAD)
    with pytest.raises(AirflowFailException, match="it is dead, and job_lamp is paused"):
        watch(place, runs_of_job=1, job_paused=True)


def test_the_alarm_of_a_paused_dag_costs_the_job_no_trigger(place: Place) -> None:
    paths = notify(place, "mail", level="critical")
    place.write_job(health={"hold": "100ms"})
    place.deploy()
    run = Run()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    with pytest.raises(AirflowFailException, match="job_lamp is paused"):
        watch(place, runs_of_job=1, job_paused=True)
    first = said(paths["mail"])
    # Its task could not start: the driver would be watched by nobody, and on_kill() be called of no mark.
    assert fired(trigger, within=3) is None
    assert said(paths["mail"]) == first and UNWATCHED in told(place).rules


def test_a_notifier_that_was_away_is_told_of_a_paused_dag_by_the_next_look(place: Place) -> None:
    paths = notify(place, "mail", level="critical")
    place.write_job(health={"hold": "100ms"})
    place.deploy()
    run = Run()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    paths["mail"].with_suffix(".broken").touch()
    with pytest.raises(AirflowFailException, match="job_lamp is paused"):
        watch(place, runs_of_job=1, job_paused=True)
    ask_again(place)
    assert fired(trigger, within=2) is None, "its task could not start"
    paths["mail"].with_suffix(".broken").unlink()
    with pytest.raises(AirflowFailException, match="job_lamp is paused"):
        watch(place, attempt=1, runs_of_job=1, job_paused=True)
    assert said(paths["mail"]).startswith("critical|Streamwarden: lamp: critical (unwatched)")
    assert not told(place).unsent


def test_the_page_of_a_jobs_end_comes_though_its_notifier_was_away_for_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_TELL_S", 0.0)
    paths = notify(place, "pager", level="critical")
    failed_for_good(place, paths).execute(Run(states={"supervise": "failed"}).context("release"))
    assert set(told(place).unsent) == {"pager"}
    paths["pager"].with_suffix(".broken").unlink()
    assert watch(place, attempt=1) == ["lamp"] and not said(paths["pager"]), "in its turn"
    ask_again(place)
    # Its next run asks by itself.
    assert watch(place, attempt=1, runs_of_job=1) == ["lamp"] and not said(paths["pager"])
    assert watch(place, attempt=1) == ["lamp"]
    assert said(paths["pager"]).startswith("critical|Streamwarden: lamp: critical (driver)")
    assert not told(place).unsent


def test_a_job_that_is_not_to_run_or_was_given_up_is_left_alone(place: Place) -> None:
    assert watch(place) == []
    place.write_job(standin_fail="CHECKPOINT_DAMAGED")
    deploy_job(place.workspace, "lamp", by="test")
    place.until(lambda seen: seen.phase is Phase.FAILED)
    with pytest.raises(AirflowFailException, match="it is failed, and no run"):
        watch(place)
    seen = place.seen()
    put_down(place.workspace, seen, decide(seen, Supervision()), by="a supervisor")
    assert watch(place) == ["lamp"] and not told(place).rules
    place.write_job()
    place.deploy()
    with pytest.raises(AirflowFailException, match="JOB_UNWATCHED"):
        watch(place)
    driver_control.stop(place.workspace, "lamp", by="test")
    assert watch(place) == ["lamp"] and not told(place).rules


def test_a_job_whose_yaml_was_removed_is_told_of_until_it_is_stopped(place: Place) -> None:
    paths = notify(place, "mail", level="critical")
    place.deploy()
    (place.config / "jobs" / "lamp.yaml").unlink()
    # Its run is there yet, and so is its trigger; but Airflow starts no task of a DAG that is gone.
    with pytest.raises(AirflowFailException, match="it is running, and not described any more: config/jobs/lamp"):
        watch(place, runs_of_job=1)
    first = said(paths["mail"])
    assert first.startswith("critical|Streamwarden: lamp: critical (unwatched)")
    assert place.seen().phase is Phase.RUNNING, "no word, and no act"
    driver_control.stop(place.workspace, "lamp", by="test")
    assert watch(place, attempt=1) == ["lamp"]
    assert said(paths["mail"]).removeprefix(first).startswith("ok|Streamwarden: lamp: ok again (unwatched)")


def test_one_whose_documents_cannot_be_read_does_not_hide_another(place: Place) -> None:
    place.deploy()
    (place.workspace.root / "control" / "torn").mkdir()
    (place.workspace.root / "control" / "torn" / "desired.json").write_text("{")
    with pytest.raises(AirflowFailException, match="JOB_UNWATCHED"):
        watch(place)
    with pytest.raises(AirflowException, match="torn"):
        watch(place, runs_of_job=1)
    # Nor does a disk that gives an error.
    (place.workspace.root / "control" / "torn" / "desired.json").unlink()
    (place.workspace.root / "control" / "torn" / "desired.json").mkdir()
    with pytest.raises(AirflowFailException, match="JOB_UNWATCHED"):
        watch(place)
    with pytest.raises(AirflowException, match=r"directory|DOCUMENT_INVALID"):
        watch(place, runs_of_job=1)


def test_the_dag_is_wired(place: Place, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = load(REPOSITORY / "dags" / "operations.py").dags["watch"]
    assert dag.schedule == "*/5 * * * *" and dag.max_active_runs == 1
    task = dag.get_task("watch")
    assert (task.retries, task.retry_delay) == (2, timedelta(minutes=1))
    monkeypatch.setenv("STREAMWARDEN_WATCH_SCHEDULE", "")
    assert load(REPOSITORY / "dags" / "operations.py").dags["watch"].schedule is None
    assert {ti.task_id: str(ti.state) for ti in dag.test().get_task_instances()} == {"watch": "success"}
