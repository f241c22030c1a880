"""A changed YAML, deployed from Airflow, with drivers that are stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from streamwarden.airflow.operators.deploy import DeployOperator
from streamwarden.airflow.operators.supervise import SuperviseOperator
from streamwarden.model.operation import Operation
from streamwarden.model.status import Parallelism
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import decide
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase
from tests.airflow.conftest import Place, Run, reborn, watched
from tests.airflow.test_restore import at_step, terminated_when

pytestmark = pytest.mark.airflow


def deploying(place: Place, **kwargs: Any) -> DeployOperator:
    return DeployOperator(task_id="deploy", job="lamp", **{"health_timeout": 60, **kwargs}, **place.place())


def run_of(attempt: int = 1, **kwargs: Any) -> Run:
    return Run(attempt=attempt, granted=kwargs.pop("granted", 2), **kwargs)


def operation(place: Place) -> Operation:
    found = JobDocuments(place.workspace.storage, "lamp").operation.read()
    assert found is not None
    return found


def said_by(task: DeployOperator, level: str) -> list[str]:
    said: list[str] = []
    setattr(task.log, level, lambda text, *args: said.append(text % args))
    return said


def test_a_changed_yaml_is_rolled_out_while_the_supervisor_waits(place: Place) -> None:
    first = place.deploy()
    supervised = Run()
    with pytest.raises(TaskDeferred) as raised:
        SuperviseOperator(task_id="supervise", job="lamp", **place.place()).execute(supervised.context())
    trigger = reborn(raised.value.trigger, supervised)  # type: ignore[arg-type]
    with watched(trigger) as events:
        place.write_job(size=2)
        task, context = deploying(place), run_of().context("deploy")
        said = said_by(task, "info")
        done = task.execute(context)
        # It watches the new driver now.
        place.until(lambda now: trigger.incarnation == now.incarnation)
    assert events == [], "the supervisor had nothing to do"
    assert done["launched"] and done["effect"] == "savepoint + restart" and done["operation"] == operation(place).id
    assert done["changes"] == ["options.size"] and "options.size None -> 2: savepoint + restart" in said
    for name in ("precheck", "stop", "pre-rollout savepoint", "switch", "start", "wait for health"):
        assert any(line.startswith(f"step {name}: ") for line in said), name
    seen = place.seen()
    assert seen.phase is Phase.RUNNING and seen.incarnation == done["incarnation"] != first.incarnation
    assert context["ti"].pushed["incarnation"] == seen.incarnation
    # Once more, as a retry would: nothing is left to do.
    again = deploying(place).execute(run_of(2).context("deploy"))
    assert not again["launched"] and again["incarnation"] == seen.incarnation and again["effect"] == "none"


def test_what_goes_back_fails_the_task_for_good_and_the_job_runs(place: Place) -> None:
    # As wide as a rescale has made it, and not as the YAML says: a deploy goes by that.
    parallelism = Parallelism(partitions=8, cores=2, memory="1g")
    JobDocuments(place.workspace.storage, "lamp").parallelism.write(
        decide(place.workspace, "lamp", parallelism, by="test")
    )
    place.deploy()
    place.write_job(standin_fail="DRIVER_FAILED")
    task, context = deploying(place), run_of().context("deploy")
    said = said_by(task, "error")
    with pytest.raises(AirflowFailException) as raised:
        task.execute(context)
    text = str(raised.value)
    assert "[ROLLOUT_UNHEALTHY]" in text and "DRIVER_FAILED: as it was told" in text and "began no batch" in text
    assert context["ti"].pushed["error"]["code"] == "ROLLOUT_UNHEALTHY"
    assert "stand-in fails as it was told" in said[0], "the words of the driver that failed"
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.desired is not None and seen.desired.spec.options == {}
    # Had the worker died just before it said so, the next try says the same, and does not stop the job again.
    ended = operation(place).id
    with pytest.raises(AirflowFailException, match="ROLLOUT_UNHEALTHY"):
        deploying(place).execute(run_of(2).context("deploy"))
    assert operation(place).id == ended and place.seen().incarnation == seen.incarnation
    # A clear asks for it again; and so does a YAML that was corrected meanwhile.
    with pytest.raises(AirflowFailException, match="ROLLOUT_UNHEALTHY"):
        deploying(place).execute(run_of(3, granted=5).context("deploy"))
    assert operation(place).id != ended
    place.write_job(size=2)
    assert deploying(place).execute(run_of(2).context("deploy"))["launched"]


def test_a_refused_change_fails_the_task_and_touches_nothing(place: Place) -> None:
    first = place.deploy()
    path = place.config / "jobs" / "lamp.yaml"
    path.write_text(path.read_text().replace("path: landing", "path: elsewhere"))
    context = run_of().context("deploy")
    with pytest.raises(AirflowFailException, match=r"\[ROLLOUT_REFUSED\](?s:.)*source.path(?s:.)*What to do"):
        deploying(place).execute(context)
    assert context["ti"].pushed["error"]["code"] == "ROLLOUT_REFUSED"
    assert place.seen().incarnation == first.incarnation and place.seen().phase is Phase.RUNNING


def test_who_stops_the_job_after_the_switch_has_the_last_word(place: Place) -> None:
    place.deploy()
    place.write_job(standin_mute=0, size=2)
    task = deploying(place)
    with terminated_when(task, at_step(place, "wait for health")), pytest.raises(AirflowException):
        task.execute(run_of().context("deploy"))
    driver_control.stop(place.workspace, "lamp", by="somebody")
    with pytest.raises(AirflowFailException, match=r"ROLLOUT_UNHEALTHY(?s:.)*stopped since, by somebody"):
        deploying(place).execute(run_of(2).context("deploy"))
    seen = place.seen()
    assert operation(place).state == "rolled back" and seen.phase is Phase.STOPPED
    assert seen.desired is not None and (seen.desired.state, seen.desired.spec.options) == ("suspended", {})


@pytest.mark.parametrize("step, options", [("stop", {}), ("wait for health", {"size": 2})])
def test_an_interrupted_rollout_is_gone_on_with_by_the_next_try(
    place: Place, step: str, options: dict[str, Any]
) -> None:
    place.write_job(standin_stop_s=1)
    place.deploy()
    # It does nothing at first: its health is waited for.
    place.write_job(standin_stop_s=1, standin_mute=0, size=2)
    task = deploying(place)
    with terminated_when(task, at_step(place, step)), pytest.raises(AirflowException, match="ended from outside"):
        task.execute(run_of().context("deploy"))
    left = operation(place)
    assert left.state == "running" and active_operation(place.workspace, "lamp") is None
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.desired is not None and seen.desired.state == "running"
    assert ("size" in seen.desired.spec.options) is bool(options), "in force: the old spec or the new"
    with pytest.raises(AirflowFailException, match="ROLLOUT_UNHEALTHY"):
        deploying(place, health_timeout=2).execute(run_of(2).context("deploy"))
    assert (operation(place).id, operation(place).state) == (left.id, "rolled back")
    seen = place.until(lambda now: now.phase is Phase.RUNNING)
    assert seen.desired is not None and seen.desired.spec.options == {"standin_stop_s": 1}
