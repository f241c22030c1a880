"""Operators that change a running job's parallelism, and that cancel such a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from streamwarden.airflow.operators.base import JobOperator, ProgressLog, holder_of, is_true, person_of
from streamwarden.airflow.operators.operation import OperationOperator
from streamwarden.autoscaler.advise import holds_back
from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.operations.rescale import OnTimeout, cancel, mode_of, rescale
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["CancelRescaleOperator", "RescaleOperator", "number_of", "skip_if_held_back"]


_EMPTY = (None, "", "None")
"""The values that an empty form field is rendered to."""


class RescaleOperator(OperationOperator):
    """Changes a job's partitions, cores, executors or memory, and keeps its state; rolls back if it is not healthy.

    Returns operation, savepoint, batch, generation, the parallelism before and after, the downtime in seconds and the
    seconds of each step.

    Parameters
    ----------
    partitions, cores, executors, memory
        The new values; an empty text, or None, keeps the current value. (templated)
    on_timeout
        ``roll back`` or ``hold``, for a job whose only fault is that it is not caught up in time. (templated)
    mode
        ``online`` or ``offline``. (templated)
    health_timeout
        Seconds; an empty text, or None: the default of :func:`~streamwarden.operations.rescale.rescale`. (templated)
    advised
        Whether only advice requests it. Then the task is skipped if the job's ``advisor`` settings forbid the rescale
        by now. (templated)
    approved_by
        The person who approved it, for the record; empty if nobody was asked. (templated)
    approved
        The approved change; the task fails if the rescale would change anything else by now. (templated)
    """

    template_fields: Sequence[str] = (
        *OperationOperator.template_fields,
        *("partitions", "cores", "executors", "memory", "on_timeout", "mode", "advised", "approved_by", "approved"),
    )
    unhealthy = "RESCALE_UNHEALTHY"

    def __init__(
        self,
        *,
        partitions: int | str | None = None,
        cores: int | str | None = None,
        executors: int | str | None = None,
        memory: str | None = None,
        on_timeout: str = "roll back",
        mode: str = "online",
        advised: bool | str = False,
        approved_by: str = "",
        approved: str = "",
        health_timeout: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(health_timeout=health_timeout if health_timeout is not None else "", **kwargs)
        self.partitions = partitions
        self.cores = cores
        self.executors = executors
        self.memory = memory
        self.on_timeout = on_timeout
        self.mode = mode
        self.advised = advised
        self.approved_by = approved_by
        self.approved = approved

    def perform(self, workspace: Workspace, by: str) -> Operation:
        """Rescale, or resume the rescale of an earlier try."""
        if is_true(self.advised):
            found = JobDocuments(workspace.storage, self.job).operation.read()
            if found is None or found.by != by:
                # This run has not begun it: the advice may have waited for hours.
                skip_if_held_back(workspace, self.job, partitions=self.partitions, cores=self.cores)
        return rescale(
            workspace,
            self.job,
            partitions=number_of(self.partitions),
            cores=number_of(self.cores),
            executors=number_of(self.executors),
            memory=self.memory or None,
            on_timeout=cast(OnTimeout, self.on_timeout),
            mode=mode_of(self.mode),
            by=by,
            reason=self.reason,
            approved_by=self.approved_by,
            approved=self.approved,
            stop_timeout=self.stop_timeout,
            health_timeout=None if self.health_timeout in _EMPTY else float(self.health_timeout),
            report=ProgressLog(self.log),
        )

    def told(self, workspace: Workspace, operation: Operation) -> dict[str, Any]:
        """Return the summary of the rescale."""
        fields = {"approved_by", "was", "to", "state_rows", "downtime_s"}
        told = operation.plan.model_dump(mode="json", include=fields)
        return {**super().told(workspace, operation), **told}


class CancelRescaleOperator(JobOperator):
    """Requests the rollback of the rescale that works on a job. Does not wait: the rescale's own task reports the end.

    Fails if no rescale works on the job or waits to be resumed (``OPERATION_NONE``), or if its new driver has started
    (``OPERATION_TOO_LATE``): then the job's health decides. Returns the operation, who began it, and its step.

    Parameters
    ----------
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Request the rollback."""
        workspace = self.open()
        try:
            asked = cancel(workspace, self.job, by=f"airflow:{holder_of(context)}{person_of(context)}")
        except StreamwardenError as error:
            raise self.fail(error) from error
        step = asked.steps[-1].name if asked.steps else ""
        self.log.info("rescale %s by %s, at %s, is asked to roll back", asked.id, asked.by, step or "its beginning")
        return {"operation": asked.id, "by": asked.by, "step": step}


def skip_if_held_back(workspace: Workspace, job: str, *, partitions: int | str | None, cores: int | str | None) -> None:
    """Skip the task if the job's ``advisor`` settings, or its state, forbid an advised rescale.

    Raises
    ------
    AirflowSkipException
        With the reason.
    """
    asked = {"partitions": number_of(partitions), "cores": number_of(cores)}
    held = holds_back(workspace, job, {name: value for name, value in asked.items() if value is not None})
    if held:
        raise AirflowSkipException(f"{job}: not rescaled as advised: {'; '.join(held)}")


def number_of(value: int | str | None) -> int | None:
    """Parse a number; Airflow renders a template to text."""
    return None if value in _EMPTY else int(cast(str, value))
