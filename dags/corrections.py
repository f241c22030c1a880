"""The DAG that folds in rows that came after the watermark."""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.operators.corrections import CorrectOperator
from streamwarden.airflow.run_conf import known_keys_only
from streamwarden.store.config import job_names

with DAG(
    dag_id="corrections",
    description="Fold in late rows that the watermark dropped.",
    doc_md=(
        "Compares the rows that can't change any more with the query of `reconcile` in the job's YAML, and folds in"
        " what came late, in one commit. Corrected rows are marked in `corrected_at` and `corrected_rows`. The job may"
        " run meanwhile; a second run changes nothing. The gate checks and publishes the commit as any other.\n\nHas no"
        " schedule unless `STREAMWARDEN_CORRECTIONS_SCHEDULE` sets one, such as `@daily`: it reads the whole source."
    ),
    schedule=os.environ.get("STREAMWARDEN_CORRECTIONS_SCHEDULE") or None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    # A correction always looks at all rows.
    catchup=False,
    max_active_runs=1,
    tags=["streamwarden", "quality"],
    params={
        "jobs": Param(
            default=[],
            type="array",
            items={"type": "string"},
            examples=job_names(),
            title="Jobs",
            description="Jobs, or tables, whose late rows are folded in; empty: all with `reconcile`.",
        ),
        "apply": Param(
            default=True, type="boolean", title="Apply", description="Off: only report what is late, in the task's log."
        ),
    },
):
    CorrectOperator(
        task_id="correct",
        pre_execute=known_keys_only(),
        names_param="jobs",
        apply_param="apply",
        retries=2,
        retry_delay=timedelta(minutes=1),
        execution_timeout=timedelta(hours=1),
    )
