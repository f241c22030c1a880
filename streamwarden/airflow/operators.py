"""Operators: deploy, supervise and stop a job; check tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
)

from streamwarden.airflow.job_operator import ALL_JOBS, InterruptibleOperator, JobOperator, ProgressLog, holder_of
from streamwarden.airflow.logtail import describe_error, log_tail
from streamwarden.airflow.notify import tell
from streamwarden.airflow.operation_log import ended_operation, steps_logged
from streamwarden.airflow.relief import are_used_up, is_due, relief, relief_of, relieved_by
from streamwarden.airflow.triggers import ALERT, SuperviseTrigger
from streamwarden.errors import StreamwardenError
from streamwarden.model.status import ErrorInfo, HealthRecord, Supervision, utc_now
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.give_up import put_down
from streamwarden.operations.rollout import is_same_rollout
from streamwarden.operations.status import job_status
from streamwarden.runtime.processes import kill, process_of
from streamwarden.store.config import job_names
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import effective_spec
from streamwarden.store.workspace import Workspace, open_workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import ask_to_stop, record_decision, restart
from streamwarden.supervision.alert_queue import unsent_due
from streamwarden.supervision.claim import Claim, claim, current_claim
from streamwarden.supervision.decide import Action, Verdict, assess, decide
from streamwarden.supervision.health_rules import Health
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.stuck import is_to_be_ended

__all__ = ["ALL_JOBS", "CheckOperator", "DeployOperator", "ReleaseOperator", "StopOperator", "SuperviseOperator"]

_GOING_ON = (Action.WAIT, Action.RESTART)

_TRY = "try"
"""The XCom by which `release` knows which try of supervise was the last, though it can read nothing else."""

_FINISHED = "finished"
"""The XCom by which `release` knows the driver whose wanted end supervise has seen: one that came later is not its."""

_FIRST = "first_try"

_TELL_S = 300.0
"""How long a notifier that fails is asked again when nobody supervises the job any more: as often as it is its turn,
and once more at the end. 5 minutes: a worker slot is held, and the DAG `watch` asks it later."""


class DeployOperator(JobOperator, InterruptibleOperator):
    """Makes a job run as its YAML says now; leaves a driver alone that does so already.

    Where a driver runs and the YAML has changed, this is a rollout: it waits until the job is healthy, and goes back to
    what ran before if that does not come. A rollout whose try was killed is gone on with by the next one; one that went
    back is final and fails the task, while the job runs as it did. A change that the job's state stands against fails
    the task with nothing touched.

    Waits a moment for the driver to say that it runs, so that an error of the configuration fails this task, with the
    driver's words. A driver that ends of what may pass by itself is the supervisor's matter. Does not supervise, and
    does not launch if the job was stopped after this run was asked for. In a run that relieves another
    (:mod:`streamwarden.airflow.relief`) it deploys nothing: nobody has asked for a change.

    Pushes ``incarnation`` to XCom, and ``error`` if it fails: code, what happened, what to do.

    Parameters
    ----------
    job
        The job. (templated)
    wait
        Seconds to wait for the driver to run. 60: a JVM on a busy machine. One that takes longer is not at fault.
    stop_timeout
        Seconds that a driver with an older spec may take to stop.
    health_timeout
        Seconds until a rolled-out job that commits no batch counts as unhealthy. 300: a first batch may be as large as
        its limits allow.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dcefe4"

    def __init__(
        self, *, wait: float = 60.0, stop_timeout: float = 300.0, health_timeout: float = 300.0, **kwargs: Any
    ) -> None:
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.wait = wait
        self.stop_timeout = stop_timeout
        self.health_timeout = health_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Deploy."""
        workspace = self.open()
        holder = holder_of(context)
        # The same in every try of this run, and in no other run: by it a rollout is known as one's own.
        by = f"airflow:{holder}"
        try:
            self._respect_stop(workspace, context)
            # Now, not when the supervise task starts: an ended run's late trigger must find that the job is ours.
            claim(workspace, self.job, Claim(holder=holder, attempt=0, at=utc_now()), over_own=False)
            if (relieved := relieved_by(context)) is not None:
                return self._attach(context, workspace, relieved)
            self._respect_earlier_end(context, workspace, by)
            with steps_logged(workspace, self.job, by, self.log), self.interruptible():
                done = deploy_job(
                    workspace,
                    self.job,
                    by=by,
                    stop_timeout=self.stop_timeout,
                    health_timeout=self.health_timeout,
                    report=ProgressLog(self.log),
                )
        except StreamwardenError as error:
            context["ti"].xcom_push(key="error", value={"code": error.code, "what": error.what, "remedy": error.remedy})
            self._say_last_words(workspace, by, error)
            raise self.fail(error) from error
        for change in done.changes:
            self.log.info("%s %s -> %s: %s", change.field, change.before, change.after, change.effect)
        how = "launched" if done.launched else "runs already; left alone"
        self.log.info("%s: driver %s %s", self.job, done.incarnation, how)
        context["ti"].xcom_push(key="incarnation", value=done.incarnation)
        self._await_start(workspace, done.incarnation)
        return {
            "job": self.job,
            "incarnation": done.incarnation,
            "launched": done.launched,
            "effect": done.effect.value,
            "changes": [change.field for change in done.changes],
            "operation": done.operation,
        }

    def _attach(self, context: Context, workspace: Workspace, relieved: str) -> dict[str, Any]:
        seen = observe(workspace, self.job)
        self.log.info("%s is relieved; %s is %s, and is left as it is", relieved, seen.incarnation, seen.phase)
        context["ti"].xcom_push(key="incarnation", value=seen.incarnation)
        return {"job": self.job, "incarnation": seen.incarnation, "launched": False, "relieves": relieved}

    def _respect_earlier_end(self, context: Context, workspace: Workspace, by: str) -> None:
        """Fail if an earlier try went back, and was lost before it could say so: the same would stop the job again."""
        found = ended_operation(context, workspace, self.job, by, retries=self.retries or 0)
        if found is None or found.state != "rolled back" or found.error is None:
            return
        if is_same_rollout(found, effective_spec(workspace, self.job), by=by, reason=""):
            self.log.info("an earlier try has ended %s: %s", found.id, found.state)
            raise StreamwardenError("ROLLOUT_UNHEALTHY", f"{self.job}: {found.error.code}: {found.error.what}")

    def _say_last_words(self, workspace: Workspace, by: str, error: StreamwardenError) -> None:
        if error.code != "ROLLOUT_UNHEALTHY":
            return
        found = JobDocuments(workspace.storage, self.job).operation.read()
        steps = found.steps if found is not None and found.by == by else []
        started = next((step.detail for step in reversed(steps) if step.name == "start"), "")
        if started:
            self.log.error("driver %s:\n%s", started.split()[0], log_tail(workspace, self.job, started.split()[0]))

    def _respect_stop(self, workspace: Workspace, context: Context) -> None:
        # A run that waited behind another one of the same job begins when that one is stopped. Whoever stopped the job
        # did so later than this run was asked for, and means it. A clear is a new wish.
        run, ti = context["dag_run"], context["ti"]
        desired = JobDocuments(workspace.storage, self.job).desired.read()
        cleared = ti.max_tries > (self.retries or 0)
        if desired is None or desired.state != "suspended" or cleared or run.run_after > desired.updated_at:
            return
        raise AirflowSkipException(
            f"{self.job} was stopped by {desired.updated_by} at {desired.updated_at:%Y-%m-%d %H:%M:%S} UTC, after this"
            " run was asked for: not deployed. Trigger the DAG again to deploy it."
        )

    def _await_start(self, workspace: Workspace, incarnation: str) -> None:
        deadline = time.monotonic() + self.wait
        while (seen := observe(workspace, self.job)).phase is Phase.STARTING and time.monotonic() < deadline:
            time.sleep(0.5)
        self.log.info("%s is %s: %s", seen.incarnation, seen.phase, seen.reason)
        if seen.phase.alive or seen.error is None:
            return
        text = describe_error(workspace, seen, seen.error)
        if seen.error.retryable:
            self.log.warning("the driver ended while it started; the supervise task restarts it\n%s", text)
            return
        self.log.error("the driver %s ended while it started\n%s", incarnation, text)
        raise AirflowFailException(str(seen.error.to_exception()))


class SuperviseOperator(JobOperator):
    """Keeps a deployed job running for as long as it is wanted, holding no worker slot while there is nothing to do.

    Restarts a dead, silent or failed driver from its checkpoint, with back-off, within the spec's failure budget
    (``restarts``). Succeeds once the job was stopped; fails with the driver's last error once the budget is spent or
    the error can't pass by itself. After any restart of Airflow's parts, and at a retry, it re-attaches to the driver
    that runs, which never notices. Marking the task failed (or successful) stops the driver; clearing it does not, and
    deploys a job anew that is down. Has no timeout, and must be given none.

    Also runs where the task before it has failed: a deploy that went back has a driver that must not be left alone. It
    then fails only if there is nothing to supervise. Where that task was skipped, it is skipped, too.

    The task's retries are not the job's failure budget: they cover Airflow's own faults over weeks (a trigger lost, a
    triggerer upgraded, a database restarted), each of which uses one up, and what this task itself can't read (a
    profile with a slip, a bucket whose credentials have gone): the driver goes on meanwhile. Hence many, with a short
    delay. Where half of them are used up, a fresh run of the DAG takes over, and the task succeeds. It is final only by
    a verdict on the job.

    Parameters
    ----------
    job
        The job. (templated)
    poll_interval
        Seconds between looks at the job's documents; see :class:`~streamwarden.airflow.triggers.SuperviseTrigger`.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dce6f5"

    def __init__(self, *, poll_interval: float = 2.0, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 1000)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        kwargs.setdefault("trigger_rule", "all_done")
        super().__init__(**kwargs)
        self.poll_interval = poll_interval

    def execute(self, context: Context) -> dict[str, Any]:
        """Attach to the job, deploying it if a person cleared the task of one that is down; then watch."""
        ti = context["ti"]
        ti.xcom_push(key=_TRY, value={"attempt": ti.try_number, "granted": ti.max_tries})
        due = is_due(ti.try_number, ti.max_tries, self.retries or 0)
        try:
            workspace = self.open()
        except AirflowException as error:
            if due:
                raise self._relieved_unread(context, error) from error
            raise
        try:
            return self._attach(context, workspace, due=due)
        except (StreamwardenError, OSError) as error:
            if due:
                raise self._relieved_unread(context, error) from error
            raise (self.fail(error) if isinstance(error, StreamwardenError) else error) from error

    def _attach(self, context: Context, workspace: Workspace, *, due: bool) -> dict[str, Any]:
        ti = context["ti"]
        holder = holder_of(context)
        self._respect_upstream(context, workspace)
        ours = Claim(holder=holder, attempt=ti.try_number, granted=ti.max_tries, at=utc_now())
        before = claim(workspace, self.job, ours)
        # Only a clear raises a task's granted tries: that tells a person's wish from a retry of Airflow's.
        granted = before.granted if before and before.holder == holder else 0
        cleared = ti.max_tries > (granted or self.retries or 0)
        seen, verdict = self._look(workspace)
        suspended = seen.desired is not None and seen.desired.state == "suspended"
        if cleared and (verdict.action is not Action.WAIT or suspended):
            self.log.info("cleared while the job is %s (%s): deploying it", seen.phase, verdict.why)
            self._deploy(workspace, holder)
            seen, verdict = self._look(workspace)
        elif verdict.action in _GOING_ON and due:
            self._hand_over(context, workspace)
        elif verdict.action is Action.WAIT:
            self.log.info("attached to driver %s, which is %s: %s", seen.incarnation, seen.phase, seen.reason)
        return self._act(context, workspace, seen, verdict)

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: never a final one, as it is not the job's."""
        return AirflowException(str(error))

    def _relieved_unread(self, context: Context, error: Exception) -> DagRunTriggerException:
        """Return what hands over where the documents can't be read or written, so that nothing is said there."""
        ti = context["ti"]
        fresh = relief_of(ti)
        self.log.warning("try %d of %d: run %s takes over, for: %s", ti.try_number, ti.max_tries + 1, fresh, error)
        return relief(ti)

    def _deploy(self, workspace: Workspace, holder: str) -> None:
        try:
            deploy_job(workspace, self.job, by=f"airflow:{holder}", note="supervise task cleared")
        except StreamwardenError as error:
            desired = JobDocuments(workspace.storage, self.job).desired.read()
            if not error.retryable and desired is not None and desired.state == "running":
                # As where the deploy task fails: a slip in the YAML is no reason to give up what is deployed.
                self.log.error("not deployed anew, and supervised as it was deployed before: %s", error)
                return
            # A deploy's failure is the job's: what is not retryable is final.
            raise super().fail(error) from error

    def _hand_over(self, context: Context, workspace: Workspace) -> NoReturn:
        ti = context["ti"]
        fresh = relief_of(ti)
        # Before the run is there: `release`, which comes next, leaves the driver of another run alone.
        claim(workspace, self.job, Claim(holder=f"{ti.dag_id}/{fresh}", attempt=0, at=utc_now()))
        self.log.info("try %d of %d: run %s takes over", ti.try_number, ti.max_tries + 1, fresh)
        record_decision(workspace, self.job, "hand over", f"to run {fresh}: the tries of {ti.run_id} run out")
        raise relief(ti)

    def _respect_upstream(self, context: Context, workspace: Workspace) -> None:
        ti, before = context["ti"], sorted(self.upstream_task_ids)
        if not before:
            return
        found = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=before)
        states = {task: str(getattr(state, "value", state)) for task, state in found.get(ti.run_id, {}).items()}
        for task in before:
            if states.get(task) == "skipped":
                raise AirflowSkipException(f"{task} was skipped: there is nothing to supervise")
            if states.get(task) not in ("failed", "upstream_failed"):
                continue
            desired = JobDocuments(workspace.storage, self.job).desired.read()
            if desired is None or desired.state == "suspended":
                raise AirflowFailException(
                    f"{task} failed, and {self.job} is not to run: there is nothing to supervise"
                )
            self.log.warning("%s failed; %s is supervised as it was deployed before", task, self.job)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go on when the trigger fired. What it saw may be past: look again."""
        if event:
            self.log.info("woken for %s: %s", event.get("action"), event.get("why"))
        workspace = self.open()
        try:
            seen, verdict = self._look(workspace)
            event = event or {}
            if event.get("action") == ALERT:
                self._tell(context, workspace, seen, verdict, rules=event.get("rules", ()), lasted=event.get("lasted"))
                # Each notifier may have taken a minute: a driver may be back, or another one.
                seen, verdict = self._look(workspace)
            # The trigger has looked for long enough where it was woken for this driver's end, and for this reason: one
            # that was silent, and speaks again, is not stuck for that its newest batch is old.
            ended = event.get("action") in (Action.RESTART.value, Action.FAIL.value)
            sure = ended and (event.get("incarnation"), event.get("phase")) == (seen.incarnation, seen.phase.value)
            return self._act(context, workspace, seen, verdict, event.get("differing", ()), sure=sure)
        except StreamwardenError as error:
            raise self.fail(error) from error

    def _tell(
        self,
        context: Context,
        workspace: Workspace,
        seen: Observation,
        verdict: Verdict,
        rules: Sequence[str] | None = None,
        lasted: Mapping[str, str] | None = None,
    ) -> None:
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        health = assess(seen, memory, verdict)
        tell(
            workspace,
            self.job,
            health,
            context=context,
            log=self.log,  # type: ignore[arg-type]
            rules=rules,
            lasted=lasted,
        )

    def _look(self, workspace: Workspace) -> tuple[Observation, Verdict]:
        seen = observe(workspace, self.job)
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        return seen, decide(seen, memory)

    def _act(
        self,
        context: Context,
        workspace: Workspace,
        seen: Observation,
        verdict: Verdict,
        differing: Sequence[tuple[str, str, float]] = (),
        *,
        sure: bool = False,
    ) -> dict[str, Any]:
        if verdict.action is Action.SUSPEND:
            # Before the stop, which may take long and is tried again: by then the job is one that is suspended, of
            # which it would be told that all is well.
            self._tell(context, workspace, seen, verdict, rules=() if _is_suspended(seen) else None)
            seen, verdict = self._look(workspace)
        if verdict.action is Action.FINISH:
            self.log.info("finished: %s", verdict.why)
            context["ti"].xcom_push(key=_FINISHED, value=seen.incarnation)
            record_decision(workspace, self.job, "finish", verdict.why)
            self._tell(context, workspace, seen, verdict)
            return _summary(workspace, seen)
        silent = seen.phase is Phase.SILENT and verdict.action in (Action.FAIL, Action.RESTART)
        if (silent or is_to_be_ended(seen, verdict)) and not sure:
            # Nobody is killed for one look: the store, or this machine, may have been away. The trigger looks again.
            self.log.info("%s: looked at again before it is ended: %s", seen.incarnation, verdict.why)
            self._stop_if_ended(context, workspace, seen.incarnation)
            self._defer(context, workspace, seen.incarnation, differing)
        if verdict.action in (Action.FAIL, Action.SUSPEND):
            error = put_down(workspace, seen, verdict, by=f"airflow:{holder_of(context)}")
            if verdict.action is Action.FAIL:
                # A stuck one was alive, and has an end and a diagnosis only now.
                seen = observe(workspace, self.job)
            self.log.error("%s: %s\n%s", verdict.action, verdict.why, self._last_words(workspace, seen, error))
            # Nobody looks again: what there is to tell is told now.
            self._tell(context, workspace, seen, verdict, rules=() if _is_suspended(seen) else None)
            raise AirflowFailException(str(error.to_exception()))
        incarnation = seen.incarnation
        if verdict.action is Action.RESTART:
            wait = (verdict.not_before - utc_now()).total_seconds() if verdict.not_before else 0
            if wait > 0:
                self.log.info("%s: to be restarted in %.1f s: %s", incarnation, wait, verdict.why)
            else:
                incarnation = self._restart(context, workspace, seen, verdict) or incarnation
        elif verdict.action is Action.STOP:
            self.log.info("%s: asked to stop: %s", incarnation, verdict.why)
            ask_to_stop(workspace, seen, by=f"airflow:{holder_of(context)}", why=verdict.why)
        self._stop_if_ended(context, workspace, incarnation)
        self._defer(context, workspace, incarnation, differing)
        raise AssertionError("defer() returned")

    def _restart(self, context: Context, workspace: Workspace, seen: Observation, verdict: Verdict) -> str | None:
        if seen.error is not None:
            words = describe_error(workspace, seen, seen.error)
            self.log.warning("driver %s is %s\n%s", seen.incarnation, seen.phase, words)
        launched = restart(workspace, seen, by=f"airflow:{holder_of(context)}", why=verdict.why)
        if launched is None:
            self.log.info("%s: restarted, stopped or deployed by somebody else meanwhile", seen.incarnation)
        else:
            self.log.info("restarted as %s after %s: %s", launched, seen.incarnation, verdict.why)
        return launched

    def _last_words(self, workspace: Workspace, seen: Observation, error: ErrorInfo) -> str:
        text = describe_error(workspace, seen, error)
        if seen.error is not None and seen.error.code != error.code:
            text = f"{text}\nThe driver's last error: {seen.error.to_exception()}"
        return text

    def _stop_if_ended(self, context: Context, workspace: Workspace, incarnation: str | None) -> None:
        # Marked failed while the task held a slot: there was no trigger whose on_kill would have stopped the driver.
        ti = context["ti"]
        try:
            states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id])
        except Exception:
            self.log.warning("can't ask for this task's state", exc_info=True)
            return
        state = next(iter(states.get(ti.run_id, {}).values()), None)
        if state not in ("failed", "success"):
            return
        driver_control.stop(
            workspace,
            self.job,
            by=f"airflow:{holder_of(context)}",
            reason=f"its supervise task was ended by hand ({state})",
            incarnation=incarnation,
            timeout=None,
        )
        raise AirflowFailException(f"the task was marked {state}: driver {incarnation} is asked to stop")

    def _defer(
        self,
        context: Context,
        workspace: Workspace,
        incarnation: str | None,
        differing: Sequence[tuple[str, str, float]],
    ) -> None:
        self.defer(
            trigger=SuperviseTrigger(
                job=self.job,
                profile=workspace.profile.name,
                config=str(workspace.config),
                root=str(workspace.root),
                holder=holder_of(context),
                attempt=context["ti"].try_number,
                incarnation=incarnation,
                poll_interval=self.poll_interval,
                differing=differing,
            ),
            method_name="resume",
        )


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
        found = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=_TRY)
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
        finished = context["ti"].xcom_pull(task_ids=self.supervise_task_id, key=_FINISHED)
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
        return action is Action.SUSPEND or (action in _GOING_ON and not _is_suspended(seen))

    def _awaits_restart(self, workspace: Workspace, seen: Observation) -> bool:
        """Tell whether a supervisor would start it again, as it won't a job that failed for good or is suspended."""
        memory = JobDocuments(workspace.storage, self.job).supervision.read() or Supervision()
        return decide(seen, memory).action is Action.RESTART


class StopOperator(JobOperator):
    """Suspends a job, or all of them: each driver finishes its batch in flight and ends.

    Holds its slot while it waits: a stop takes a batch's time. Does not delete anything: a deploy goes on where the
    job stopped.

    Parameters
    ----------
    job
        The job, or ``all`` for every deployed one. (templated)
    timeout
        Seconds to wait for the end. (templated)
    reason
        Why, for the record. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "timeout", "reason")
    ui_color = "#f5e6dc"

    def __init__(self, *, timeout: float | str = 300.0, reason: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.timeout = timeout
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask all, then wait for each."""
        workspace = self.open()
        by, timeout = f"airflow:{holder_of(context)}", float(self.timeout)
        try:
            if self.job == ALL_JOBS:
                ended = driver_control.stop_all(workspace, by=by, reason=self.reason, timeout=timeout)
                for name in sorted({*job_names(workspace.config)} - ended.keys()):
                    self.log.info("%s was never deployed", name)
            else:
                seen = driver_control.stop(workspace, self.job, by=by, reason=self.reason, timeout=timeout)
                ended = {self.job: seen}
        except StreamwardenError as error:
            raise self.fail(error) from error
        for name, seen in ended.items():
            self.log.info("%s is %s: %s", name, seen.phase, seen.reason)
        return {name: _summary(workspace, seen) for name, seen in ended.items()}


class CheckOperator(BaseOperator):
    """Checks tables against their expectations, in a process of its own: no Spark inside Airflow's.

    Streams that process's log into the task's. Fails, naming each table and expectation, if the check
    says that they are not met. Does not repair or hold back anything.

    Parameters
    ----------
    tables
        Names; all that have a suite if empty. (templated, or set by `tables_param`)
    tables_param
        A DAG param that holds the list of names, and replaces `tables`.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("tables",)
    ui_color = "#efe4f2"

    def __init__(
        self,
        *,
        tables: Sequence[str] = (),
        tables_param: str | None = None,
        profile: str | None = None,
        config: str | None = None,
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.tables_param = tables_param
        self.profile = profile
        self.config = config
        self.root = root
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the check and judge its result."""
        tables = context["params"][self.tables_param] if self.tables_param else self.tables
        command = [sys.executable, "-m", "streamwarden.cli", "check", "--json"]
        for table in tables or ():
            command += ["--table", str(table)]
        code, output, errors = self._run(command)
        try:
            result = json.loads(output)
        except json.JSONDecodeError:
            result = None
        if not isinstance(result, dict) or code not in (0, 1):
            raise AirflowException(f"the check ended with code {code}: {errors or 'it said nothing'}")
        failures = _failures(result)
        for line in failures:
            self.log.error(line)
        self.log.info("report: %s", result.get("report"))
        if code or not result.get("success"):
            # Final: the same data fails again.
            raise AirflowFailException("expectations not met: " + ("; ".join(failures) or "see the report"))
        return {key: result.get(key) for key in ("run", "success", "report")}

    def on_kill(self) -> None:
        """End the check with its JVM."""
        if self._process is not None and self._process.poll() is None:
            kill(process_of(self._process.pid))

    def _run(self, command: list[str]) -> tuple[int, str, str]:
        workspace = open_workspace(self.profile, config=Path(self.config) if self.config else None, root=self.root)
        place = {
            "STREAMWARDEN_PROFILE": workspace.profile.name,
            "STREAMWARDEN_CONFIG": str(workspace.config),
            "STREAMWARDEN_ROOT": str(workspace.root),
        }
        self.log.info("%s", " ".join(command[1:]))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=workspace.config.parent,
            env={**os.environ, **place, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert self._process.stdout is not None and self._process.stderr is not None
            last: list[str] = []
            reader = threading.Thread(target=self._relay, args=(self._process.stderr, last), daemon=True)
            reader.start()
            output = self._process.stdout.read()
            code = self._process.wait()
            reader.join(timeout=5)
            return code, output, "\n".join(last[-20:])
        finally:
            # Also when the task's timeout breaks in.
            self.on_kill()

    def _relay(self, stream: IO[str], last: list[str]) -> None:
        for line in stream:
            self.log.info(line.rstrip())
            last.append(line.rstrip())
            del last[:-20]


def _is_suspended(seen: Observation) -> bool:
    return seen.desired is not None and seen.desired.state == "suspended"


def _summary(workspace: Workspace, seen: Observation) -> dict[str, Any]:
    status = job_status(workspace, seen.job)
    kept = ("job", "incarnation", "phase", "reason", "batch", "totals")
    return {**{key: status[key] for key in kept}, "restarts": len(status["restarts"])}


def _failures(result: dict[str, Any]) -> list[str]:
    lines = []
    for table in result.get("tables", ()):
        for failure in table.get("failures", ()):
            column = f" on {failure['column']}" if failure.get("column") else ""
            severity = failure.get("severity") or "error"
            detail = f": {failure['detail']}" if failure.get("detail") else ""
            lines.append(f"{table['table']}: {failure['expectation']}{column} ({severity}){detail}")
    return lines
