"""What an operator does to running jobs."""

from airflow.sdk import DAG, Param

from streamwarden.airflow.operators import ALL_JOBS, StopOperator
from streamwarden.control.config import job_names

with DAG(
    dag_id="stop",
    description="Stop a job between batches, or all of them.",
    doc_md=(
        "The driver finishes the batch in flight and ends; nothing is dropped, and a later deploy goes on from there."
        " The job's `supervise` task then succeeds."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={
        "job": Param(
            # No default: what is to be stopped is chosen, not overlooked.
            type="string",
            enum=[*job_names(), ALL_JOBS],
            title="Job",
            description=f"The job to stop; `{ALL_JOBS}` stops every deployed one.",
        ),
        "timeout": Param(
            default=300,
            type="integer",
            minimum=1,
            maximum=3600,
            title="Timeout (seconds)",
            description="How long to wait for the end. A stop that takes longer goes on, but this run fails.",
        ),
        "reason": Param(default="", type=["null", "string"], title="Reason", description="Kept with the job."),
    },
):
    StopOperator(
        task_id="stop",
        job="{{ params.job }}",
        timeout="{{ params.timeout }}",
        reason="{{ params.reason or '' }}",
    )
