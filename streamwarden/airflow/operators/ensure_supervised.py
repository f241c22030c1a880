"""Operators that ensure that a job is supervised after an operation or a savepoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.operators.base import JobOperator, is_true
from streamwarden.airflow.operators.watch import is_supervised
from streamwarden.airflow.trigger_dag_run import run_to_trigger
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.store.documents import JobDocuments
from streamwarden.supervision.observe import Observation, observe

__all__ = ["EnsureSupervisedAfterSavepointOperator", "EnsureSupervisedOperator"]


class EnsureSupervisedOperator(JobOperator):
    """Triggers a job's own DAG after a restore or a rescale, unless a run of it supervises the job.

    Normally a run does, and nothing is to do. Use it as a teardown after the operation: it then also runs if a person
    ended the operation. If the job is wanted but down, its DAG starts it. If the operation failed, the job is
    left alone: it is unchanged. Does not wait for the triggered run.

    Returns the id of the DAG that supervises the job, or None. The triggered run's id is its XCom ``trigger_run_id``.

    Parameters
    ----------
    job
        The job. (templated)
    operation_task_id
        The task that performed the operation.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dce6f5"

    def __init__(self, *, operation_task_id: str, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.operation_task_id = operation_task_id

    def execute(self, context: Context) -> str | None:
        """Check, and trigger a run if needed."""
        seen, operation = self.look()
        if not self.succeeded(context):
            interrupted = operation is not None and operation.state == "running" and seen.operation is None
            if seen.phase.alive or not interrupted:
                self.log.info(
                    "%s did not succeed, and %s is %s: nothing to do", self.operation_task_id, self.job, seen.phase
                )
                return None
        return self.ensure(context, seen)

    def succeeded(self, context: Context) -> bool:
        """Return whether the operation's task succeeded."""
        ti, task = context["ti"], self.operation_task_id
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[task])
        return bool(states.get(ti.run_id, {}).get(task) == "success")

    def look(self) -> tuple[Observation, Operation | None]:
        """Return an observation of the job, and the newest operation on it."""
        workspace = self.open()
        try:
            return observe(workspace, self.job), JobDocuments(workspace.storage, self.job).operation.read()
        except StreamwardenError as error:
            raise self.fail(error) from error

    def ensure(self, context: Context, seen: Observation) -> str | None:
        """Trigger a run of the job's DAG, unless a run supervises the job or the job is not wanted."""
        ti = context["ti"]
        if seen.desired is None or seen.desired.state != "running":
            self.log.info("%s should not run: nothing to supervise", self.job)
            return None
        dag_id = dag_id_of(self.job)
        if is_supervised(ti, self.job):
            self.log.info("a run of %s supervises the job", dag_id)
            return dag_id
        if ti.get_dag(dag_id).is_paused:
            self.log.warning("%s is paused: %s is not supervised until the DAG is unpaused", dag_id, self.job)
        self.log.info("%s has no run: triggering one to supervise the job; a running driver is kept", dag_id)
        # A separate id for each try: a clear requests a new run.
        run_id = f"{ti.dag_id}__{ti.run_id}__{ti.try_number}"
        raise run_to_trigger(dag_id, run_id, note=f"after {ti.dag_id} {ti.run_id}")


class EnsureSupervisedAfterSavepointOperator(EnsureSupervisedOperator):
    """Triggers a job's own DAG after a failed savepoint with a stop, unless a run supervises the job.

    Such a savepoint has restarted the job, and the supervising run may have seen the stop and ended. Nothing is to do
    after a savepoint that succeeded, which stopped the job, or after one without a stop, which changed nothing.

    Parameters
    ----------
    job
        The job. (templated)
    operation_task_id
        The task that took the savepoint.
    stopped
        Whether the savepoint was to stop the job. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = (*EnsureSupervisedOperator.template_fields, "stopped")

    def __init__(self, *, stopped: bool | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stopped = stopped

    def execute(self, context: Context) -> str | None:
        """Check, and trigger a run if needed."""
        if not is_true(self.stopped) or self.succeeded(context):
            self.log.info("%s is in the requested state", self.job)
            return None
        seen, _ = self.look()
        return self.ensure(context, seen)
