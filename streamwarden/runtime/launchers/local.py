"""Drivers as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.spec import JobSpec
from streamwarden.model.status import Launch
from streamwarden.runtime import spares
from streamwarden.runtime.launchers.interface import FoundDriver, Launcher, StartState
from streamwarden.runtime.processes import is_alive, kill, process_of
from streamwarden.runtime.spares import SPEC, STARTING, Assignment, Spare
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.layout import CONSOLE_LOG, SPARES
from streamwarden.store.workspace import Workspace

__all__ = ["LocalLauncher", "driver_process", "end_orphan", "order_spare", "start_here"]

_SPARE_S = 60.0
"""Seconds until a spare's process must be there: it only starts Python and forks."""

DRIVER_MODULE_ENV = "STREAMWARDEN_DRIVER_MODULE"
"""Replaces ``streamwarden.driver``: for tests, and for stand-ins that speak the control protocol without Spark."""


class LocalLauncher(Launcher):
    """Starts drivers as processes of this machine, detached from the process that starts them.

    A process is found again by its id, its start time and the machine's boot, which the launch document and the
    heartbeat name.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @override
    def start(self, job: str, launch: Launch) -> None:
        """Start the process. Kills the remaining JVM of a driver that was killed; see :func:`end_orphan`."""
        start_here(self._workspace, job, launch)

    @override
    def find(self, job: str, incarnation: str) -> FoundDriver:
        """Look for the process on this machine; one on another machine is unknown."""
        documents = JobDocuments(self._workspace.storage, job)
        process = _process(documents, incarnation)
        if process is None:
            return FoundDriver(StartState.UNKNOWN)
        lives = is_alive(process)
        if lives is None:
            return FoundDriver(StartState.UNKNOWN, reason=f"its process is on {process.host}")
        if lives:
            return FoundDriver(StartState.STARTED)
        code: ErrorCode = "DRIVER_DIED" if documents.heartbeat(incarnation).read() else "DRIVER_DID_NOT_START"
        died = StreamwardenError(code, f"incarnation {incarnation}, pid {process.pid}")
        return FoundDriver(StartState.ENDED, reason=f"its process {process.pid} is gone", error=died)

    @override
    def kill(self, job: str, incarnation: str) -> bool:
        """Kill the process with its children, if it is on this machine."""
        process = _process(JobDocuments(self._workspace.storage, job), incarnation)
        return process is not None and kill(process)

    @override
    def logs(self, job: str, incarnation: str, lines: int) -> str | None:
        """Return None: `streamwarden logs` reads the files."""
        return None


def start_here(workspace: Workspace, job: str, launch: Launch) -> ProcessRef:
    """Start a launched driver on this machine, and write its process to the launch document.

    If it can't be written, the process is killed: who asked for it will hear that it did not start.
    """
    documents = JobDocuments(workspace.storage, job)
    end_orphan(documents)
    taken = launch.spec and spares.take(workspace, launch.spec, Assignment(job=job, incarnation=launch.incarnation))
    process = taken.process if taken else _started(workspace, job, launch.incarnation)
    try:
        documents.launch(launch.incarnation).write(launch.model_copy(update={"process": process}))
    except (OSError, StreamwardenError):
        kill(process)
        raise
    return process


def _process(documents: JobDocuments, incarnation: str) -> ProcessRef | None:
    heartbeat = documents.heartbeat(incarnation).read()
    if heartbeat is not None:
        return heartbeat.process
    launch = documents.launch(incarnation).read()
    return launch.process if launch is not None else None


def _started(workspace: Workspace, job: str, incarnation: str) -> ProcessRef:
    logs = workspace.log_dir(job, incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / CONSOLE_LOG).open("ab") as console:
        process = driver_process(workspace, job, incarnation, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    return process_of(process.pid)


def order_spare(workspace: Workspace, spec: JobSpec, fit: str, environment: Mapping[str, str]) -> str:
    """Start a spare's process, and return its id; it is ready much later.

    It is nobody's child: what kills a driver with its children leaves the spare alone.

    Parameters
    ----------
    spec
        The job whose size it has, and which it rehearses.
    fit, environment
        What it fits, see :func:`~streamwarden.runtime.spares.fit_of`; and its environment.

    Raises
    ------
    subprocess.SubprocessError
        If it does not come up.
    """
    spare = new_id()
    folder, logs = workspace.scratch_dir(SPARES, spare), workspace.log_dir(SPARES, spare)
    folder.mkdir(parents=True)
    logs.mkdir(parents=True)
    (folder / SPEC).write_text(spec.model_dump_json(), encoding="utf-8")
    with (logs / CONSOLE_LOG).open("ab") as console:
        parent = driver_process(
            workspace,
            SPARES,
            spare,
            "--spare",
            environment=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=console,
        )
    said, _ = parent.communicate(timeout=_SPARE_S)
    if parent.returncode or not said.strip().isdigit():
        raise subprocess.SubprocessError(f"its process ended with {parent.returncode}; see {logs}")
    described = Spare(id=spare, process=process_of(int(said)), fit=fit, memory=spec.resources.memory)
    spares.write(folder / STARTING, described)
    return spare


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
    workspace: Workspace,
    job: str,
    incarnation: str,
    *options: str,
    module: str | None = None,
    environment: Mapping[str, str] | None = None,
    **streams: Any,
) -> subprocess.Popen[str]:
    """Start a driver's process only; does not write any document.

    Parameters
    ----------
    options
        Further arguments.
    module
        The module to run in place of the driver.
    environment
        Its environment; default this process's.
    streams
        The three standard streams, as for Popen.
    """
    module = module or os.environ.get(DRIVER_MODULE_ENV) or "streamwarden.driver"
    command = [sys.executable, "-m", module, "--profile", workspace.profile.name]
    command += ["--config", str(workspace.config), "--root", str(workspace.root)]
    command += ["--job", job, "--incarnation", incarnation, *options]
    return subprocess.Popen(
        command,
        text=True,
        # A session of its own: the driver outlives the Airflow task, and no Ctrl-C or group signal reaches it.
        start_new_session=True,
        cwd=workspace.config.parent,
        env={**(os.environ if environment is None else environment), "PYTHONUNBUFFERED": "1"},
        **streams,
    )
