"""Jobs whose YAML was removed while they were to run: their drivers go on as they were deployed, and no DAG watches."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.store.config import job_names
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.driver_control import deployed_jobs
from streamwarden.supervision.observe import Phase, observe

__all__ = ["is_described", "jobs_to_show", "undescribed"]


def is_described(workspace: Workspace, job: str) -> bool:
    """Tell whether there is a file ``config/jobs/JOB.yaml``."""
    return job in job_names(workspace.config)


def undescribed(job: str) -> str:
    """Return in words what the matter is with a job that is described no more."""
    return f"not described any more: config/jobs/{job}.yaml is gone, and its DAG with it"


def jobs_to_show(workspace: Workspace) -> list[str]:
    """Return the names of the jobs that are described, and of others that are to run, or whose driver does; sorted."""
    names = set(job_names(workspace.config))
    for job in set(deployed_jobs(workspace)) - names:
        try:
            seen = observe(workspace, job)
        except StreamwardenError as error:
            if error.code != "DOCUMENT_INVALID":
                raise
            # It can't be told whether it is to run; it is shown with what is wrong.
            names.add(job)
            continue
        wanted = seen.desired is not None and seen.desired.state == "running"
        if wanted or seen.phase.alive or seen.phase is Phase.SILENT:
            names.add(job)
    return sorted(names)
