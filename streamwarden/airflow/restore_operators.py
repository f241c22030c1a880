"""Operators: start a job from a savepoint, and see that it is supervised."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from airflow.sdk import Context

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.job_operator import JobOperator, ProgressLog, is_true
from streamwarden.airflow.offered import chosen_savepoint
from streamwarden.airflow.operation_operator import OperationOperator
from streamwarden.airflow.triggering import run_to_trigger
from streamwarden.airflow.watch import is_supervised
from streamwarden.control.documents import JobDocuments, Operation
from streamwarden.control.savepoints.catalogue import LATEST
from streamwarden.control.savepoints.restore import Outputs, restore
from streamwarden.control.supervision import observe
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["EnsureSupervisedOperator", "RestoreOperator"]


class RestoreOperator(OperationOperator):
    """Starts a job from a savepoint, waits until it is healthy, and goes back to where it was if it is not.

    Returns operation, savepoint, batch, generation and the time of each step.

    Parameters
    ----------
    savepoint
        An id, a label, or ``latest`` for the newest verified one. (templated)
    outputs
        ``default`` does with each output table what its ``on_restore`` says, ``rewind`` puts them back, ``leave``
        leaves them. (templated)
    """

    template_fields: Sequence[str] = (*OperationOperator.template_fields, "savepoint", "outputs")
    unhealthy = "RESTORE_UNHEALTHY"

    def __init__(self, *, savepoint: str = LATEST, outputs: str = "default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.outputs = outputs

    def perform(self, workspace: Workspace, by: str) -> Operation:
        """Restore, or go on with what an earlier try began."""
        return restore(
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


class EnsureSupervisedOperator(JobOperator):
    """Triggers a job's own DAG after a restore or a rescale, if no run of it is there to supervise the job.

    Normally there is one, and nothing to do. To be used as a teardown after the restore, so that it also runs after one
    that was ended by hand: if that left the job wanted but down, its DAG brings it up. Leaves a job alone whose restore
    failed: it is where it was. Does not wait for the triggered run.

    After a savepoint with a stop it is the other way round: one that has failed has started the job again, and the run
    that supervised it may have seen the stop.

    Returns the id of the DAG that supervises the job, or None. The triggered run's id is its XCom ``trigger_run_id``.

    Parameters
    ----------
    job
        The job. (templated)
    restore_task_id
        The task that has restored it.
    stopped
        For a savepoint: whether it was to stop the job. (templated) None for all others.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "stopped")
    ui_color = "#dce6f5"

    def __init__(self, *, restore_task_id: str = "restore", stopped: bool | str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.restore_task_id = restore_task_id
        self.stopped = stopped

    def execute(self, context: Context) -> str | None:
        """Look, and trigger."""
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[self.restore_task_id])
        done = states.get(ti.run_id, {}).get(self.restore_task_id) == "success"
        if self.stopped is not None and (done or not is_true(self.stopped)):
            self.log.info("%s is as it was to be", self.job)
            return None
        restored = done or self.stopped is not None
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
        if is_supervised(ti, self.job):
            self.log.info("%s has a run, which supervises the job", dag_id)
            return dag_id
        if ti.get_dag(dag_id).is_paused:
            self.log.warning("%s is paused: nobody supervises %s until it is unpaused", dag_id, self.job)
        self.log.info("%s has no run: triggering one, which leaves a driver that runs alone and supervises it", dag_id)
        # Of each try its own: a clear means it again.
        run_id = f"restore__{ti.run_id}__{ti.try_number}"
        raise run_to_trigger(dag_id, run_id, note=f"after {ti.dag_id} {ti.run_id}")
