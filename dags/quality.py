"""Checking what the jobs wrote."""

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
        "Runs the Great Expectations suites in `expectations/` over the Delta tables, in one Spark session outside"
        " Airflow's processes. Writes JSON results and an HTML report below the root's `quality/`. A suite that is not"
        " met fails the task, which names table and expectation.\n\n"
        "Has no schedule unless `STREAMWARDEN_QUALITY_SCHEDULE` gives one, such as `@hourly` or `*/15 * * * *`: a check"
        " starts a JVM and reads whole tables, so how often it pays is a matter of the place, not of this file."
    ),
    schedule=os.environ.get("STREAMWARDEN_QUALITY_SCHEDULE") or None,
    # For a schedule; the past isn't made up for, because a check always reads the newest version.
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    # A slow check must not pile up JVMs.
    max_active_runs=1,
    tags=["streamwarden", "quality"],
    params={
        "tables": Param(
            default=TABLES,
            type="array",
            items={"type": "string", "enum": TABLES} if TABLES else {"type": "string"},
            # What the form offers to choose from.
            examples=TABLES,
            title="Tables",
            description="Which tables to check; none means all.",
        )
    },
):
    CheckOperator(
        task_id="check", pre_execute=known_keys_only(), tables_param="tables", execution_timeout=timedelta(hours=1)
    )
