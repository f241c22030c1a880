"""Operators: start a job from a savepoint, and see that it is supervised."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DagRunTriggerException

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.job_operator import InterruptibleOperator, JobOperator, ProgressLog, holder_of
from streamwarden.airflow.logtail import log_tail
from streamwarden.airflow.offered import chosen_savepoint
from streamwarden.control.documents import JobDocuments, Operation, Step, utc_now
from streamwarden.control.savepoints.catalogue import LATEST
from streamwarden.control.savepoints.restore import Outputs, restore
from streamwarden.control.supervision import observe
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["EnsureSupervisedOperator", "RestoreOperator"]


class RestoreOperator(JobOperator, InterruptibleOperator):
    """Starts a job from a savepoint, waits until it is healthy, and goes back to where it was if it is not.

    The job's own DAG run goes on meanwhile: a supervisor waits while an operation works on its job. A try that was
    killed is resumed by the next one, where it was; meanwhile a supervisor starts whichever checkpoint is in force. A
    restore that has failed, or gone back, is final and fails the task with the error's code and remedy: the same again
    would stop the job again. Does not supervise: see :class:`EnsureSupervisedOperator`.

    Returns operation, savepoint, batch, generation and the time of each step. Pushes ``error`` to XCom if it fails:
    code, what happened, what to do.

    Parameters
    ----------
    job
        The job. (templated)
    savepoint
        An id, a label, or ``latest`` for the newest verified one. (templated)
    outputs
        ``default`` does with each output table what its ``on_restore`` says, ``rewind`` puts them back, ``leave``
        leaves them. (templated)
    reason
        Why, for the record. (templated)
    health_timeout
        Seconds until a restored job that commits no batch counts as unhealthy. 300: a first batch after a restore may
        be as large as its limits allow. (templated)
    stop_timeout
        Seconds that the driver may take to stop. 300: a batch in flight is finished first.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "savepoint", "outputs", "reason", "health_timeout")
    ui_color = "#f5ecd0"

    def __init__(
        self,
        *,
        savepoint: str = LATEST,
        outputs: str = "default",
        reason: str = "",
        health_timeout: float | str = 300.0,
        stop_timeout: float = 300.0,
        **kwargs: Any,
    ) -> None:
        # For tries that were killed, with their worker: only those are resumed.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=15))
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.outputs = outputs
        self.reason = reason
        self.health_timeout = health_timeout
        self.stop_timeout = stop_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Restore, or go on with what an earlier try began."""
        workspace = self.open()
        # The same in every try of this run, and in no other run: by it an operation is known as one's own.
        by = f"airflow:{holder_of(context)}"
        try:
            operation = self._ended_already(context, workspace, by)
            if operation is None:
                with _steps_logged(workspace, self.job, by, self.log), self.interruptible():
                    operation = restore(
                        workspace,
                        self.job,
                        savepoint=chosen_savepoint(self.savepoint),
                        outputs=cast(Outputs, self.outputs),
                        by=by,
                        reason=self.reason,
                        stop_timeout=self.stop_timeout,
                        health_timeout=float(self.health_timeout),
                        report=ProgressLog(self.log),
                    )
        except StreamwardenError as error:
            context["ti"].xcom_push(key="error", value={"code": error.code, "what": error.what, "remedy": error.remedy})
            raise self._judge(workspace, by, error) from error
        return _restored(workspace, operation)

    def _ended_already(self, context: Context, workspace: Workspace, by: str) -> Operation | None:
        # A try whose worker was lost after the operation's end, and before Airflow heard of it. Only a clear, which
        # raises the granted tries, asks for the same again.
        ti = context["ti"]
        if ti.try_number <= 1 or ti.max_tries > (self.retries or 0):
            return None
        found = JobDocuments(workspace.storage, self.job).operation.read()
        if found is None or found.by != by or found.state not in ("done", "failed", "rolled back"):
            return None
        self.log.info("an earlier try has ended %s: %s", found.id, found.state)
        if found.error is None:
            return found
        if found.state == "rolled back":
            raise StreamwardenError("RESTORE_UNHEALTHY", f"{self.job}: {found.error.code}: {found.error.what}")
        raise found.error.to_exception()

    def _judge(self, workspace: Workspace, by: str, error: StreamwardenError) -> AirflowException:
        try:
            found = JobDocuments(workspace.storage, self.job).operation.read()
        except (OSError, StreamwardenError):
            return AirflowException(str(error))
        ours = found if found is not None and found.by == by else None
        if ours is not None and ours.state == "running":
            # Not ended: there is something to resume. Or an earlier try that Airflow gave up still works on it.
            return AirflowException(str(error))
        if ours is None and error.retryable and error.code != "OPERATION_RUNNING":
            # Not even begun: the documents could not be reached.
            return AirflowException(str(error))
        if ours is not None:
            started = next((step.detail for step in reversed(ours.steps) if step.name == "start"), "")
            if error.code == "RESTORE_UNHEALTHY" and started:
                self.log.error("driver %s:\n%s", started.split()[0], log_tail(workspace, self.job, started.split()[0]))
        self.log.error("%s", error)
        return AirflowFailException(str(error))


class EnsureSupervisedOperator(JobOperator):
    """Triggers a job's own DAG after a restore, if no run of it is there to supervise the job.

    Normally there is one, and nothing to do. To be used as a teardown after the restore, so that it also runs after one
    that was ended by hand: if that left the job wanted but down, its DAG brings it up. Leaves a job alone whose restore
    failed: it is where it was. Does not wait for the triggered run.

    Not :class:`~airflow.providers.standard.operators.trigger_dagrun.TriggerDagRunOperator`: that one always triggers,
    and brings half a second of imports into each parse.

    Returns the id of the DAG that supervises the job, or None. The triggered run's id is its XCom ``trigger_run_id``.

    Parameters
    ----------
    job
        The job. (templated)
    restore_task_id
        The task that has restored it.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dce6f5"

    def __init__(self, *, restore_task_id: str = "restore", **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.restore_task_id = restore_task_id

    def execute(self, context: Context) -> str | None:
        """Look, and trigger."""
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[self.restore_task_id])
        restored = states.get(ti.run_id, {}).get(self.restore_task_id) == "success"
        workspace = self.open()
        try:
            seen = observe(workspace, self.job)
            operation = JobDocuments(workspace.storage, self.job).operation.read()
        except StreamwardenError as error:
            raise self.fail(error) from error
        if seen.desired is None or seen.desired.state != "running":
            self.log.info("%s is not to run: nothing to supervise", self.job)
            return None
        interrupted = operation is not None and operation.state == "running" and seen.operation is None
        if not restored and (seen.phase.alive or not interrupted):
            self.log.info("not restored, and %s is %s: left as it is", self.job, seen.phase)
            return None
        dag_id = dag_id_of(self.job)
        if ti.get_dr_count(dag_id=dag_id, states=["running", "queued"]):
            self.log.info("%s has a run, which supervises the job", dag_id)
            return dag_id
        if ti.get_dag(dag_id).is_paused:
            self.log.warning("%s is paused: nobody supervises %s until it is unpaused", dag_id, self.job)
        self.log.info("%s has no run: triggering one, which leaves a driver that runs alone and supervises it", dag_id)
        raise DagRunTriggerException(
            trigger_dag_id=dag_id,
            # Of each try its own: a clear means it again.
            dag_run_id=f"restore__{ti.run_id}__{ti.try_number}",
            conf=None,
            logical_date=None,
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=60,
            deferrable=False,
            note=f"after {ti.dag_id} {ti.run_id}",
        )


def _restored(workspace: Workspace, operation: Operation) -> dict[str, Any]:
    reference = JobDocuments(workspace.storage, operation.job).checkpoint.read()
    mine = reference if reference is not None and reference.operation == operation.id else None
    return {
        "operation": operation.id,
        "state": operation.state,
        "job": operation.job,
        "savepoint": operation.plan.get("savepoint"),
        "batch": mine.base_batch if mine else None,
        "generation": mine.generation if mine else None,
        "steps": {step.name: _seconds(step) for step in operation.steps},
    }


def _seconds(step: Step) -> float | None:
    return round((step.ended_at - step.started_at).total_seconds(), 3) if step.ended_at else None


@contextmanager
def _steps_logged(workspace: Workspace, job: str, by: str, log: Any) -> Iterator[None]:
    """Log the steps of an operation as its document gets them, while the body performs it."""
    document, began = JobDocuments(workspace.storage, job).operation, utc_now()
    ended = threading.Event()
    said: dict[tuple[str, int], bool] = {}

    def look() -> None:
        found = document.read()
        if found is None or found.by != by or (found.state != "running" and found.started_at < began):
            return
        for number, step in enumerate(found.steps):
            before, key = said.get((found.id, number)), (found.id, number)
            if before is None and step.ended_at is None:
                log.info("step %s", step.name)
            elif not before and step.ended_at is not None:
                log.info("step %s: %s (%.1f s)", step.name, step.detail or "ended", _seconds(step) or 0)
            said[key] = step.ended_at is not None

    def follow() -> None:
        while not ended.wait(1.0):
            # Documents that can't be read at this moment are read at the next.
            with suppress(OSError, StreamwardenError):
                look()

    follower = threading.Thread(target=follow, name="steps", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join(timeout=5)
        with suppress(OSError, StreamwardenError):
            look()
