"""End what a job's run holds, when its supervise task has ended."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    DagRunTriggerException,
)

from streamwarden.airflow.notifications import tell
from streamwarden.airflow.operators.base import (
    JobOperator,
    holder_of,
)
from streamwarden.airflow.operators.observed import is_suspended
from streamwarden.airflow.operators.supervise import FINISHED, GOING_ON, TRY
from streamwarden.airflow.run_handover import are_used_up, relief, relief_of
from streamwarden.errors import StreamwardenError
from streamwarden.model.status import HealthRecord, Supervision, utc_now
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.alert_queue import unsent_due
from streamwarden.supervision.claim import Claim, claim, current_claim
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import Observation, observe

__all__ = ["ReleaseOperator"]

_FIRST = "first_try"

_TELL_S = 300.0
"""How long a notifier that fails is asked again when nobody supervises the job any more: as often as it is its turn,
and once more at the end. 5 minutes: a worker slot is held, and the DAG `watch` asks it later."""


class ReleaseOperator(JobOperator):
    """Sees to it that no driver of a run goes on unwatched once the run's supervise task has ended.

    Normally there is nothing to do: a supervised job ends by its own stop, or because a person marked the task failed
    and the trigger stopped the driver. But a trigger hears of that only if a triggerer runs it at that moment. A job
    that was down just then is suspended: nobody starts it again. To be used as a teardown, after the supervise task.
    Does not wait for the driver's end. What it can't read, or may not stop because an operation works on the job, it
    tries again, for hours.

    A driver is stopped for a person's hand only. One of a run that is relieved, or whose supervise task has used up its
    tries, goes on, and a fresh run supervises it; tries that died before they began are told from a hand by the time
    that they take. So does one that somebody has deployed since, whom this would undo.

    A notifier that could not be told of the job's end is asked again for some minutes, unless a next run waits, which
    will do so; after that the DAG `watch` asks it.

    Parameters
    ----------
    job
        The job. (templated)
    supervise_task_id
        The task that has ended.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#eeeeee"

    def __init__(self, *, supervise_task_id: str = "supervise", **kwargs: Any) -> None:
        kwargs.setdefault("retries", 1000)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.supervise_task_id = supervise_task_id

    def execute(self, context: Context) -> None:
        """Stop what is left."""
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[self.supervise_task_id])
        state = states.get(ti.run_id, {}).get(self.supervise_task_id)
        # Skipped where a person has marked the whole run while the task waited for a worker.
        if state not in ("failed", "success", "skipped"):
            self.log.info("%s is %s: nothing to release", self.supervise_task_id, state)
            return
        since = self._since(context)
        relieved = bool(ti.get_dr_count(dag_id=ti.dag_id, run_ids=[relief_of(ti)], states=["queued", "running"]))
        try:
            workspace = self.open()
            self._release(context, workspace, state, relieved=relieved, since=since)
            self._tell_rest(context, workspace)
        except DagRunTriggerException:
            raise
        except (StreamwardenError, AirflowException, OSError) as error:
            # What can't be read keeps nobody from being relieved: the fresh run waits for the end of this one.
            if relieved:
                self.log.warning("run %s takes over, which finds for itself: %s", relief_of(ti), error)
                return
            if state == "failed" and self._used_up(context):
                self.log.warning("the tries are used up, and: %s", error)
                raise relief(ti) from error
            raise (self.fail(error) if isinstance(error, StreamwardenError) else error) from error

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: never a final one, as somebody's wish stands behind this."""
        return AirflowException(str(error))

    def _since(self, context: Context) -> datetime:
        """Return when this was first tried, which is right after the end of the supervise task."""
        # Of each clear its own: the granted tries grow by it, and this store outlives it.
        store, key, now = context.get("task_state_store"), f"{_FIRST}_{context['ti'].max_tries}", utc_now()
        if store is None:
            return now
        try:
            if found := store.get(key):
                return datetime.fromisoformat(str(found))
            store.set(key, now.isoformat())
        except Exception:
            # Whatever it is: then a later wish is told by this try's beginning.
            self.log.warning("can't keep when this began", exc_info=True)
        return now

    def _used_up(self, context: Context) -> bool:
        """Tell whether the supervise task's last try was the last that it had: Airflow failed it, and nobody's hand."""
        found = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=TRY)
        return isinstance(found, dict) and found["attempt"] > found["granted"]

    def _never_began(self, holder: Claim | None, since: datetime) -> bool:
        """Tell whether the supervise task's last tries may have died before they could say anything."""
        dag = self.get_dag()
        if holder is None or dag is None:
            return False
        task = dag.get_task(self.supervise_task_id)
        return are_used_up(holder, retries=task.retries or 0, retry_delay=task.retry_delay, ended=since)

    def _release(self, context: Context, workspace: Workspace, state: str, *, relieved: bool, since: datetime) -> None:
        seen, ti = observe(workspace, self.job), context["ti"]
        holder = current_claim(workspace, self.job)
        ours = holder is not None and holder.holder == holder_of(context)
        if relieved:
            self.log.info("run %s takes over: left alone", relief_of(ti))
            if ours:
                # It could not be said when that run was asked for; a late trigger of ours must find it.
                fresh = Claim(holder=f"{ti.dag_id}/{relief_of(ti)}", attempt=0, at=utc_now())
                claim(workspace, self.job, fresh)
            return
        used_up = ours and state == "failed" and (self._used_up(context) or self._never_began(holder, since))
        if used_up and self._is_unfinished(workspace, seen):
            self.log.warning("the tries of supervise are used up: run %s goes on", relief_of(ti))
            raise relief(ti)
        if state != "success" and holder is not None and holder.holder == f"{ti.dag_id}/{relief_of(ti)}":
            # Its last try was lost between the claim for that run and the asking for it.
            raise relief(ti)
        if holder is None or holder.holder != holder_of(context):
            self.log.info("supervised by %s now: left alone", holder.holder if holder else "nobody")
        elif not seen.phase.alive and not self._awaits_restart(workspace, seen):
            self.log.info("%s is %s: nothing to release", seen.incarnation, seen.phase)
        elif (wish := self._later_wish(context, workspace, seen, since)) is not None:
            self.log.warning(
                "%s was deployed since, by %s: left alone; its DAG supervises it once triggered", self.job, wish
            )
        else:
            # Also of a driver that is down: the trigger may say the same much later, after the next run was asked
            # for, and would undo that.
            reason = f"its supervise task has ended ({state})"
            by = f"airflow:{holder_of(context)}"
            driver_control.stop(workspace, self.job, by=by, reason=reason, incarnation=seen.incarnation, timeout=None)
            self.log.warning("driver %s, which is %s, is not to run: %s", seen.incarnation, seen.phase, reason)

    def _tell_rest(self, context: Context, workspace: Workspace) -> None:
        document, ti = JobDocuments(workspace.storage, self.job).health, context["ti"]
        deadline = time.monotonic() + _TELL_S
        while (found := document.read()) is not None and found.unsent:
            waits = bool(ti.get_dr_count(dag_id=ti.dag_id, states=["queued"]))
            over = waits or time.monotonic() >= deadline
            if unsent_due(found) or (over and not waits):
                tell(
                    workspace,
                    self.job,
                    Health(),
                    context=context,
                    log=self.log,  # type: ignore[arg-type]
                    rules=(),
                    anyway=over and not waits,
                )
            if over:
                left = (document.read() or HealthRecord()).unsent
                if left:
                    self.log.warning("not told yet: %s", ", ".join(sorted(name or "anybody" for name in left)))
                return
            time.sleep(1)

    def _later_wish(self, context: Context, workspace: Workspace, seen: Observation, since: datetime) -> str | None:
        """Return who made the job run after a time, if that was neither this run nor an operation begun before."""
        mine = f"airflow:{holder_of(context)}"
        if seen.desired is None or seen.desired.state != "running":
            return None
        finished = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=FINISHED)
        if finished is not None and finished != seen.incarnation and seen.launch is not None:
            # Between the end that supervise has seen and this task's first try, which may be minutes.
            return seen.launch.by
        wishes = [(seen.desired.updated_at, seen.desired.updated_by)]
        if seen.launch is not None:
            wishes.append((seen.launch.at, seen.launch.by))
        operation = JobDocuments(workspace.storage, self.job).operation.read()
        for at, by in wishes:
            before = operation is not None and operation.started_at <= since and at <= (operation.ended_at or at)
            if at > since and by != mine and not before:
                return by
        return None

    def _is_unfinished(self, workspace: Workspace, seen: Observation) -> bool:
        """Tell whether the job needs a supervisor yet: it runs, or is to, and there is no verdict that ends it."""
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        action = decide(seen, memory).action
        return action is Action.SUSPEND or (action in GOING_ON and not is_suspended(seen))

    def _awaits_restart(self, workspace: Workspace, seen: Observation) -> bool:
        """Tell whether a supervisor would start it again, as it won't a job that failed for good or is suspended."""
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        return decide(seen, memory).action is Action.RESTART
