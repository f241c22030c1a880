"""Release a job after its run's supervise task has ended."""

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
from streamwarden.model.record import utc_now
from streamwarden.model.supervision import HealthRecord, Supervision
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
"""Seconds for retries of a failing notifier when no task supervises the job any more. Each is called when it is due,
and once more at the end. 5 minutes: this holds a worker slot, and the DAG `watch` retries later."""


class ReleaseOperator(JobOperator):
    """Ensures that no driver of a run continues unsupervised once the run's supervise task has ended.

    Normally nothing is to do: a supervised job ends by its own stop, or a person marks the task failed and the trigger
    stops the driver. But a trigger only notices the mark if a triggerer runs it at that moment. If the job was down
    just then, it is suspended: nothing starts it again. Use it as a teardown after the supervise task. Does not wait
    for the driver's end. It retries for hours if documents can't be read, or if an operation on the job forbids the
    stop.

    Only a manual mark stops a driver. If the run is relieved, or its supervise task has exhausted its retries, the
    driver continues and a fresh run supervises it. Retries that failed to start are distinguished from a manual mark by
    elapsed time. A driver that was deployed in the meantime is left running.

    If a notifier could not be called at the job's end, it is retried for some minutes. If a next run waits, that run
    retries instead; afterwards the DAG `watch` does.

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
        """Stop the run's driver if it must not continue."""
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[self.supervise_task_id])
        state = states.get(ti.run_id, {}).get(self.supervise_task_id)
        # "skipped": a person has marked the whole run while the task waited for a worker.
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
            # If the documents can't be read, the run is still relieved: the fresh run waits for the end of this one.
            if relieved:
                self.log.warning("run %s takes over, despite: %s", relief_of(ti), error)
                return
            if state == "failed" and self._used_up(context):
                self.log.warning("no tries are left, and: %s", error)
                raise relief(ti) from error
            raise (self.fail(error) if isinstance(error, StreamwardenError) else error) from error

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: never a final one, because a person's request must be carried out."""
        return AirflowException(str(error))

    def _since(self, context: Context) -> datetime:
        """Return the time of this task's first try, which follows directly after the end of the supervise task."""
        # A separate key for each clear: a clear raises the granted tries, and this store survives it.
        store, key, now = context.get("task_state_store"), f"{_FIRST}_{context['ti'].max_tries}", utc_now()
        if store is None:
            return now
        try:
            if found := store.get(key):
                return datetime.fromisoformat(str(found))
            store.set(key, now.isoformat())
        except Exception:
            # Any exception: then only what came after this try's start counts as a later request.
            self.log.warning("can't store the time of the first try", exc_info=True)
        return now

    def _used_up(self, context: Context) -> bool:
        """Return whether Airflow failed the supervise task's last granted try, and not a person."""
        found = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=TRY)
        return isinstance(found, dict) and found["attempt"] > found["granted"]

    def _never_began(self, holder: Claim | None, since: datetime) -> bool:
        """Return whether the supervise task's last tries may have died before they left a trace."""
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
            self.log.info("run %s takes over: nothing to release", relief_of(ti))
            if ours:
                # The supervise task could not write this claim when it requested that run; our late trigger needs it.
                fresh = Claim(holder=f"{ti.dag_id}/{relief_of(ti)}", attempt=0, at=utc_now())
                claim(workspace, self.job, fresh)
            return
        used_up = ours and state == "failed" and (self._used_up(context) or self._never_began(holder, since))
        if used_up and self._is_unfinished(workspace, seen):
            self.log.warning("supervise has no tries left: run %s takes over", relief_of(ti))
            raise relief(ti)
        if state != "success" and holder is not None and holder.holder == f"{ti.dag_id}/{relief_of(ti)}":
            # The supervise task's last try was lost between the claim for the fresh run and the request for it.
            raise relief(ti)
        if holder is None or holder.holder != holder_of(context):
            self.log.info("supervised by %s now: nothing to release", holder.holder if holder else "no task")
        elif not seen.phase.alive and not self._awaits_restart(workspace, seen):
            self.log.info("%s is %s: nothing to release", seen.incarnation, seen.phase)
        elif (wish := self._later_wish(context, workspace, seen, since)) is not None:
            self.log.warning(
                "%s was deployed since, by %s: it keeps running; trigger its DAG to supervise it", self.job, wish
            )
        else:
            # Also if the driver is down: otherwise the trigger may request the stop much later, after the next run was
            # requested, and undo that run.
            reason = f"its supervise task has ended ({state})"
            by = f"airflow:{holder_of(context)}"
            driver_control.stop(workspace, self.job, by=by, reason=reason, incarnation=seen.incarnation, timeout=None)
            self.log.warning("stopping driver %s, which is %s: %s", seen.incarnation, seen.phase, reason)

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
                    self.log.warning("not sent yet: %s", ", ".join(sorted(name or "anybody" for name in left)))
                return
            time.sleep(1)

    def _later_wish(self, context: Context, workspace: Workspace, seen: Observation, since: datetime) -> str | None:
        """Return who made the job run after a time, unless that was this run or an operation begun before."""
        mine = f"airflow:{holder_of(context)}"
        if seen.desired is None or seen.desired.state != "running":
            return None
        finished = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=FINISHED)
        if finished is not None and finished != seen.incarnation and seen.launch is not None:
            # Between the end that supervise saw and this task's first try, which may take minutes.
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
        """Return whether the job still needs a supervisor: it runs or is wanted, and no verdict ends it."""
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        action = decide(seen, memory).action
        return action is Action.SUSPEND or (action in GOING_ON and not is_suspended(seen))

    def _awaits_restart(self, workspace: Workspace, seen: Observation) -> bool:
        """Return whether a supervisor would restart the job; false for a job that failed for good or is suspended."""
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        return decide(seen, memory).action is Action.RESTART
