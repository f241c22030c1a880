"""The project's DAGs in Airflow. All operations but those on the job ``driven`` fail, and their errors have secrets."""

import runpy
from pathlib import Path
from typing import Any

from streamwarden.airflow.operators import deploy, restore, savepoint
from tests.airflow.leaks import break_off, refuse

deploy_job = deploy.deploy_job


def deploy_or_refuse(workspace: Any, job: str, **more: Any) -> Any:
    return deploy_job(workspace, job, **more) if job == "driven" else refuse()


deploy.deploy_job = deploy_or_refuse
restore.restore = refuse
savepoint.take = break_off

for name in ("jobs", "operations", "savepoints", "quality"):
    runpy.run_path(str(Path(__file__).resolve().parents[3] / "dags" / f"{name}.py"))
