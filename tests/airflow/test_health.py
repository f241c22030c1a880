from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.notifications import Alert
from streamwarden.airflow.operators import release
from streamwarden.airflow.operators import supervise as supervising
from streamwarden.airflow.operators.release import ReleaseOperator
from streamwarden.model.record import utc_now
from streamwarden.model.supervision import HealthChange, HealthRecord
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.give_up import put_down
from streamwarden.operations.status import job_status
from streamwarden.runtime.operation_lock import begin
from streamwarden.savepoints import catalog
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import alert_queue, driver_control
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import Place, Run, fired
from tests.airflow.test_supervise import deferred, supervise

pytestmark = pytest.mark.airflow

QUICK = {"hold": "300ms", "restart_when_stuck": False}


def notify(place: Place, *names: str, level: str = "warn", **more: Any) -> dict[str, Path]:
    """Configure notifiers that write into files, and return those."""
    paths = {name: place.config.parent / f"{name}.txt" for name in names}
    notifiers = [
        {
            "name": name,
            "class": "tests.airflow.notifiers.FileNotifier",
            "level": level,
            "arguments": {"path": str(path), "text": "{{ alert.level }}|{{ alert.text }}"},
            **more,
        }
        for name, path in paths.items()
    ]
    (place.config / "alerts.yaml").write_text(yaml.safe_dump({"notifiers": notifiers}))
    return paths


def told(place: Place) -> HealthRecord:
    return JobDocuments(place.workspace.storage, "lamp").health.read() or HealthRecord()


def ask_again(place: Place) -> None:
    """As if the time had come to ask a notifier again that failed."""
    JobDocuments(place.workspace.storage, "lamp").health.update(
        lambda found: (found or HealthRecord()).model_copy(update={"refused": {}})
    )


def said(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_change_is_told_once_and_so_is_its_end(place: Place) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "5s", "critical": "1h"}}, standin_mute=1)
    paths, run, operator = notify(place, "mail"), Run(), supervise(place)
    place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    event = fired(trigger)
    assert event is not None and (event["action"], event["rules"]) == ("alert", ["no_batch"])
    again = deferred(lambda: operator.resume(run.context(), event), run)
    first = said(paths["mail"])
    assert first.startswith("warn|Streamwarden: lamp: warning (no_batch)") and "(warn at 5.0 s)" in first
    # Two triggerers may fire for the same change: the second finds that it was sent.
    late = deferred(lambda: operator.resume(run.context(), event), run)
    assert said(paths["mail"]) == first
    assert fired(again, within=1.5) is None and fired(late, within=0.5) is None

    # It goes on: the driver is another one now, which has work.
    place.write_job(health={**QUICK, "no_batch": {"warn": "5s", "critical": "1h"}})
    deploy_job(place.workspace, "lamp", by="test")
    event = fired(again)
    assert event is not None and (event["action"], event["rules"]) == ("alert", ["no_batch"])
    deferred(lambda: operator.resume(run.context(), event), run)
    last = said(paths["mail"]).removeprefix(first)
    assert last.startswith("ok|Streamwarden: lamp: ok again (no_batch)") and "ok again; was: no batch" in last
    assert not told(place).rules and not told(place).unsent


def test_a_level_that_does_not_last_is_not_told(place: Place) -> None:
    place.write_job(health={"hold": "1h", "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    run = Run()
    place.deploy()
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    assert fired(trigger, within=3) is None
    status = job_status(place.workspace, "lamp")
    assert status["health"] == "warn" and status["findings"][0]["rule"] == "no_batch"


def test_a_notifier_that_fails_is_asked_again_and_the_other_is_not(place: Place) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    paths, run, operator = notify(place, "mail", "pager"), Run(), supervise(place)
    paths["mail"].with_suffix(".broken").touch()
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    trigger = deferred(lambda: operator.resume(run.context(), event), run)
    assert said(paths["pager"]) and not said(paths["mail"])
    assert fired(trigger, within=1) is None, "not at once"
    paths["mail"].with_suffix(".broken").unlink()
    ask_again(place)
    event = fired(trigger)
    assert event is not None and (event["action"], event["rules"]) == ("alert", [])
    deferred(lambda: operator.resume(run.context(), event), run)
    assert said(paths["mail"]) == said(paths["pager"]) and not told(place).unsent


@pytest.mark.parametrize("content", ["notifiers: [{name: x}]", "notifiers: 7", "{", "other: 1"])
def test_a_slip_in_alerts_yaml_does_not_end_supervision(place: Place, content: str) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    (place.config / "alerts.yaml").write_text(content)
    run, operator = Run(), supervise(place)
    errors: list[str] = []
    operator.log.error = lambda text, *args: errors.append(text % args)  # type: ignore[method-assign]
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    deferred(lambda: operator.resume(run.context(), event), run)
    assert "CONFIG_INVALID" in errors[0] and "alerts.yaml" in errors[0]
    assert set(told(place).rules) == {"no_batch"}
    # Changes in between are sent once the file is corrected.
    paths = notify(place, "mail")
    ask_again(place)
    deferred(lambda: operator.resume(run.context(), {"action": "alert", "rules": []}), run)
    assert "no_batch" in said(paths["mail"]) and not told(place).unsent


def test_a_notifier_that_hangs_is_given_up_for_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamwarden.airflow.notifications._NOTIFIER_S", 0.5)
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    paths, run, operator = notify(place, "mail"), Run(), supervise(place)
    paths["mail"].with_suffix(".hangs").touch()
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    deferred(lambda: operator.resume(run.context(), event), run)
    assert not said(paths["mail"]) and set(told(place).unsent) == {"mail"}


def test_a_notifier_that_is_asked_again_does_not_renew_the_wait_for_a_stuck_driver(place: Place) -> None:
    place.write_job(
        trigger={"interval": "30s"}, health={"hold": "1h", "no_batch": {"warn": "1s", "critical": "4s"}}, standin_mute=1
    )
    run, operator = Run(), supervise(place)
    place.deploy()
    time.sleep(4.5)
    change = HealthChange(rule="backlog", before="ok", after="warn", what="for the test", at=utc_now())
    JobDocuments(place.workspace.storage, "lamp").health.update(lambda found: HealthRecord(unsent={"mail": [change]}))
    trigger = deferred(lambda: operator.execute(run.context()), run)
    assert fired(trigger, within=2) is None and trigger._doubtful
    event = fired(trigger)
    assert event is not None and event["action"] == "restart"


def test_a_level_lasts_over_the_wakes_of_a_notifier_that_is_asked_again(place: Place) -> None:
    place.write_job(health={"hold": "1h", "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    run, operator = Run(), supervise(place)
    place.deploy()
    document = JobDocuments(place.workspace.storage, "lamp").health
    change = HealthChange(rule="backlog", before="ok", after="warn", what="for the test", at=utc_now())
    trigger = deferred(lambda: operator.execute(run.context()), run)
    assert fired(trigger, within=3) is None
    document.update(lambda found: HealthRecord(unsent={"mail": [change]}))
    event = fired(trigger)
    assert event is not None and event["rules"] == []
    (first,) = event["differing"]
    assert first[:2] == ["no_batch", "warn"]
    # As if it had begun two hours ago.
    again = deferred(
        lambda: operator.resume(run.context(), {**event, "differing": [[*first[:2], first[2] - 7200]]}), run
    )
    event = fired(again)
    assert event is not None and event["rules"] == ["no_batch"]


@pytest.mark.parametrize("path", ["no.such.Thing", "pathlib.Path", "tests.airflow.notifiers.Missing"])
def test_what_is_no_notifier_is_said_and_supervision_goes_on(place: Place, path: str) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    notify(place, "mail", **{"class": path})
    run, operator = Run(), supervise(place)
    errors: list[Any] = []
    operator.log.exception = lambda text, *args: errors.append(text % args)  # type: ignore[method-assign]
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    deferred(lambda: operator.resume(run.context(), event), run)
    assert errors == ["notifier mail failed: Streamwarden: lamp: warning (no_batch)"]


def test_a_job_that_fails_for_good_is_told_at_once(place: Place) -> None:
    gate = place.gate("fails")
    place.write_job(standin_fail="SINK_SCHEMA_MISMATCH", standin_after=3, standin_gate=str(gate))
    paths, run, operator = notify(place, "pager", level="critical"), Run(), supervise(place)
    deploy_job(place.workspace, "lamp", by="test")
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    event = fired(trigger)
    assert event is not None and event["action"] == "fail"
    with pytest.raises(AirflowFailException):
        operator.resume(run.context(), event)
    assert said(paths["pager"]).startswith("critical|Streamwarden: lamp: critical (driver)")
    assert "SINK_SCHEMA_MISMATCH" in said(paths["pager"])


def failed_for_good(place: Place, paths: dict[str, Path]) -> ReleaseOperator:
    """A job that failed for good while its notifier was away; return what comes next."""
    gate = place.gate("fails")
    place.write_job(standin_fail="SINK_SCHEMA_MISMATCH", standin_after=3, standin_gate=str(gate))
    run, operator = Run(), supervise(place)
    for path in paths.values():
        path.with_suffix(".broken").touch()
    deploy_job(place.workspace, "lamp", by="test")
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    event = fired(trigger)
    with pytest.raises(AirflowFailException):
        operator.resume(run.context(), event)
    assert set(told(place).unsent) == set(paths)
    return ReleaseOperator(task_id="release", job="lamp", **place.place())


@pytest.mark.long
@pytest.mark.ci
def test_the_page_of_a_jobs_end_comes_though_its_notifier_was_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_queue, "RETRY", timedelta(seconds=2))
    paths = notify(place, "pager", level="critical")
    release = failed_for_good(place, paths)
    back = threading.Timer(3, paths["pager"].with_suffix(".broken").unlink)
    back.start()
    release.execute(Run(states={"supervise": "failed"}).context("release"))
    assert said(paths["pager"]).startswith("critical|Streamwarden: lamp: critical (driver)")
    assert not told(place).unsent


@pytest.mark.parametrize("waits", [True, False])
def test_a_notifier_that_stays_away_holds_nobody_up_for_long(
    place: Place, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    if not waits:
        monkeypatch.setattr(release, "_TELL_S", 1.0)
    paths = notify(place, "pager", level="critical")
    run = Run(states={"supervise": "failed"}, runs_of_job=int(waits))
    failed_for_good(place, paths).execute(run.context("release"))
    # For the next run.
    assert set(told(place).unsent) == set(paths)


def test_what_is_to_be_told_outlives_a_slip_in_alerts_yaml(place: Place) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    paths, run, operator = notify(place, "mail"), Run(), supervise(place)
    paths["mail"].with_suffix(".broken").touch()
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    deferred(lambda: operator.resume(run.context(), event), run)
    file = place.config / "alerts.yaml"
    content = file.read_text()
    file.write_text("{")
    ask_again(place)
    trigger = deferred(lambda: operator.resume(run.context(), {"action": "alert", "rules": []}), run)
    assert set(told(place).unsent) == {"mail"}
    assert fired(trigger, within=1) is None, "not again at once"
    ask_again(place)
    file.write_text(content)
    paths["mail"].with_suffix(".broken").unlink()
    deferred(lambda: operator.resume(run.context(), {"action": "alert", "rules": []}), run)
    assert "no_batch" in said(paths["mail"]) and not told(place).unsent


def test_an_alerts_level_is_that_of_now() -> None:
    def change(rule: str, before: str, after: str) -> HealthChange:
        return HealthChange(rule=rule, before=before, after=after, what=f"{rule} is {after}", at=utc_now())

    # Of a notifier that was away from the beginning of an alarm to its end.
    over = Alert("lamp", [change("driver", "ok", "critical"), change("driver", "critical", "ok")])
    assert over.level == "ok" and over.title == "Streamwarden: lamp: ok again (driver)"
    both = Alert("lamp", [*over.changes, change("backlog", "ok", "warn")])
    assert both.level == "warn" and "warning" in both.title


def test_a_state_limit_suspends_the_job_with_a_savepoint(place: Place) -> None:
    limits = {"state_rows": {"critical": 50}, "on_state_limit": "savepoint_and_stop"}
    gate = place.gate("grows")
    place.write_job(health=limits, standin_keys=10, standin_gate=str(gate))
    run, operator = Run(), supervise(place)
    place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    event = fired(trigger)
    assert event is not None and event["action"] == "suspend" and "keys in the state, the limit is 50" in event["why"]
    with pytest.raises(AirflowFailException, match="STATE_LIMIT_REACHED") as raised:
        operator.resume(run.context(), event)
    seen = place.seen()
    assert seen.phase is Phase.STOPPED and seen.desired is not None and seen.desired.state == "suspended"
    kept = catalog.savepoints(place.workspace, "lamp")
    assert [found.manifest.origin for found in kept] == ["suspend"] and kept[0].manifest.id in str(raised.value)
    assert seen.exit is not None and kept[0].manifest.batch == seen.exit.batch


def test_a_stuck_driver_is_replaced(place: Place) -> None:
    place.write_job(health={"no_batch": {"warn": "3s", "critical": "6s"}}, standin_mute=1)
    run, operator, first = Run(), supervise(place), place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    assert event is not None and event["action"] == "restart" and "committed no batch" in event["why"]
    deferred(lambda: operator.resume(run.context(), event), run)
    second = place.until(lambda seen: seen.phase is Phase.RUNNING and seen.incarnation != first.incarnation)
    assert second.launch is not None and "committed no batch" in second.launch.reason


def test_a_stuck_driver_without_a_restart_left_is_diagnosed_and_told_as_down(place: Place) -> None:
    place.write_job(restarts={"max": 0}, health={"hold": "1h", "no_batch": {"critical": "10s"}}, standin_mute=1)
    paths, run, operator = notify(place, "pager", level="critical"), Run(), supervise(place)
    errors: list[str] = []
    operator.log.error = lambda text, *args: errors.append(text % args)  # type: ignore[method-assign]
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    assert event is not None and event["action"] == "fail"
    with pytest.raises(AirflowFailException, match=r"RESTART_BUDGET_SPENT.*Last: DRIVER_STUCK"):
        operator.resume(run.context(), event)
    assert "Diagnosis: " in errors[0] and "[DRIVER_STUCK]" in errors[0]
    assert "the driver is failed: DRIVER_STUCK" in said(paths["pager"])


@pytest.mark.parametrize("act", ["savepoint_and_stop", "fail"])
def test_a_state_limit_whose_stop_takes_too_long_is_carried_out_and_told_later(
    place: Place, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"state_rows": {"critical": 50}, "on_state_limit": act}
    grows, stops = place.gate("grows"), place.gate("stops")
    place.write_job(health=limits, standin_keys=10, standin_gate=str(grows), standin_stop_gate=str(stops))
    monkeypatch.setattr(supervising, "put_down", partial(put_down, timeout=0.5))
    run, operator = Run(), supervise(place)
    place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    grows.touch()
    event = fired(trigger)
    with pytest.raises(AirflowException, match="STOP_TIMED_OUT") as raised:
        operator.resume(run.context(), event)
    assert not isinstance(raised.value, AirflowFailException), "Airflow tries it again"
    trigger = deferred(lambda: supervise(place).execute(run.context()), run)
    stops.touch()
    event = fired(trigger)
    assert event is not None and event["action"] == "suspend"
    with pytest.raises(AirflowFailException, match="STATE_LIMIT_REACHED") as ended:
        operator.resume(run.context(), event)
    assert place.seen().phase is Phase.STOPPED
    kept = [found.manifest.id for found in catalog.savepoints(place.workspace, "lamp")]
    assert len(kept) == (act == "savepoint_and_stop") and all(name in str(ended.value) for name in kept)
    # The alarm was sent; from now on the job is suspended.
    assert supervise(place).execute(run.context())["phase"] == "stopped"


def test_a_state_limit_is_told_before_the_stop_and_looked_at_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = place.gate("grows")
    limits = {"state_rows": {"critical": 50}, "on_state_limit": "fail"}
    place.write_job(health=limits, standin_keys=10, standin_gate=str(gate))
    paths, run, operator = notify(place, "pager", level="critical"), Run(), supervise(place)
    place.deploy()
    trigger = deferred(lambda: operator.execute(run.context()), run)
    gate.touch()
    event = fired(trigger)
    real = supervising.tell

    def slow(*args: Any, **kwargs: Any) -> Any:
        done = real(*args, **kwargs)
        # While the notifier took its time, somebody has deployed the job without the limit.
        place.write_job()
        deploy_job(place.workspace, "lamp", by="somebody")
        return done

    monkeypatch.setattr(supervising, "tell", slow)
    deferred(lambda: operator.resume(run.context(), event), run)
    assert "state_rows" in said(paths["pager"])
    desired = place.seen().desired
    assert desired is not None and desired.state == "running"


def test_what_an_operation_has_down_is_not_well_again(place: Place) -> None:
    place.write_job(health={**QUICK, "no_batch": {"warn": "1s", "critical": "1h"}}, standin_mute=1)
    paths, run, operator = notify(place, "mail"), Run(), supervise(place)
    place.deploy()
    event = fired(deferred(lambda: operator.execute(run.context()), run))
    trigger = deferred(lambda: operator.resume(run.context(), event), run)
    first = said(paths["mail"])
    assert first.startswith("warn|Streamwarden: lamp: warning (no_batch)")
    with begin(place.workspace, "lamp", "restore", by="test", params={}):
        driver_control.stop_in_turn(place.workspace, "lamp", by="test", reason="", timeout=60)
        assert fired(trigger, within=2) is None
    assert said(paths["mail"]) == first and set(told(place).rules) == {"no_batch"}
