"""Jobs whose YAML was removed while they were running: the drivers run on as deployed, and no DAG supervises them."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.store.config import job_names
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.driver_control import deployed_jobs
from streamwarden.supervision.observe import Phase, observe

__all__ = ["is_described", "jobs_to_show", "undescribed"]


def is_described(workspace: Workspace, job: str) -> bool:
    """Return whether the file ``config/jobs/JOB.yaml`` exists."""
    # Not by the list of all files, which would be read once for each job of a list.
    return "/" not in job and (workspace.config / "jobs" / f"{job}.yaml").is_file()


def undescribed(job: str) -> str:
    """Return the message for a job whose YAML was removed."""
    return f"not described any more: config/jobs/{job}.yaml is gone, and so is its DAG"


def jobs_to_show(workspace: Workspace) -> list[str]:
    """Return the sorted names of jobs with a YAML file, and of other jobs that must run or whose driver runs."""
    names = set(job_names(workspace.config))
    for job in set(deployed_jobs(workspace)) - names:
        try:
            seen = observe(workspace, job)
        except StreamwardenError as error:
            if error.code != "DOCUMENT_INVALID":
                raise
            # Whether the job must run is unknown; it is shown with its error.
            names.add(job)
            continue
        wanted = seen.desired is not None and seen.desired.state == "running"
        if wanted or seen.phase.alive or seen.phase is Phase.SILENT:
            names.add(job)
    return sorted(names)
