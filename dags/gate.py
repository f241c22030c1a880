"""The DAG that decides about new versions of tables as they come, and the one for a person's decision."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.operators.gate import DecideOperator, GateOperator
from streamwarden.airflow.run_conf import known_keys_only
from streamwarden.store.config import config_dir

# One suite per table: the file's name is the table's.
TABLES = sorted(path.stem for path in (config_dir().parent / "expectations").glob("*.json"))

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

with DAG(
    dag_id="gate_decide",
    description="Check what is held of a table once more, or publish it as it is.",
    doc_md=(
        "`check` decides again about the versions that are not published, also if they are held: after the rows were"
        " corrected, or the suite was changed. `check anew` checks all rows, and publishes the newest version in place"
        " of the old ones. `accept` publishes the held versions as they are; its note stays in the history. The run"
        " fails if the versions are still held."
    ),
    schedule=None,
    tags=["streamwarden", "quality"],
    params={
        "table": Param(
            type="string",
            title="Table",
            description="A table that has a suite.",
            **({"enum": TABLES} if TABLES else {}),
        ),
        "decision": Param(
            default="check",
            type="string",
            enum=["check", "check anew", "accept"],
            values_display={
                "check": "check: decide again about what is not published",
                "check anew": "check anew: check all rows, and publish the newest version",
                "accept": "accept: publish what is held as it is",
            },
            title="Decision",
            description="`accept` needs a note.",
        ),
        "note": Param(
            default="", type=["null", "string"], title="Note", description="Why; kept in the history of decisions."
        ),
    },
):
    DecideOperator(
        task_id="decide",
        pre_execute=known_keys_only(),
        table="{{ params.table }}",
        decision="{{ params.decision }}",
        note="{{ params.note or '' }}",
    )
