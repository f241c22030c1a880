"""DAGs for running jobs: stop, restore, rescale, cancel a rescale, watch and advise."""

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
    description="Stop one job, or all jobs, between two batches.",
    doc_md=(
        "The driver finishes the batch in flight and exits. No data is lost: the next deploy continues from there."
        " The job's `supervise` task then succeeds."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={
        "job": Param(
            # No default, so that a job is chosen deliberately.
            type="string",
            # Also jobs whose YAML was removed: they have no DAG of their own.
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
            description="How long to wait for the driver to exit. A stop that takes longer continues, but this run"
            " fails.",
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
    description="Start a job from a savepoint; roll back if it does not become healthy.",
    doc_md=(
        "Checks first, while the job runs, that the savepoint fits. Then it stops the job between two batches, takes"
        " a savepoint of its current state, prepares a new checkpoint, starts the job and waits for health. If the"
        " job does not become healthy, it is rolled back to its previous, untouched checkpoint, and this run fails"
        " with the reason. The job's own DAG run continues; if there is none, `supervise` triggers one.\n\nThe job"
        " starts with its current YAML. If `restore` is ended by hand, the job is on its old checkpoint or on the new"
        " one, never between them."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={
        "job": Param(type="string", enum=job_names(), title="Job", description="The job to restore."),
        "savepoint": Param(
            default="latest",
            type="string",
            minLength=1,
            # Suggestions, not a closed list: a savepoint may be newer than the last parsing of this file.
            examples=offered_savepoints(job_names()),
            title="Savepoint",
            description="`latest` (the job's newest verified savepoint), an id or a label. Clear the field to see the"
            " choices.",
        ),
        "outputs": Param(
            default="default",
            type="string",
            enum=["default", "rewind", "leave"],
            values_display={
                "default": "default: as on_restore of each table says",
                "rewind": "rewind: restore every table to the savepoint's version",
                "leave": "leave: keep the tables; replayed rows match existing ones by their keys",
            },
            title="Output tables",
            description="By default, tables with keys are left as they are, and tables without keys are restored to"
            " the savepoint's version. A table that another job streams from is never restored.",
        ),
        "suspended": Param(
            default=False,
            type="boolean",
            title="Leave it suspended",
            description="Don't start the job; its next deploy starts it from the savepoint. For a job whose source is"
            " damaged and is restored later.",
        ),
        "reason": Param(default="", type=["null", "string"], title="Reason", description="Kept with the job."),
        "health_timeout": Param(
            default=300,
            type="integer",
            minimum=1,
            maximum=3600,
            title="Health timeout (seconds)",
            description="How long the restored job may take to commit its first batch, or to find no new input.",
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
    # A teardown: it also runs after a restore that was ended by hand, and does not count for the run's state.
    supervise = EnsureSupervisedOperator(task_id="supervise", job="{{ params.job }}", operation_task_id=restore.task_id)
    restore >> supervise.as_teardown()

with DAG(
    dag_id="rescale",
    description="Change a job's partitions, cores, executors or memory, keeping its state; roll back if not healthy.",
    doc_md=(
        "Checks first, while the job runs, whether it can be rescaled, and starts the new driver's JVM. With"
        " `online`: takes a savepoint, repartitions a copy of its state while the job runs, verifies that the state"
        " is the same, and lets the copy follow the job batch by batch. Then the job stops between two batches, and"
        " the new driver takes over. With `offline`, or if the copy can't keep up: the job is stopped first. If"
        " the job does not become healthy, it is rolled back to its untouched checkpoint and its previous"
        " parallelism, and this run fails with the reason. The job's own DAG run continues.\n\nLeave a field empty to"
        " keep its value. A change of cores, executors or memory alone needs no copy. The new values replace the"
        " YAML's until somebody changes the same field there. If `rescale` is ended by hand, the job is in its old or"
        " its new state, never between them."
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
            description="Number of parts of the state, and of tasks that a batch can use.",
        ),
        "cores": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            title="Cores",
            description="Tasks that run at once: cores of the driver, or of all executors together.",
        ),
        "executors": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            maximum=1024,
            title="Executors",
            description="On a cluster: how many executors share the cores evenly.",
        ),
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
                "online": "online: repartition a copy while the job runs",
                "offline": "offline: stop the job first",
            },
            title="Mode",
            description="How state partitions are changed. Both modes end with the same state. Two drivers need"
            " memory at the same time, and for longer in the online mode.",
        ),
        "on_timeout": Param(
            default="roll back",
            type="string",
            enum=["roll back", "hold"],
            title="If it has not caught up in time",
            description="For a job that runs but is slow. A job that fails is always rolled back.",
        ),
        "reason": Param(default="", type=["null", "string"], title="Reason", description="Kept with the job."),
        "health_timeout": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            maximum=86400,
            title="Health timeout (seconds)",
            description="How long the job may take to commit its first batch, and to work off the input that arrived"
            " during the rescale. Empty: 300, or three of the job's trigger intervals if they are longer.",
        ),
        "approval": Param(
            # A person who fills in the form has decided already.
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
        executors="{{ params.executors }}",
        memory="{{ params.memory or '' }}",
        wanted="{{ params.approval }}",
        advised="{{ (dag_run.conf or {}).get('advised', False) }}",
    )
    rescale = RescaleOperator(
        task_id="rescale",
        job="{{ params.job }}",
        partitions="{{ params.partitions }}",
        cores="{{ params.cores }}",
        executors="{{ params.executors }}",
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
    description="Cancel a running rescale, as long as its new driver has not started.",
    doc_md=(
        "The rescale rolls back before its next step. The job keeps running, or is started again, as it was, and the"
        " rescale's own run fails with `OPERATION_CANCELLED`. Once the new driver has started, its health decides,"
        " and this run fails."
    ),
    schedule=None,
    tags=["streamwarden", "operations"],
    params={"job": Param(type="string", enum=job_names(), title="Job", description="The job that is being rescaled.")},
):
    CancelRescaleOperator(task_id="cancel", pre_execute=known_keys_only(), job="{{ params.job }}")

with DAG(
    dag_id="watch",
    description="Raise an alarm if a job that should run is not supervised.",
    doc_md=(
        "A job whose DAG is paused or has no run keeps running. But if its driver dies, it stays down, and nobody is"
        " notified. For each such job this DAG sends the alarm `unwatched` to the notifiers of `config/alerts.yaml`,"
        " and fails. It starts and stops nothing. It runs every five minutes; `STREAMWARDEN_WATCH_SCHEDULE` sets"
        " another schedule, and an empty value means none."
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
        "One task per job writes its recommendation, the reasons, and what prevents it, to its log and to XCom"
        " `advice`. It triggers `rescale` only if the job's YAML has `advisor.apply: true`, and within its"
        " `cool_down`, limits and `per_day`. It has no schedule unless `STREAMWARDEN_ADVISE_SCHEDULE` sets one, such"
        " as `*/15 * * * *`: each run starts a task per job."
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
