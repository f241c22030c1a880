"""Trigger a run of another DAG from within a task."""

from __future__ import annotations

from typing import Any

from airflow.sdk.exceptions import DagRunTriggerException

__all__ = ["run_to_trigger"]


def run_to_trigger(
    dag_id: str, run_id: str, *, note: str, conf: dict[str, Any] | None = None
) -> DagRunTriggerException:
    """Return the exception by which a task triggers a run without waiting; an existing run is left alone.

    Not :class:`~airflow.providers.standard.operators.trigger_dagrun.TriggerDagRunOperator`: it always triggers, and
    adds half a second of imports to each parse.
    """
    return DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=conf,
        logical_date=None,
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=60,
        deferrable=False,
        note=note,
    )
