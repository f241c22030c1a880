"""The DAG that checks output tables."""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.operators.quality import CheckOperator
from streamwarden.airflow.run_conf import known_keys_only
from streamwarden.store.config import config_dir

# One suite per output table: the file's name is the table's.
TABLES = sorted(path.stem for path in (config_dir().parent / "expectations").glob("*.json"))

with DAG(
    dag_id="quality",
    description="Check the output tables against their expectations.",
    doc_md=(
        "Runs the Great Expectations suites in `expectations/` on the Delta tables, in a process outside Airflow's:"
        " in memory, or by Spark for tables that do not fit. Writes JSON results, an HTML report and Great"
        " Expectations' Data Docs to `quality/` in the root folder. A failed suite fails the task, which"
        " names the table and the expectations.\n\nHas no"
        " schedule unless `STREAMWARDEN_QUALITY_SCHEDULE` sets one, such as `@hourly` or `*/15 * * * *`: a check reads"
        " whole tables."
    ),
    schedule=os.environ.get("STREAMWARDEN_QUALITY_SCHEDULE") or None,
    # For a schedule. No catch-up, because a check always reads the newest version.
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    # A slow check must not pile up processes.
    max_active_runs=1,
    tags=["streamwarden", "quality"],
    params={
        "tables": Param(
            default=[],
            type="array",
            items={"type": "string", "enum": TABLES} if TABLES else {"type": "string"},
            # The form's choices.
            examples=TABLES,
            title="Tables",
            description="The tables to check; empty: all that exist.",
        )
    },
):
    CheckOperator(
        task_id="check",
        pre_execute=known_keys_only(),
        tables_param="tables",
        data_docs=True,
        execution_timeout=timedelta(hours=1),
    )
