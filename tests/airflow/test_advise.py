"""Advice from Airflow: what is said of a running stand-in, when a rescale is triggered, and how a person is asked."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DagRunTriggerException

from streamwarden.airflow.operators.advise import AdviseOperator
from streamwarden.airflow.operators.approval import RescaleApprovalOperator
from streamwarden.airflow.operators.rescale import RescaleOperator
from streamwarden.autoscaler.advise import Advice, advise, holds_back
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.operations.rescale import rescale
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision import driver_control
from tests.airflow.conftest import REPOSITORY, Place, Run
from tests.airflow.test_dags import load

pytestmark = pytest.mark.airflow

# The stand-in says that its batches take all of its time: 200 ms, or more on a slow machine.
BUSY = {"interval": "200ms"}
QUICK = {"window": "2s", "down_after": "4s", "cool_down": "3s", "target_busy": 0.3, "busy_above": 0.5}


def advised(place: Place, condition: Any = lambda advice: advice.recommendation.changes) -> Advice:
    """Ask until something is recommended."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        found = advise(place.workspace, "lamp")
        if condition(found):
            return found
        time.sleep(0.2)
    raise AssertionError(found)


def running(place: Place, **advisor: Any) -> None:
    place.write_job(advisor={**QUICK, **advisor}, trigger=BUSY)
    place.deploy()


def task(place: Place) -> AdviseOperator:
    return AdviseOperator(task_id="advise", job="lamp", **place.place())


def test_a_busy_job_is_to_get_cores_and_only_told_so(place: Place) -> None:
    running(place)
    advice = advised(place)
    assert advice.recommendation.changes["cores"] > 1
    assert not advice.acts and advice.holds == ("advisor.apply is off in the job's YAML",)
    context = Run(dag_id="advise").context("advise")
    task(place).execute(context)
    pushed = context["ti"].pushed["advice"]
    assert pushed["changes"]["cores"] > 1 and pushed["acts"] is False and "of the interval" in pushed["why"][0]


def test_where_the_job_allows_it_the_rescale_is_triggered(place: Place) -> None:
    running(place, apply=True)
    advised(place)
    with pytest.raises(DagRunTriggerException) as raised:
        task(place).execute(Run(dag_id="advise").context("advise"))
    assert raised.value.trigger_dag_id == "rescale"
    conf = raised.value.conf
    assert conf is not None and conf["job"] == "lamp" and conf["cores"] > 1
    # Such a conf is what the form of that DAG takes, but for the mark that nobody has filled it in.
    dag = load(REPOSITORY / "dags" / "operations.py").dags["rescale"]
    assert set(conf) - set(dag.params.dump()) == {"advised"} and conf["advised"] is True
    assert {"advised" in dag.get_task(name).template_fields for name in ("approve", "rescale")} == {True}
    assert raised.value.dag_run_id == "advised__lamp__first__0"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"job_paused": True}, "DAG rescale is paused"),
        ({"runs_of_job": 1}, "a run of DAG rescale that earlier advice triggered has not ended"),
    ],
)
def test_no_run_is_triggered_that_would_only_wait(place: Place, run: dict[str, Any], said: str) -> None:
    running(place, apply=True)
    advised(place)
    context = Run(dag_id="advise", **run).context("advise")
    task(place).execute(context)
    pushed = context["ti"].pushed["advice"]
    assert pushed["changes"] and not pushed["acts"] and pushed["holds"] == [said]


def test_runs_that_came_to_nothing_do_not_hold_back_the_next(place: Place) -> None:
    running(place, apply=True)
    advised(place)
    context = Run(dag_id="advise").context("advise")
    context["ti"].get_dr_count = lambda *, states=None, **_: 0 if states else 2
    with pytest.raises(DagRunTriggerException) as raised:
        task(place).execute(context)
    assert raised.value.dag_run_id == "advised__lamp__first__2"


def test_what_was_advised_is_held_back_when_it_starts_at_last(place: Place) -> None:
    running(place, apply=True, cool_down="1h")
    place.batch(1)
    rescale(place.workspace, "lamp", cores=2, by="somebody", health_timeout=60)
    waited: dict[str, Any] = {"job": "lamp", "cores": "3", "advised": "True", **place.place()}
    for operator in (
        RescaleApprovalOperator(task_id="approve", wanted="False", **waited),
        RescaleOperator(task_id="rescale", health_timeout=60, **waited),
    ):
        with pytest.raises(AirflowSkipException, match="cooling down"):
            operator.execute(Run(dag_id="rescale").context(operator.task_id))
    desired = place.seen().desired
    assert desired is not None and desired.spec.resources.cores == 2
    # A person who asks for the same is not held back by them.
    RescaleOperator(task_id="rescale", **{**waited, "advised": "False"}).execute(Run(dag_id="rescale").context())


def test_a_cool_down_and_the_daily_cap_hold_it_back(place: Place) -> None:
    running(place, apply=True, per_day=1, cool_down="1h")
    advised(place)
    rescale(place.workspace, "lamp", cores=2, by="test", health_timeout=60)
    # At the same pace on two cores: by its figures it still needs more.
    held = advised(place)
    assert any("cooling down" in line for line in held.holds)
    assert any("1 rescales in 24 hours" in line for line in held.holds)
    assert not held.acts


def test_nothing_runs_nothing_is_advised(place: Place) -> None:
    with pytest.raises(AirflowSkipException):
        task(place).execute(Run(dag_id="advise").context("advise"))
    running(place, apply=True)
    driver_control.stop(place.workspace, "lamp", by="test")
    stopped = advise(place.workspace, "lamp")
    assert stopped.recommendation.changes == {} and "no load" in stopped.recommendation.why[0]


def approval(place: Place, **kwargs: Any) -> RescaleApprovalOperator:
    return RescaleApprovalOperator(task_id="approve", job="lamp", **kwargs, **place.place())


def test_a_person_is_asked_with_the_plan_and_only_if_wanted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl

    asked: list[str] = []
    monkeypatch.setattr(hitl.ApprovalOperator, "execute", lambda self, context: asked.append(self.subject))
    place.deploy()
    place.batch(1)
    context = Run(dag_id="rescale").context("approve")
    approval(place, cores="2", wanted="False").execute(context)
    assert asked == [] and "asked" not in context["ti"].pushed
    operator = approval(place, partitions="None", cores="2", memory="", wanted="True")
    operator.execute(context)
    assert asked == ["Rescale lamp: cores 1 -> 2?"] and context["ti"].pushed["asked"] == "cores 1 -> 2"
    assert "savepoint is taken before" in str(operator.body)
    with pytest.raises(AirflowFailException, match="RESCALE_NOTHING"):
        approval(place, cores="1").execute(context)


def test_who_has_approved_is_told_to_the_rescale(place: Place) -> None:
    event = {"params_input": {}, "responded_at": datetime.now(UTC), "timedout": False}
    anna = {"id": "7", "name": "anna"}
    context = Run(dag_id="rescale").context("approve")
    approval(place).execute_complete(context, {**event, "chosen_options": ["Reject"], "responded_by_user": anna})
    assert "approved_by" not in context["ti"].pushed
    approval(place).execute_complete(context, {**event, "chosen_options": ["Approve"], "responded_by_user": anna})
    assert context["ti"].pushed["approved_by"] == "anna"


def test_what_has_gone_back_is_not_done_again_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running(place, apply=True, cool_down="1s")
    place.batch(1)

    def unhealthy(*_: Any, **__: Any) -> Any:
        raise StreamwardenError("OUT_OF_MEMORY", "for the test")

    with monkeypatch.context() as changed, pytest.raises(StreamwardenError, match="RESCALE_UNHEALTHY"):
        changed.setattr("streamwarden.supervision.driver_control.await_health", unhealthy)
        rescale(place.workspace, "lamp", cores=3, by="somebody", health_timeout=60)
    place.batch(1)
    later = utc_now() + timedelta(minutes=1)
    (held,) = holds_back(place.workspace, "lamp", {"cores": 3}, now=later)
    assert "to the same parallelism ended as: rolled back: OUT_OF_MEMORY" in held
    assert holds_back(place.workspace, "lamp", {"cores": 2}, now=later) == ()
    assert holds_back(place.workspace, "lamp", {"cores": 3}, now=later + timedelta(days=1)) == ()


def test_it_cools_down_for_longer_than_a_day_and_from_the_end_on(place: Place) -> None:
    running(place, apply=True, cool_down="2d")
    place.batch(1)
    done = rescale(place.workspace, "lamp", cores=2, by="somebody", health_timeout=60)
    assert done.ended_at is not None
    later = done.ended_at + timedelta(days=1, hours=23)
    assert ["cooling down" in held for held in holds_back(place.workspace, "lamp", {"cores": 3}, now=later)] == [True]
    # One that began before that time and has ended in it counts.
    document = JobDocuments(place.workspace.storage, "lamp").operation
    document.write(done.model_copy(update={"started_at": done.started_at - timedelta(days=9)}))
    assert ["cooling down" in held for held in holds_back(place.workspace, "lamp", {"cores": 3}, now=later)] == [True]
    assert holds_back(place.workspace, "lamp", {"cores": 3}, now=later + timedelta(hours=2)) == ()
