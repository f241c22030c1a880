"""Deploy a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
)

from streamwarden.airflow.logtail import describe_error, describe_operation
from streamwarden.airflow.operation_log import ended_operation, steps_logged
from streamwarden.airflow.operators.base import (
    InterruptibleOperator,
    JobOperator,
    ProgressLog,
    holder_of,
)
from streamwarden.airflow.run_handover import relieved_by
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rollout import is_same_rollout
from streamwarden.runtime.launchers.submission import await_submissions
from streamwarden.runtime.polling import Deadline
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import effective_spec
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.claim import Claim, claim
from streamwarden.supervision.observe import Phase, observe

__all__ = ["DeployOperator"]


class DeployOperator(JobOperator, InterruptibleOperator):
    """Makes a job run as its YAML specifies; leaves a driver alone that already does so.

    If a driver runs and the YAML has changed, this is a rollout: it waits until the job is healthy, and rolls back if
    the job does not become healthy. If a try is killed, the next one resumes its rollout. A rollout that rolled back is
    final and fails the task; the job then runs as before. If the job's state is incompatible with a change, the task
    fails and nothing is changed.

    Waits a moment for the driver to report that it runs, so that a configuration error fails this task with the
    driver's message. The supervisor handles a driver that ends with a transient error. Does not supervise, and does
    not launch if the job was stopped after this run was requested. In a run that relieves another
    (:mod:`streamwarden.airflow.run_handover`) it deploys nothing: nobody has requested a change.

    Pushes ``incarnation`` to XCom, and ``error`` if it fails: code, what happened, what to do.

    Parameters
    ----------
    job
        The job. (templated)
    wait
        Seconds to wait for the driver to run. 60: a JVM on a busy machine. A slower driver is not an error.
    stop_timeout
        Seconds that a driver with an older spec has to stop.
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
        # The same in every try of this run, and different in every other run: it identifies this run's rollout.
        by = f"airflow:{holder}"
        try:
            self._respect_stop(workspace, context)
            # Claim now, before the supervise task starts: a late trigger of an ended run must see the new owner.
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
        how = "launched" if done.launched else "runs already; unchanged"
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
        self.log.info(
            "this run takes over from %s; driver %s is %s and is not changed", relieved, seen.incarnation, seen.phase
        )
        context["ti"].xcom_push(key="incarnation", value=seen.incarnation)
        return {"job": self.job, "incarnation": seen.incarnation, "launched": False, "relieves": relieved}

    def _respect_earlier_end(self, context: Context, workspace: Workspace, by: str) -> None:
        """Fail if an earlier try rolled back without reporting it: a new try would stop the job again."""
        found = ended_operation(context, workspace, self.job, by, retries=self.retries or 0)
        if found is None or found.state != "rolled back" or found.error is None:
            return
        if is_same_rollout(found, effective_spec(workspace, self.job), by=by, reason=""):
            self.log.info("an earlier try has ended operation %s: %s", found.id, found.state)
            raise StreamwardenError("ROLLOUT_UNHEALTHY", f"{self.job}: {found.error.code}: {found.error.what}")

    def _say_last_words(self, workspace: Workspace, by: str, error: StreamwardenError) -> None:
        if error.code != "ROLLOUT_UNHEALTHY":
            return
        found = JobDocuments(workspace.storage, self.job).operation.read()
        words = describe_operation(workspace, found, logs=True) if found is not None and found.by == by else ""
        if words:
            self.log.error("%s", words)

    def _respect_stop(self, workspace: Workspace, context: Context) -> None:
        # A run that waited behind another run of the same job starts when the other is stopped. If the stop came after
        # this run was requested, the stop takes precedence. A clear is a new request.
        run, ti = context["dag_run"], context["ti"]
        desired = JobDocuments(workspace.storage, self.job).desired.read()
        cleared = ti.max_tries > (self.retries or 0)
        if desired is None or desired.state != "suspended" or cleared or run.run_after > desired.updated_at:
            return
        raise AirflowSkipException(
            f"{self.job} was stopped by {desired.updated_by} at {desired.updated_at:%Y-%m-%d %H:%M:%S} UTC, after this"
            " run was requested: not deployed. Trigger the DAG again to deploy it."
        )

    def _await_start(self, workspace: Workspace, incarnation: str) -> None:
        await_submissions()
        deadline = Deadline(self.wait)
        while (seen := observe(workspace, self.job)).phase is Phase.STARTING and deadline.pause(0.5):
            pass
        self.log.info("%s is %s: %s", seen.incarnation, seen.phase, seen.reason)
        if seen.phase.alive or seen.error is None:
            return
        text = describe_error(workspace, seen, seen.error)
        if seen.error.retryable:
            self.log.warning("the driver ended while it started; the supervise task restarts it\n%s", text)
            return
        self.log.error("the driver %s ended while it started\n%s", incarnation, text)
        raise AirflowFailException(str(seen.error.to_exception()))
