"""An operator: recommend how wide a job should run."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from streamwarden.airflow.job_operator import JobOperator
from streamwarden.airflow.triggering import run_to_trigger
from streamwarden.control.advice.advise import advise
from streamwarden.errors import StreamwardenError

__all__ = ["AdviseOperator"]


class AdviseOperator(JobOperator):
    """Recommends state partitions and cores for a job, and triggers DAG ``rescale`` where the job allows it.

    Logs what is recommended, why, and what stands against doing it; pushes all of that to XCom as ``advice``. Does not
    wait for the rescale. A job that is not deployed is skipped.

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
        try:
            advice = advise(self.open(), self.job)
        except StreamwardenError as error:
            if error.code == "NOT_DEPLOYED":
                raise AirflowSkipException(f"{self.job} is not deployed") from None
            raise self.fail(error) from error
        for name, text in advice.lines():
            self.log.info("%s %s: %s", self.job, name, text)
        ti.xcom_push(key="advice", value=advice.as_json())
        if not advice.acts:
            return
        reason = f"advised: {advice.recommendation.why[0]}"
        raise run_to_trigger(
            self.rescale_dag_id,
            f"advise__{ti.run_id}__{self.job}__{ti.try_number}",
            conf={"job": self.job, **advice.recommendation.changes, "reason": reason},
            note=reason,
        )
