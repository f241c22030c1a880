"""The DAG that replays corrected quarantined rows."""

from datetime import timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.operators.replay import ReplayOperator
from streamwarden.airflow.run_conf import known_keys_only

with DAG(
    dag_id="quarantine_replay",
    description="Send corrected quarantined rows through their job again.",
    doc_md=(
        "`streamwarden quarantine show TABLE` prints quarantined rows as JSON lines. Correct `row` in them, and give"
        " the lines to this form. Or replay rows unchanged, after a rule or the job was changed. Each row goes through"
        " the job once; the table `quarantine_edits` keeps before, after, who, when and why. See docs/quarantine.md."
    ),
    schedule=None,
    catchup=False,
    # Of two replays of one row, the second one is refused; one after the other, it is refused at once.
    max_active_runs=1,
    tags=["streamwarden", "quality"],
    params={
        "table": Param(default="", type="string", title="Table", description="The table, or its quarantine table."),
        "rows": Param(
            default="",
            type="string",
            format="multiline",
            title="Corrected rows",
            description="Lines of `streamwarden quarantine show`, with `row` corrected.",
        ),
        "unchanged": Param(default=False, type="boolean", title="Unchanged", description="Replay rows as they are."),
        "rule": Param(default="", type="string", title="Rule", description="With unchanged: only this rule's rows."),
        "note": Param(default="", type="string", title="Note", description="Why; kept in the record."),
    },
):
    ReplayOperator(
        task_id="replay",
        pre_execute=known_keys_only(),
        table="{{ params.table }}",
        rows="{{ params.rows }}",
        unchanged="{{ params.unchanged }}",
        rule="{{ params.rule }}",
        note="{{ params.note }}",
        # The same command completes a killed one.
        retries=2,
        retry_delay=timedelta(seconds=30),
        execution_timeout=timedelta(minutes=30),
    )
