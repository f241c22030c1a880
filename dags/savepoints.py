"""Savepoints: taken by hand and by the clock, looked through, and removed when their time is over."""

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

# For schedules. The past isn't made up for: a savepoint of then can't be taken now.
SCHEDULED = {"start_date": datetime(2025, 1, 1, tzinfo=UTC), "catchup": False, "max_active_runs": 1}

# For a million keys it takes seconds; what takes longer than this hangs, and its JVM is ended.
VERIFY_TIMEOUT = timedelta(hours=2)

# What `take` returned.
TAKEN = "{{ ti.xcom_pull(task_ids='take')['id'] }}"

with DAG(
    dag_id="savepoint",
    description="Take a savepoint of a job, with or without stopping it.",
    doc_md=(
        "A copy of the job's checkpoint at its newest committed batch, with all that is needed to start from it: DAG"
        " `restore`. A running job goes on meanwhile, unless it is to be stopped with it: then nothing is processed"
        " after the savepoint, and the job's `supervise` task succeeds. `verify` looks through it; only a verified one"
        " is offered as `latest`. `take` returns its id."
    ),
    schedule=None,
    tags=["streamwarden", "savepoints"],
    params={
        "job": Param(type="string", enum=offered_jobs(), title="Job", description="The job to take a savepoint of."),
        "stop": Param(
            # A savepoint is mostly taken of a job that is to go on.
            default=False,
            type="boolean",
            title="Stop the job with the savepoint",
            description="Suspend it first. If the savepoint fails, the job is started again, and supervised.",
        ),
        "verify": Param(
            default=True,
            type="boolean",
            title="Verify it",
            description="Read every file and the state back, which starts a JVM for some seconds.",
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
    # A teardown: it also runs after a take that failed, and so has started again the job that it had stopped.
    supervise = EnsureSupervisedAfterSavepointOperator(
        task_id="supervise", job="{{ params.job }}", operation_task_id=take.task_id, stopped="{{ params.stop }}"
    )
    take >> [verify, supervise.as_teardown()]

with DAG(
    dag_id="verify_savepoints",
    description="Look through savepoints: every file, and the state read back.",
    doc_md=(
        "Fails, naming each damaged savepoint with its files. One JVM reads the state of all of them. Has no schedule"
        " unless `STREAMWARDEN_VERIFY_SCHEDULE` gives one, such as `@daily`: it reads every byte of them, so how often"
        " it pays is a matter of the place."
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
            description=f"Whose savepoints; `{ALL_JOBS}` means those of every job that has some.",
        ),
        "savepoint": Param(
            default=ALL_SAVEPOINTS,
            type="string",
            minLength=1,
            title="Savepoint",
            description=f"An id, a label, `latest` for the newest verified one, or `{ALL_SAVEPOINTS}`.",
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
    description="Remove the savepoints that retention lets go, and what interrupted work left.",
    doc_md=(
        "By `savepoints.keep` of each job's deployed spec. Never removes the newest verified one, one with a label, or"
        " one in use; manual ones only where the job says so. Checkpoints that are no longer in force go too. Hourly,"
        " unless `STREAMWARDEN_HOUSEKEEPING_SCHEDULE` says otherwise; an empty one means none. Once a day it also looks"
        " after the table `job_progress`. It starts nothing."
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
            f"As `savepoints` in `config/jobs/{name}.yaml` says: {schedule_text(spec)} (UTC). What is *deployed* counts"
            " where the file was changed since. `take` is skipped, with the reason, where there is nothing to take: the"
            " job is not deployed, suspended, down, being restored, or has no batch since the newest savepoint."
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
