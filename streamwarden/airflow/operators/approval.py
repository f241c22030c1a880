"""An operator that asks for approval before a rescale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.base import JobOperator, is_true
from streamwarden.airflow.operators.rescale import number_of, skip_if_held_back
from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.operations.rescale_plan import RescalePlan, plan_rescale
from streamwarden.runtime.operation_lock import operations_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["RescaleApprovalOperator"]


class RescaleApprovalOperator(JobOperator, ApprovalOperator):
    """Checks whether a rescale is possible and, if wanted, asks a person to approve it.

    Uses Airflow's own approval: the run waits under *Required Actions* without a worker. If the rescale is rejected,
    the downstream tasks are skipped. If it is approved, XCom ``approved_by`` holds the person's name, for the record of
    the operation, and ``asked`` holds the question, so that nothing else is performed. An impossible rescale fails
    here, while the job runs, and nobody is asked. If advice is held back by now, the task is skipped and gives the
    reason.

    Parameters
    ----------
    job, partitions, cores, executors, memory, advised
        As for :class:`~.rescale_operator.RescaleOperator`. (templated)
    wanted
        Whether to ask; if false, the run continues without approval. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = (
        *("subject", "body", "job", "partitions", "cores", "executors", "memory", "wanted", "advised"),
    )
    ui_color = "#f5ecd0"

    def __init__(
        self,
        *,
        partitions: int | str | None = None,
        cores: int | str | None = None,
        executors: int | str | None = None,
        memory: str | None = None,
        wanted: bool | str = True,
        advised: bool | str = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("subject", "Rescale a job?")
        # Retries for a store that is unreachable.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=15))
        super().__init__(**kwargs)
        self.partitions = partitions
        self.cores = cores
        self.executors = executors
        self.memory = memory
        self.wanted = wanted
        self.advised = advised

    def execute(self, context: Context) -> None:
        """Check the rescale, and ask."""
        workspace = self.open()
        try:
            if is_true(self.advised):
                skip_if_held_back(workspace, self.job, partitions=self.partitions, cores=self.cores)
            planned = plan_rescale(
                workspace,
                self.job,
                partitions=number_of(self.partitions),
                cores=number_of(self.cores),
                executors=number_of(self.executors),
                memory=self.memory or None,
            )
        except StreamwardenError as error:
            # A concurrent operation is a refusal: the rescale does not wait for its end.
            passing = error.code in OUTAGES
            raise (AirflowException if passing else AirflowFailException)(str(error)) from error
        self.subject = f"Rescale {self.job}: {planned.words}?"
        self.body = summary(workspace, planned)
        self.log.info("%s\n%s", self.subject, self.body)
        if is_true(self.wanted):
            context["ti"].xcom_push(key="asked", value=planned.words)
            super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue once a person has answered; push the person as ``approved_by``."""
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] == [self.APPROVE] and answer["responded_by_user"] is not None:
            context["ti"].xcom_push(key="approved_by", value=answer["responded_by_user"]["name"])
        return answer


def summary(workspace: Workspace, planned: RescalePlan) -> str:
    """Return a description of the rescale, in Markdown."""
    lines = [f"**{planned.job}**: {planned.words}", ""]
    if planned.repartitions:
        lines.append(
            f"- A copy of its state, {planned.bytes} bytes, is repartitioned, and the job stops between two batches."
        )
        lines += [f"  - operator {one.id}: {one.name}, {one.bytes} bytes" for one in planned.operators]
        lines.append(
            "- The state is verified to be the same before the job starts on it. Online, batches are replayed"
            " meanwhile: their watermarks and rows are compared, and their state once the job runs on it."
        )
    else:
        lines.append("- The job stops between two batches and starts again; its state is unchanged.")
    lines.append("- A savepoint is taken before. If the job is not healthy afterwards, it is rolled back.")
    downtimes = _downtimes(workspace, planned.job)
    if downtimes:
        said = ", ".join(f"{seconds:.0f} s" for seconds in downtimes)
        lines.append(f"- Downtime of the job's last rescales, newest first: {said}.")
    return "\n".join(lines)


def _downtimes(workspace: Workspace, job: str, last: int = 3) -> list[float]:
    found = []
    for past in operations_of(JobDocuments(workspace.storage, job)):
        seconds = past.plan.downtime_s if past.kind == "rescale" and past.state != "running" else None
        if seconds is not None:
            found.append(seconds)
        if len(found) == last:
            break
    return found
