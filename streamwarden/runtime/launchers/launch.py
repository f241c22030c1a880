"""Start drivers by the launcher of their profile."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError, of_file_system
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import Desired, Exit, Launch
from streamwarden.runtime.launchers.hosts import HostLauncher
from streamwarden.runtime.launchers.interface import Launcher
from streamwarden.runtime.launchers.kubernetes import KubernetesLauncher
from streamwarden.runtime.launchers.local import LocalLauncher
from streamwarden.runtime.launchers.yarn import YarnLauncher
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace

__all__ = ["launch_driver", "launcher_of"]


def launcher_of(workspace: Workspace) -> Launcher:
    """Return the launcher that the profile names."""
    match workspace.profile.launcher:
        case "local":
            return LocalLauncher(workspace)
        case "host":
            return HostLauncher(workspace)
        case "yarn":
            return YarnLauncher(workspace)
        case "kubernetes":
            return KubernetesLauncher(workspace)


def launch_driver(workspace: Workspace, desired: Desired, *, by: str, reason: str) -> str:
    """Start a driver for a job, independent of this process, and return its incarnation. Does not wait.

    Does not check for another driver: the lease decides, and the loser exits with ``LEASE_HELD``.

    Parameters
    ----------
    workspace
        The workspace of the job.
    desired
        The desired state, whose spec the driver runs.
    by, reason
        Actor and reason of the start; written to the launch document.

    Raises
    ------
    StreamwardenError, OSError
        If the driver can't be started; this is also written as the driver's exit, which keeps it from running.
    """
    incarnation = new_id()
    launch = Launch(
        incarnation=incarnation, at=utc_now(), by=by, reason=reason, digest=desired.digest, spec=desired.spec
    )
    documents = JobDocuments(workspace.storage, desired.job)
    # Written before the process starts: a driver that dies at once must have a record.
    documents.launch(incarnation).write(launch)
    try:
        launcher_of(workspace).start(desired.job, launch)
    except (StreamwardenError, OSError) as raised:
        # Otherwise observers would wait for its first heartbeat.
        error = of_file_system(raised) if isinstance(raised, OSError) else raised
        refused = error or StreamwardenError("DRIVER_DID_NOT_START", f"{type(raised).__name__}: {raised}")
        ended = Exit(incarnation=incarnation, at=utc_now(), outcome="failed", error=ErrorInfo.of(refused))
        documents.exit(incarnation).write(ended)
        raise
    return incarnation
