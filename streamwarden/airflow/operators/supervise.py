"""An operator that supervises a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
)

from streamwarden.airflow.logtail import describe_error
from streamwarden.airflow.notifications import tell
from streamwarden.airflow.operators.base import (
    JobOperator,
    holder_of,
)
from streamwarden.airflow.operators.observed import is_suspended, summary_of
from streamwarden.airflow.run_handover import is_due, relief, relief_of
from streamwarden.airflow.triggers import ALERT, SuperviseTrigger
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.give_up import put_down
from streamwarden.runtime.launchers.submission import await_submissions
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import ask_to_stop, record_decision, restart
from streamwarden.supervision.claim import Claim, claim
from streamwarden.supervision.decide import Action, Verdict, assess, decide
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.stuck import is_to_be_ended

__all__ = ["SuperviseOperator"]

GOING_ON = (Action.WAIT, Action.RESTART)

TRY = "try"
"""XCom key: `release` reads from it which try of supervise was the last, even if it can read nothing else."""

FINISHED = "finished"
"""XCom key: the driver whose wanted end supervise has seen. `release` leaves a later driver alone."""


class SuperviseOperator(JobOperator):
    """Keeps a deployed job running as long as it is wanted, and holds no worker slot while there is nothing to do.

    Restarts a dead, silent or failed driver from its checkpoint, with back-off, within the spec's failure budget
    (``restarts``). Succeeds once the job was stopped. Fails with the driver's last error once the budget is spent or
    the error is permanent. After a restart of Airflow's components, and on a retry, it re-attaches to the running
    driver, which is not affected. Marking the task failed (or successful) stops the driver. Clearing it does not, and
    deploys a job again that is down. Has no timeout, and must be given none.

    Also runs if its upstream task has failed: the driver of a deploy that rolled back must not run unsupervised. It
    then fails only if there is nothing to supervise. If the upstream task was skipped, this task is skipped, too.

    The task's retries are not the job's failure budget. They cover Airflow's own faults over weeks: a trigger lost, a
    triggerer upgraded, a database restarted. They also cover what this task can't read, such as an invalid profile or
    a bucket with expired credentials; meanwhile the driver continues. Hence many retries, with a short delay. Once half
    of them are used, a fresh run of the DAG takes over, and the task succeeds. Only a verdict on the job is final.

    Parameters
    ----------
    job
        The job. (templated)
    poll_interval
        Seconds between polls of the job's documents; see :class:`~streamwarden.airflow.triggers.SuperviseTrigger`.
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
        """Attach to the job, or deploy it if a person cleared the task and the job is down; then supervise."""
        ti = context["ti"]
        ti.xcom_push(key=TRY, value={"attempt": ti.try_number, "granted": ti.max_tries})
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
        # Only a clear raises a task's granted tries: this distinguishes a person's request from Airflow's retry.
        granted = before.granted if before and before.holder == holder else 0
        cleared = ti.max_tries > (granted or self.retries or 0)
        seen, verdict = self._look(workspace)
        suspended = seen.desired is not None and seen.desired.state == "suspended"
        if cleared and (verdict.action is not Action.WAIT or suspended):
            self.log.info("cleared while the job is %s (%s): deploying it", seen.phase, verdict.why)
            self._deploy(workspace, holder)
            seen, verdict = self._look(workspace)
        elif verdict.action in GOING_ON and due:
            self._hand_over(context, workspace)
        elif verdict.action is Action.WAIT:
            self.log.info("attached to driver %s, which is %s: %s", seen.incarnation, seen.phase, seen.reason)
        return self._act(context, workspace, seen, verdict)

    def fail(self, error: StreamwardenError) -> AirflowException:
        """Return the exception to raise: never a final one, because the error is not the job's."""
        return AirflowException(str(error))

    def _relieved_unread(self, context: Context, error: Exception) -> DagRunTriggerException:
        """Return the handover exception for documents that can't be read or written; no claim is written then."""
        ti = context["ti"]
        fresh = relief_of(ti)
        self.log.warning(
            "try %d of %d: run %s takes over, because of: %s", ti.try_number, ti.max_tries + 1, fresh, error
        )
        return relief(ti)

    def _deploy(self, workspace: Workspace, holder: str) -> None:
        try:
            deploy_job(workspace, self.job, by=f"airflow:{holder}", note="supervise task cleared")
        except StreamwardenError as error:
            desired = JobDocuments(workspace.storage, self.job).desired.read()
            if not error.retryable and desired is not None and desired.state == "running":
                # As if the deploy task had failed: an error in the YAML is no reason to abandon what is deployed.
                self.log.error("not deployed; the deployed version is supervised: %s", error)
                return
            # A failed deploy is the job's failure: if it is not retryable, it is final.
            raise super().fail(error) from error

    def _hand_over(self, context: Context, workspace: Workspace) -> NoReturn:
        ti = context["ti"]
        fresh = relief_of(ti)
        # Claim before the run exists: `release`, the next task, leaves the driver of another run alone.
        claim(workspace, self.job, Claim(holder=f"{ti.dag_id}/{fresh}", attempt=0, at=utc_now()))
        self.log.info("try %d of %d: run %s takes over", ti.try_number, ti.max_tries + 1, fresh)
        record_decision(workspace, self.job, "hand over", f"to run {fresh}: {ti.run_id} is running out of tries")
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
                    f"{task} failed, and {self.job} should not run: there is nothing to supervise"
                )
            self.log.warning("%s failed; the deployed version of %s is supervised", task, self.job)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Resume after the trigger fired. Its observation may be outdated: observe again."""
        if event:
            self.log.info("resumed for %s: %s", event.get("action"), event.get("why"))
        workspace = self.open()
        try:
            seen, verdict = self._look(workspace)
            event = event or {}
            if event.get("action") == ALERT:
                self._tell(context, workspace, seen, verdict, rules=event.get("rules", ()), lasted=event.get("lasted"))
                # Each notifier may have taken a minute: the driver may have recovered or been replaced.
                seen, verdict = self._look(workspace)
            # If the trigger fired for this driver's end, and for this reason, it has observed for long enough. A driver
            # that was silent and recovered is not stuck just because its newest batch is old.
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
            # Alert before the stop, which may take long and is retried. After it the job counts as suspended, and the
            # alert would report a healthy job.
            self._tell(context, workspace, seen, verdict, rules=() if is_suspended(seen) else None)
            seen, verdict = self._look(workspace)
        if verdict.action is Action.FINISH:
            self.log.info("finished: %s", verdict.why)
            context["ti"].xcom_push(key=FINISHED, value=seen.incarnation)
            record_decision(workspace, self.job, "finish", verdict.why)
            self._tell(context, workspace, seen, verdict)
            return summary_of(workspace, seen)
        silent = seen.phase is Phase.SILENT and verdict.action in (Action.FAIL, Action.RESTART)
        if (silent or is_to_be_ended(seen, verdict)) and not sure:
            # One observation kills no driver: the store or this machine may have been away. The trigger observes again.
            self.log.info("%s: observed again before it is stopped: %s", seen.incarnation, verdict.why)
            self._stop_if_ended(context, workspace, seen.incarnation)
            self._defer(context, workspace, seen.incarnation, differing)
        if verdict.action in (Action.FAIL, Action.SUSPEND):
            error = put_down(workspace, seen, verdict, by=f"airflow:{holder_of(context)}")
            if verdict.action is Action.FAIL:
                # A stuck driver was alive; only now does it have an end and a diagnosis.
                seen = observe(workspace, self.job)
            self.log.error("%s: %s\n%s", verdict.action, verdict.why, self._last_words(workspace, seen, error))
            # This is the last observation: send all pending alerts now.
            self._tell(context, workspace, seen, verdict, rules=() if is_suspended(seen) else None)
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
            self.log.info("%s: somebody else has restarted, stopped or deployed the job meanwhile", seen.incarnation)
        else:
            self.log.info("restarted as %s after %s: %s", launched, seen.incarnation, verdict.why)
            # Where each task has a pod of its own, the submission would end with this task.
            await_submissions()
        return launched

    def _last_words(self, workspace: Workspace, seen: Observation, error: ErrorInfo) -> str:
        text = describe_error(workspace, seen, error)
        if seen.error is not None and seen.error.code != error.code:
            text = f"{text}\nThe driver's last error: {seen.error.to_exception()}"
        return text

    def _stop_if_ended(self, context: Context, workspace: Workspace, incarnation: str | None) -> None:
        # Marked failed while the task held a slot: no trigger existed whose on_kill would have stopped the driver.
        ti = context["ti"]
        try:
            states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id])
        except Exception:
            self.log.warning("can't get this task's state", exc_info=True)
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
