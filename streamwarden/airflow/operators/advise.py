"""An operator that recommends a job's parallelism."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from streamwarden.airflow.operators.base import JobOperator
from streamwarden.airflow.trigger_dag_run import run_to_trigger
from streamwarden.autoscaler.advise import advise
from streamwarden.errors import StreamwardenError
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["AdviseOperator"]

_RUNS = 100
"""Distinct ids of advised runs between two operations of a job. 100: only runs without an operation use them up."""


class AdviseOperator(JobOperator):
    """Recommends state partitions and cores for a job, and triggers DAG ``rescale`` where the job allows it.

    Logs the recommendation, its reasons and what blocks it, and pushes all three to XCom as ``advice``. Triggers
    nothing while the DAG is paused, or while an earlier advised run for this job has not ended: such runs would queue
    up and apply outdated advice. Does not wait for the rescale. If the job is not deployed, the task is skipped.

    Parameters
    ----------
    job
        The job. (templated)
    rescale_dag_id
        The DAG to trigger.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dce6f5"

    def __init__(self, *, rescale_dag_id: str = "rescale", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rescale_dag_id = rescale_dag_id

    def execute(self, context: Context) -> None:
        """Recommend, log, and trigger if allowed."""
        ti = context["ti"]
        workspace = self.open()
        try:
            advice = advise(workspace, self.job)
            runs = self._runs(workspace)
        except StreamwardenError as error:
            if error.code == "NOT_DEPLOYED":
                raise AirflowSkipException(f"{self.job} is not deployed") from None
            raise self.fail(error) from error
        if advice.acts:
            advice = replace(advice, holds=self._unanswered(ti, runs))
        for name, text in advice.lines():
            self.log.info("%s %s: %s", self.job, name, text)
        ti.xcom_push(key="advice", value=advice.as_json())
        if not advice.acts:
            return
        reason = f"advised: {advice.recommendation.why[0]}"
        raise run_to_trigger(
            self.rescale_dag_id,
            runs[min(ti.get_dr_count(dag_id=self.rescale_dag_id, run_ids=runs), len(runs) - 1)],
            conf={"job": self.job, **advice.recommendation.changes, "reason": reason, "advised": True},
            note=reason,
        )

    def _runs(self, workspace: Workspace) -> list[str]:
        """Return, in order, the ids of the advised runs that can be triggered between two operations of the job.

        Airflow counts runs by id and not by job, so the ids must be predictable.
        """
        last = JobDocuments(workspace.storage, self.job).operation.read()
        return [f"advised__{self.job}__{last.id if last is not None else 'first'}__{one}" for one in range(_RUNS)]

    def _unanswered(self, ti: Any, runs: list[str]) -> tuple[str, ...]:
        """Return the reasons why another run would only wait, or would repeat an earlier run."""
        if ti.get_dag(self.rescale_dag_id).is_paused:
            return (f"DAG {self.rescale_dag_id} is paused",)
        if ti.get_dr_count(dag_id=self.rescale_dag_id, run_ids=runs, states=["queued", "running"]):
            return (f"a run of DAG {self.rescale_dag_id} that earlier advice triggered has not ended",)
        return ()
