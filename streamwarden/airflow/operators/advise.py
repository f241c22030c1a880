"""An operator: recommend how wide a job should run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from streamwarden.airflow.operators.base import JobOperator
from streamwarden.airflow.triggering import run_to_trigger
from streamwarden.autoscaler.advise import advise
from streamwarden.errors import StreamwardenError
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["AdviseOperator"]

_RUNS = 100
"""Advised runs that are told apart between two operations of a job. 100: only such as did nothing leave none."""


class AdviseOperator(JobOperator):
    """Recommends state partitions and cores for a job, and triggers DAG ``rescale`` where the job allows it.

    Logs what is recommended, why, and what stands against doing it; pushes all of that to XCom as ``advice``. Nothing
    is triggered while the DAG is paused, or an advised run of it for this job has not ended: such runs would heap up,
    and do late what was right once. Does not wait for the rescale. A job that is not deployed is skipped.

    Parameters
    ----------
    job
        The job. (templated)
    rescale_dag_id
        What is triggered.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    ui_color = "#dce6f5"

    def __init__(self, *, rescale_dag_id: str = "rescale", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rescale_dag_id = rescale_dag_id

    def execute(self, context: Context) -> None:
        """Look, say, and perhaps trigger."""
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
        """Return the ids of the runs that advice triggers between the job's last operation and its next, in turn.

        Airflow counts runs by their ids and by nothing that would tell the job, so the ids are such as can be guessed.
        """
        last = JobDocuments(workspace.storage, self.job).operation.read()
        return [f"advised__{self.job}__{last.id if last is not None else 'first'}__{one}" for one in range(_RUNS)]

    def _unanswered(self, ti: Any, runs: list[str]) -> tuple[str, ...]:
        """Say why another run would only wait, or do again what one that was triggered before does."""
        if ti.get_dag(self.rescale_dag_id).is_paused:
            return (f"DAG {self.rescale_dag_id} is paused",)
        if ti.get_dr_count(dag_id=self.rescale_dag_id, run_ids=runs, states=["queued", "running"]):
            return (f"a run of DAG {self.rescale_dag_id} that was advised before has not ended",)
        return ()
