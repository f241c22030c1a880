"""Start driver processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from streamwarden.model.record import utc_now
from streamwarden.model.status import Desired, Launch
from streamwarden.runtime.processes import is_alive, kill, process_of
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.layout import CONSOLE_LOG
from streamwarden.store.workspace import Workspace

__all__ = ["driver_process", "end_orphan", "launch_driver"]

DRIVER_MODULE_ENV = "STREAMWARDEN_DRIVER_MODULE"
"""Replaces ``streamwarden.driver``: for tests, and for stand-ins that speak the control protocol without Spark."""


def launch_driver(workspace: Workspace, desired: Desired, *, by: str, reason: str) -> str:
    """Start a driver process for a job, detached from this process, and return its incarnation.

    Does not check for another driver: the lease decides, and the loser exits with ``LEASE_HELD``. Does not wait. Kills
    the remaining JVM of a driver that was killed; see :func:`end_orphan`.

    Parameters
    ----------
    workspace
        The workspace of the job.
    desired
        The desired state, whose spec the driver runs.
    by, reason
        Actor and reason of the start; written to the launch document.
    """
    incarnation = new_id()
    documents = JobDocuments(workspace.storage, desired.job)
    end_orphan(documents)
    logs = workspace.log_dir(desired.job, incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        incarnation=incarnation, at=utc_now(), by=by, reason=reason, digest=desired.digest, spec=desired.spec
    )
    # Written before the process starts: a driver that dies at once must have a record.
    documents.launch(incarnation).write(launch)
    with (logs / CONSOLE_LOG).open("ab") as console:
        process = driver_process(
            workspace, desired.job, incarnation, stdin=subprocess.DEVNULL, stdout=console, stderr=console
        )
    documents.launch(incarnation).write(launch.model_copy(update={"process": process_of(process.pid)}))
    return incarnation


def end_orphan(documents: JobDocuments) -> bool:
    """Kill the JVM of a dead driver on this machine; return whether there was a JVM.

    As a rule the JVM ends by itself, a moment after its driver. A JVM that is frozen, or collects garbage all the time,
    does not. Its heap would stay beside its successor's heap, and the successor would wait until the lease expires.
    """
    lease = documents.lease.read()
    if lease is None or lease.jvm is None or is_alive(lease.process) is not False:
        return False
    return kill(lease.jvm)


def driver_process(
    workspace: Workspace, job: str, incarnation: str, *options: str, **streams: Any
) -> subprocess.Popen[str]:
    """Start a driver's process only; does not write any document.

    Parameters
    ----------
    options
        Further arguments.
    streams
        The three standard streams, as for Popen.
    """
    module = os.environ.get(DRIVER_MODULE_ENV) or "streamwarden.driver"
    command = [sys.executable, "-m", module, "--profile", workspace.profile.name]
    command += ["--config", str(workspace.config), "--root", str(workspace.root)]
    command += ["--job", job, "--incarnation", incarnation, *options]
    return subprocess.Popen(
        command,
        text=True,
        # A session of its own: the driver outlives the Airflow task, and no Ctrl-C or group signal reaches it.
        start_new_session=True,
        cwd=workspace.config.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **streams,
    )
