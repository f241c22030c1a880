"""One DAG per file in config/jobs: deploy the job, then supervise it for as long as it is wanted."""

import os

from airflow.sdk import DAG

from streamwarden.airflow.describe import dag_id_of, describe_job
from streamwarden.airflow.operators.deploy import DeployOperator
from streamwarden.airflow.operators.release import ReleaseOperator
from streamwarden.airflow.operators.supervise import SuperviseOperator
from streamwarden.airflow.run_conf import RELIEVES, known_keys_only
from streamwarden.store.config import job_names

for name in job_names():
    description, text = describe_job(name)
    with DAG(
        dag_id=dag_id_of(name),
        description=description,
        doc_md=text,
        schedule=None,
        # A second run waits for the first. If the first ends because the job was stopped, the second deploys nothing.
        max_active_runs=1,
        tags=["streamwarden", "job"],
    ) as dag:
        supervise = SuperviseOperator(
            task_id="supervise", job=name, retries=int(os.environ.get("STREAMWARDEN_SUPERVISE_RETRIES") or 1000)
        )
        # A teardown: it runs however supervise ended, and does not count for the run's state.
        release = ReleaseOperator(task_id="release", job=name).as_teardown()
        deploy = DeployOperator(task_id="deploy", pre_execute=known_keys_only(RELIEVES), job=name)
        deploy >> supervise >> release
    # Under a name of its own: Airflow collects a module's DAGs from its globals.
    globals()[dag.dag_id] = dag
