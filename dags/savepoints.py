"""DAGs for savepoints: take on demand or on a schedule, verify, and remove expired ones."""

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from streamwarden.airflow.describe import periodic_dag_id, periodic_savepoints, schedule_text
from streamwarden.airflow.form_options import offered_jobs
from streamwarden.airflow.operators.base import ALL_JOBS
from streamwarden.airflow.operators.ensure_supervised import EnsureSupervisedAfterSavepointOperator
from streamwarden.airflow.operators.housekeeping import HousekeepingOperator
from streamwarden.airflow.operators.savepoint import (
    ALL_SAVEPOINTS,
    PeriodicSavepointOperator,
    SavepointOperator,
)
from streamwarden.airflow.operators.verify import VerifyOperator
from streamwarden.airflow.run_conf import known_keys_only
from streamwarden.store.config import job_names

# For schedules. No catch-up: a savepoint of the past can't be taken now.
SCHEDULED = {"start_date": datetime(2025, 1, 1, tzinfo=UTC), "catchup": False, "max_active_runs": 1}

# A million keys take seconds. A task that takes longer than this hangs, and its JVM is ended.
VERIFY_TIMEOUT = timedelta(hours=2)

# What `take` returned.
TAKEN = "{{ ti.xcom_pull(task_ids='take')['id'] }}"

with DAG(
    dag_id="savepoint",
    description="Take a savepoint of a job, and optionally stop the job with it.",
    doc_md=(
        "A savepoint is a copy of the job's checkpoint at its newest committed batch, with all that DAG `restore`"
        " needs to start from it. A running job keeps running, unless it is to be stopped: then nothing is processed"
        " after the savepoint, and the job's `supervise` task succeeds. `take` returns the savepoint's id. `verify`"
        " checks it; only a verified savepoint can be `latest`."
    ),
    schedule=None,
    tags=["streamwarden", "savepoints"],
    params={
        "job": Param(type="string", enum=offered_jobs(), title="Job", description="The job to take a savepoint of."),
        "stop": Param(
            # Usually the job is to keep running.
            default=False,
            type="boolean",
            title="Stop the job with the savepoint",
            description="Stop it first. If the savepoint fails, the job is started again and supervised.",
        ),
        "verify": Param(
            default=True,
            type="boolean",
            title="Verify it",
            description="Read every file and the state back. This starts a JVM for some seconds.",
        ),
        "note": Param(default="", type=["null", "string"], title="Note", description="Kept with the savepoint."),
    },
):
    take = SavepointOperator(
        task_id="take",
        pre_execute=known_keys_only(),
        job="{{ params.job }}",
        stop="{{ params.stop }}",
        note="{{ params.note or '' }}",
    )
    verify = VerifyOperator(
        task_id="verify",
        job="{{ params.job }}",
        savepoint=TAKEN,
        wanted="{{ params.verify }}",
        execution_timeout=VERIFY_TIMEOUT,
    )
    # A teardown: it also runs after a failed `take`, which has started the stopped job again.
    supervise = EnsureSupervisedAfterSavepointOperator(
        task_id="supervise", job="{{ params.job }}", operation_task_id=take.task_id, stopped="{{ params.stop }}"
    )
    take >> [verify, supervise.as_teardown()]

with DAG(
    dag_id="verify_savepoints",
    description="Verify savepoints: every file, and the state.",
    doc_md=(
        "Fails if a savepoint is damaged, and names its damaged files. One JVM reads the state of all savepoints. Has"
        " no schedule unless `STREAMWARDEN_VERIFY_SCHEDULE` sets one, such as `@daily`: each run reads every byte of"
        " the savepoints."
    ),
    schedule=os.environ.get("STREAMWARDEN_VERIFY_SCHEDULE") or None,
    **SCHEDULED,
    tags=["streamwarden", "savepoints"],
    params={
        "job": Param(
            default=ALL_JOBS,
            type="string",
            enum=[ALL_JOBS, *job_names()],
            title="Job",
            description=f"The job whose savepoints are verified; `{ALL_JOBS}`: every job that has some.",
        ),
        "savepoint": Param(
            default=ALL_SAVEPOINTS,
            type="string",
            minLength=1,
            title="Savepoint",
            description=f"An id, a label, `latest` (the newest verified one), or `{ALL_SAVEPOINTS}`.",
        ),
    },
):
    VerifyOperator(
        task_id="verify",
        pre_execute=known_keys_only(),
        job="{{ params.job }}",
        savepoint="{{ params.savepoint }}",
        execution_timeout=VERIFY_TIMEOUT,
    )

with DAG(
    dag_id="housekeeping",
    description="Remove expired savepoints, old checkpoints, and leftovers of interrupted work.",
    doc_md=(
        "`savepoints.keep` of each job's deployed spec decides which savepoints expire. Never removed are the newest"
        " verified savepoint, labelled ones, and those in use; manual ones only if the job says so. Checkpoints that"
        " are no longer in force are removed, too. Once a day it also maintains the table `job_progress`. It starts"
        " no job. Runs hourly; `STREAMWARDEN_HOUSEKEEPING_SCHEDULE` sets another schedule, and an empty value means"
        " none."
    ),
    schedule=os.environ.get("STREAMWARDEN_HOUSEKEEPING_SCHEDULE", "@hourly") or None,
    **SCHEDULED,
    tags=["streamwarden", "savepoints"],
):
    HousekeepingOperator(task_id="housekeeping", pre_execute=known_keys_only(), execution_timeout=timedelta(hours=1))

for name in job_names():
    spec = periodic_savepoints(name)
    if spec is None:
        continue
    with DAG(
        dag_id=periodic_dag_id(name),
        description=f"Take a savepoint of {name}, {schedule_text(spec)}.",
        doc_md=(
            f"Schedule, from `savepoints` in `config/jobs/{name}.yaml`: {schedule_text(spec)} (UTC). If the file has"
            " changed since the last deploy, the *deployed* schedule counts. `take` is skipped, with the reason, if the"
            " job is not deployed, suspended, down, being restored, or has no new batch since its newest savepoint."
        ),
        schedule=spec.every or spec.cron,
        **SCHEDULED,
        tags=["streamwarden", "savepoints"],
    ) as dag:
        take_periodic = PeriodicSavepointOperator(
            task_id="take", pre_execute=known_keys_only(), job=name, planned=schedule_text(spec)
        )
        take_periodic >> VerifyOperator(
            task_id="verify",
            job=name,
            savepoint=TAKEN,
            wanted="{{ ti.xcom_pull(task_ids='take')['verify'] }}",
            execution_timeout=VERIFY_TIMEOUT,
        )
    # Under a name of its own: Airflow collects a module's DAGs from its globals.
    globals()[dag.dag_id] = dag
