"""What an operator does to running jobs."""

from airflow.sdk import DAG, Param

from streamwarden.airflow.offered import offered_savepoints
from streamwarden.airflow.operators import ALL_JOBS, StopOperator
from streamwarden.airflow.restore_operators import EnsureSupervisedOperator, RestoreOperator
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

with DAG(
    dag_id="restore",
    description="Start a job from a savepoint; go back by itself if it does not become healthy.",
    doc_md=(
        "Checks first, while the job runs, that the savepoint fits. Then: stop between batches, a savepoint of where"
        " the job is, a fresh checkpoint, start, wait for health. A job that does not become healthy goes back to the"
        " untouched checkpoint that it had, and the run fails, saying why. The job's own DAG run goes on all the while;"
        " where there is none, `supervise` triggers one.\n\n"
        "The job is started as its YAML says now. Ended by hand, `restore` leaves the job on its old checkpoint or on"
        " the new one, whole."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={
        "job": Param(type="string", enum=job_names(), title="Job", description="The job to restore."),
        "savepoint": Param(
            default="latest",
            type="string",
            minLength=1,
            # Suggestions and not a closed list: the newest may be younger than this file's last parsing.
            examples=offered_savepoints(job_names()),
            title="Savepoint",
            description="`latest` is the newest verified one of the job. Or an id or a label; empty the field to see"
            " what there is to choose from.",
        ),
        "outputs": Param(
            default="default",
            type="string",
            enum=["default", "rewind", "leave"],
            values_display={
                "default": "default: each table as its on_restore says",
                "rewind": "rewind: put every table back to the savepoint's version",
                "leave": "leave: let replayed rows fall on those that are there, by their keys",
            },
            title="Output tables",
            description="By default tables whose rows have keys are left, and those without are put back. A table that"
            " another job streams from is never put back.",
        ),
        "reason": Param(default="", type=["null", "string"], title="Reason", description="Kept with the job."),
        "health_timeout": Param(
            default=300,
            type="integer",
            minimum=1,
            maximum=3600,
            title="Health timeout (seconds)",
            description="How long a restored job may take to its first batch, or to find that there is nothing to do.",
        ),
    },
):
    restore = RestoreOperator(
        task_id="restore",
        job="{{ params.job }}",
        savepoint="{{ params.savepoint }}",
        outputs="{{ params.outputs }}",
        reason="{{ params.reason or '' }}",
        health_timeout="{{ params.health_timeout }}",
    )
    # A teardown: it also runs after a restore that was ended by hand, and has no part in the run's state.
    supervise = EnsureSupervisedOperator(task_id="supervise", job="{{ params.job }}")
    restore >> supervise.as_teardown()
