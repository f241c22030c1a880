"""The base of operators that perform an operation of several steps on a job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.logtail import describe_operation
from streamwarden.airflow.operation_log import ended_operation, seconds_of, steps_logged
from streamwarden.airflow.operators.base import InterruptibleOperator, JobOperator, holder_of, person_of
from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["OperationOperator"]


class OperationOperator(JobOperator, InterruptibleOperator):
    """Performs an operation on a job, waits until the job is healthy, and logs each step in the task's log.

    The job's own DAG run continues: its supervisor waits while an operation works on the job. If a try is killed, the
    next try resumes the operation where it was; meanwhile a supervisor starts the checkpoint in force. An operation
    that failed or rolled back is final: it fails the task with the error's code and remedy, because a retry would stop
    the job again. Does not supervise: see :class:`~.ensure_supervised.EnsureSupervisedOperator`.

    On failure pushes ``error`` to XCom: code, what happened, what to do. If the operation had begun, ``summary`` holds
    what a successful operation returns.

    Parameters
    ----------
    reason
        The reason, for the record. (templated)
    health_timeout
        Seconds until a job that is not healthy yet counts as unhealthy. 300: a first batch after a start may be as
        large as its limits allow. (templated)
    stop_timeout
        Seconds that the driver has to stop. 300: the batch in flight finishes first.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("job", "reason", "health_timeout")
    ui_color = "#f5ecd0"

    unhealthy: ErrorCode = "OPERATION_FAILED"
    """The error code of an operation that has rolled back."""

    def __init__(
        self,
        *,
        reason: str = "",
        health_timeout: float | str = 300.0,
        stop_timeout: float = 300.0,
        **kwargs: Any,
    ) -> None:
        # Retries for tries that were killed together with their worker: only those are resumed.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=15))
        super().__init__(**kwargs)
        self.reason = reason
        self.health_timeout = health_timeout
        self.stop_timeout = stop_timeout

    def perform(self, workspace: Workspace, by: str) -> Operation:
        """Perform the operation, or resume it if an earlier try began it."""
        raise NotImplementedError

    def told(self, workspace: Workspace, operation: Operation) -> dict[str, Any]:
        """Return the summary of an ended operation: who, why, its checkpoint, savepoint, the seconds of each step."""
        reference = JobDocuments(workspace.storage, operation.job).checkpoint.read()
        mine = reference if reference is not None and reference.operation == operation.id else None
        return {
            "operation": operation.id,
            "state": operation.state,
            "job": operation.job,
            "by": operation.by,
            "reason": operation.params.get("reason") or "",
            "savepoint": operation.plan.savepoint,
            "batch": mine.base_batch if mine else None,
            "generation": mine.generation if mine else None,
            "steps": {step.name: seconds_of(step) for step in operation.steps},
        }

    def execute(self, context: Context) -> dict[str, Any]:
        """Perform the operation, or resume it if an earlier try began it."""
        workspace = self.open()
        # The same in every try of this run, and different in every other run: it identifies this run's operation.
        by = f"airflow:{holder_of(context)}{person_of(context)}"
        try:
            operation = self._ended_already(context, workspace, by)
            if operation is None:
                with steps_logged(workspace, self.job, by, self.log), self.interruptible():
                    operation = self.perform(workspace, by)
        except StreamwardenError as error:
            context["ti"].xcom_push(key="error", value={"code": error.code, "what": error.what, "remedy": error.remedy})
            self._push_summary(context, workspace, by)
            raise self._judge(workspace, by, error) from error
        return self.told(workspace, operation)

    def _ended_already(self, context: Context, workspace: Workspace, by: str) -> Operation | None:
        found = ended_operation(context, workspace, self.job, by, retries=self.retries or 0)
        if found is None:
            return None
        self.log.info("an earlier try has ended operation %s: %s", found.id, found.state)
        if found.error is None:
            return found
        if found.state == "rolled back":
            raise StreamwardenError(self.unhealthy, f"{self.job}: {found.error.code}: {found.error.what}")
        raise found.error.to_exception()

    def _push_summary(self, context: Context, workspace: Workspace, by: str) -> None:
        # If the documents can't be read now, the error is still reported.
        with suppress(OSError, StreamwardenError):
            found = JobDocuments(workspace.storage, self.job).operation.read()
            if found is not None and found.by == by:
                context["ti"].xcom_push(key="summary", value=self.told(workspace, found))

    def _judge(self, workspace: Workspace, by: str, error: StreamwardenError) -> AirflowException:
        try:
            found = JobDocuments(workspace.storage, self.job).operation.read()
        except (OSError, StreamwardenError):
            return AirflowException(str(error))
        ours = found if found is not None and found.by == by else None
        if ours is not None and ours.state == "running":
            # Not ended: a retry resumes it. Or an earlier try that Airflow gave up still works on it.
            return AirflowException(str(error))
        if ours is None and error.retryable and error.code != "OPERATION_RUNNING":
            # Not begun: the documents were unreachable.
            return AirflowException(str(error))
        words = describe_operation(workspace, ours, logs=error.code == self.unhealthy) if ours is not None else ""
        if words:
            self.log.error("%s", words)
        self.log.error("%s", error)
        return AirflowFailException(str(error))
