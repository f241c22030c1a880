"""Starting driver processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from streamwarden.model.status import Desired, Launch, utc_now
from streamwarden.runtime.processes import is_alive, kill, process_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace

__all__ = ["driver_process", "end_orphan", "launch_driver"]

DRIVER_MODULE_ENV = "STREAMWARDEN_DRIVER_MODULE"
"""Replaces ``streamwarden.driver``: for tests, and for stand-ins that speak the control protocol without Spark."""


def launch_driver(workspace: Workspace, desired: Desired, *, by: str, reason: str) -> str:
    """Start a driver process for a job, detached from this one, and return its incarnation.

    Does not look whether another driver runs: the lease decides that, and the loser says so. Does not wait. Ends what
    is left of one that was killed; see :func:`end_orphan`.

    Parameters
    ----------
    workspace
        Where it runs.
    desired
        The desired state, whose spec the driver runs.
    by, reason
        Who starts it and why; kept in its launch document.
    """
    incarnation = new_id()
    documents = JobDocuments(workspace.storage, desired.job)
    end_orphan(documents)
    logs = workspace.log_dir(desired.job, incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        incarnation=incarnation, at=utc_now(), by=by, reason=reason, digest=desired.digest, spec=desired.spec
    )
    # Written before the process is there: a driver that dies at once must not be one that never was.
    documents.launch(incarnation).write(launch)
    with (logs / "console.log").open("ab") as console:
        process = driver_process(
            workspace, desired.job, incarnation, stdin=subprocess.DEVNULL, stdout=console, stderr=console
        )
    documents.launch(incarnation).write(launch.model_copy(update={"process": process_of(process.pid)}))
    return incarnation


def end_orphan(documents: JobDocuments) -> bool:
    """Kill the JVM of a driver of this machine that is dead; return whether there was one.

    As a rule it ends by itself, a moment after its driver. One that is frozen, or collects garbage all the time, does
    not: its heap would stay beside its successor's, which waits for the lease until that has run out.
    """
    lease = documents.lease.read()
    if lease is None or lease.jvm is None or is_alive(lease.process) is not False:
        return False
    return kill(lease.jvm)


def driver_process(
    workspace: Workspace, job: str, incarnation: str, *options: str, **streams: Any
) -> subprocess.Popen[str]:
    """Start a driver's process, and no more: nobody knows of it yet.

    Parameters
    ----------
    options
        Further arguments.
    streams
        Its three streams, as for Popen.
    """
    module = os.environ.get(DRIVER_MODULE_ENV) or "streamwarden.driver"
    command = [sys.executable, "-m", module, "--profile", workspace.profile.name]
    command += ["--config", str(workspace.config), "--root", str(workspace.root)]
    command += ["--job", job, "--incarnation", incarnation, *options]
    return subprocess.Popen(
        command,
        text=True,
        # A session of its own: it outlives the Airflow task, and no Ctrl-C or group signal reaches it.
        start_new_session=True,
        cwd=workspace.config.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **streams,
    )
