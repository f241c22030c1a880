"""The DAG that decides about new versions of tables as they come."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from streamwarden.airflow.operators.gate import GateOperator
from streamwarden.airflow.run_conf import known_keys_only

with DAG(
    dag_id="gate",
    description="Publish what passes its expectations, seconds after it was written.",
    doc_md=(
        "Watches the tables that have a suite in `expectations/`, checks what each new version added, and publishes"
        " what passes: readers of `published/TABLE` see only that. What fails is held, and the task's log says why."
        " `streamwarden gate status` shows the same.\n\nThe DAG is paused at first. Unpause it to open the gate. Its"
        " task runs until it is stopped, and holds one worker slot; if its process ends, a next run begins. To close"
        " the gate, pause the DAG and mark its run as failed: jobs write their tables as before, and nothing is"
        " published."
    ),
    schedule="@continuous",
    # Its process takes a worker slot and 0.5 GB for good, which not every place wants.
    is_paused_upon_creation=True,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["streamwarden", "quality"],
):
    GateOperator(
        task_id="watch",
        pre_execute=known_keys_only(),
        # A next run begins anyway; this is for an end within seconds, as at a lost connection.
        retries=3,
        retry_delay=timedelta(seconds=10),
    )
