"""What an operator does to running jobs."""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.form_options import offered_jobs, offered_savepoints
from streamwarden.airflow.operators.advise import AdviseOperator
from streamwarden.airflow.operators.approval import RescaleApprovalOperator
from streamwarden.airflow.operators.base import ALL_JOBS
from streamwarden.airflow.operators.ensure_supervised import EnsureSupervisedOperator
from streamwarden.airflow.operators.rescale import CancelRescaleOperator, RescaleOperator
from streamwarden.airflow.operators.restore import RestoreOperator
from streamwarden.airflow.operators.stop import StopOperator
from streamwarden.airflow.operators.watch import WatchOperator
from streamwarden.airflow.run_conf import ADVISED, known_keys_only
from streamwarden.store.config import job_names

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
            # Those too whose YAML was removed, and with it their own DAG.
            enum=[*offered_jobs(), ALL_JOBS],
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
        pre_execute=known_keys_only(),
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
        "suspended": Param(
            default=False,
            type="boolean",
            title="Leave it suspended",
            description="Don't start the job: its next deploy starts it from the savepoint. For a job whose source is"
            " damaged, and is restored after it.",
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
        pre_execute=known_keys_only(),
        job="{{ params.job }}",
        savepoint="{{ params.savepoint }}",
        outputs="{{ params.outputs }}",
        suspended="{{ params.suspended }}",
        reason="{{ params.reason or '' }}",
        health_timeout="{{ params.health_timeout }}",
    )
    # A teardown: it also runs after a restore that was ended by hand, and has no part in the run's state.
    supervise = EnsureSupervisedOperator(task_id="supervise", job="{{ params.job }}", operation_task_id=restore.task_id)
    restore >> supervise.as_teardown()

with DAG(
    dag_id="rescale",
    description="Change a job's state partitions, cores or memory, keeping its state; go back if it is not healthy.",
    doc_md=(
        "Looks first, while the job runs, whether it can, and starts the new driver's JVM beside it. With `online`,"
        " a savepoint is taken and a copy of it gets the other number of partitions while the job runs on; its state is"
        " proved to be the same, and it follows the job batch by batch. Only then is the job stopped, between two"
        " batches, and the new driver takes over. With `offline`, and where the copy can't keep up, the job is"
        " stopped first. A job that does not become healthy is rolled back to its untouched checkpoint and its earlier"
        " parallelism, and the run fails with the reason. The job's own DAG run goes on all the while.\n\n"
        "Leave a field empty to keep what it is. Cores and memory alone need no copy. What is decided here counts over"
        " the job's YAML until somebody changes the same field there. Ended by hand, `rescale` leaves the job in the"
        " new or in the old state, whole."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={
        "job": Param(type="string", enum=job_names(), title="Job", description="The job to rescale."),
        "partitions": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            maximum=4096,
            title="State partitions",
            description="In how many parts the state lies, and how many tasks a batch can use.",
        ),
        "cores": Param(default=None, type=["null", "integer"], minimum=1, title="Cores", description="Of the driver."),
        "memory": Param(
            default=None,
            type=["null", "string"],
            title="Memory",
            description="The JVM's heap, as in the job's YAML: `2g`.",
        ),
        "mode": Param(
            default="online",
            type="string",
            enum=["online", "offline"],
            values_display={
                "online": "online: prepare the state while the job runs, then take over",
                "offline": "offline: stop the job first",
            },
            title="Mode",
            description="Matters only if the number of partitions changes. Both end with the same state. For a while"
            " two drivers need their memory; online for longer.",
        ),
        "on_timeout": Param(
            default="roll back",
            type="string",
            enum=["roll back", "hold"],
            title="When it is not caught up in time",
            description="A job that fails always goes back; this is about one that runs, and is only slow.",
        ),
        "reason": Param(default="", type=["null", "string"], title="Reason", description="Kept with the job."),
        "health_timeout": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            maximum=86400,
            title="Health timeout (seconds)",
            description="How long it may take to its first batch, and until what came while it was away is worked off."
            " Empty: 300, or three of the job's trigger intervals if they are longer.",
        ),
        "approval": Param(
            # Whoever fills in the form has decided already.
            default=False,
            type="boolean",
            title="Ask for approval",
            description="Wait, with a summary of the plan, until somebody approves it under Required Actions.",
        ),
    },
):
    approve = RescaleApprovalOperator(
        task_id="approve",
        pre_execute=known_keys_only(ADVISED),
        job="{{ params.job }}",
        partitions="{{ params.partitions }}",
        cores="{{ params.cores }}",
        memory="{{ params.memory or '' }}",
        wanted="{{ params.approval }}",
        advised="{{ (dag_run.conf or {}).get('advised', False) }}",
    )
    rescale = RescaleOperator(
        task_id="rescale",
        job="{{ params.job }}",
        partitions="{{ params.partitions }}",
        cores="{{ params.cores }}",
        memory="{{ params.memory or '' }}",
        on_timeout="{{ params.on_timeout }}",
        mode="{{ params.mode }}",
        reason="{{ params.reason or '' }}",
        health_timeout="{{ params.health_timeout }}",
        advised="{{ (dag_run.conf or {}).get('advised', False) }}",
        approved_by="{{ ti.xcom_pull(task_ids='approve', key='approved_by') or '' }}",
        approved="{{ ti.xcom_pull(task_ids='approve', key='asked') or '' }}",
    )
    supervise_rescaled = EnsureSupervisedOperator(
        task_id="supervise", job="{{ params.job }}", operation_task_id=rescale.task_id
    )
    approve >> rescale >> supervise_rescaled.as_teardown()

with DAG(
    dag_id="cancel_rescale",
    description="Ask a rescale that goes on to go back, until its new driver starts.",
    doc_md=(
        "The rescale goes back before its next step: the job runs on, or is started, as it was, and the rescale's own"
        " run fails with `OPERATION_CANCELLED`. Once its new driver starts, its health decides, and this fails."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={"job": Param(type="string", enum=job_names(), title="Job", description="The job that is rescaled.")},
):
    CancelRescaleOperator(task_id="cancel", pre_execute=known_keys_only(), job="{{ params.job }}")

with DAG(
    dag_id="watch",
    description="Raise an alarm where nobody looks after a job that is to run.",
    doc_md=(
        "A job whose DAG is paused, or has no run, goes on; but a driver that dies stays down, and nobody is told of"
        " anything. This says so: by the notifiers of `config/alerts.yaml`, as the alarm `unwatched`, and by failing."
        " Starts and stops nothing. Every five minutes, unless `STREAMWARDEN_WATCH_SCHEDULE` says otherwise; an empty"
        " one means none."
    ),
    schedule=os.environ.get("STREAMWARDEN_WATCH_SCHEDULE", "*/5 * * * *") or None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["streamwarden", "operations"],
):
    WatchOperator(task_id="watch", pre_execute=known_keys_only(), execution_timeout=timedelta(minutes=10))

with DAG(
    dag_id="advise",
    description="Recommend state partitions and cores for each job, from its load.",
    doc_md=(
        "One task a job says what it recommends, why, and what stands against doing it, in its log and as XCom"
        " `advice`. It triggers `rescale` only for a job whose YAML says `advisor.apply: true`, and then within"
        " `cool_down`, the limits and `per_day`. Has no schedule unless `STREAMWARDEN_ADVISE_SCHEDULE` gives one, such"
        " as `*/15 * * * *`: each run is a task a job."
    ),
    schedule=os.environ.get("STREAMWARDEN_ADVISE_SCHEDULE") or None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["streamwarden", "operations"],
):
    AdviseOperator.partial(
        task_id="advise",
        pre_execute=known_keys_only(),
        map_index_template="{{ task.job }}",
        execution_timeout=timedelta(minutes=10),
    ).expand(job=job_names())
