"""Observe a job: conclude its phase from its documents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from streamwarden.errors import ErrorCode, StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.progress import Progress
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import Desired, Exit, Heartbeat, Launch
from streamwarden.runtime.launchers.interface import FoundDriver, StartState
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.runtime.lease import lease_is_live
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.held_tables import HeldTable, held_tables

__all__ = [
    "POLL_S",
    "START_TIMEOUT",
    "Observation",
    "Phase",
    "current_incarnation",
    "is_here",
    "observe",
    "process_of_driver",
]

START_TIMEOUT = timedelta(seconds=90)
"""How long a launched process may take to its first heartbeat. 90 s: a JVM and Python on a machine under heavy load.
Longer with long leases: see :data:`_AFTER_LEASE`."""

_MISSED = 3
"""So many heartbeats must be missing before the launcher is asked: a driver's writes are late now and then."""

POLL_S = 0.25
"""Seconds between two observations while somebody waits for the job."""

_AFTER_LEASE = timedelta(seconds=30)
"""The least time that a start may take beyond a lease. Before its first heartbeat, a driver waits until a dead driver's
lease expires, and 2 s more. The rest of the 30 s is for its own start."""


class Phase(StrEnum):
    """The phase of a job."""

    NOT_DEPLOYED = "not deployed"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DEAD = "dead"
    SILENT = "silent"

    @property
    def alive(self) -> bool:
        """Whether a driver process runs the job now, as far as is known."""
        return self in _ALIVE


_ALIVE = {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.RETRYING, Phase.STOPPING}


@dataclass(frozen=True)
class Observation:
    """A job as its documents show it at one moment.

    Parameters
    ----------
    phase
        The phase of the job.
    reason
        Why this phase was concluded, in words.
    since
        When the job was last known to be in another phase: the exit, or the last sign of life.
    error
        The last error, for the phases that have an error.
    operation
        The operation that works on the job now, such as a restore.
    asked_at
        For a living driver of a suspended job: when it was asked to stop; None without a request.
    held
        The job's tables that the gate holds.
    """

    job: str
    phase: Phase
    reason: str
    since: datetime
    desired: Desired | None = None
    incarnation: str | None = None
    launch: Launch | None = None
    heartbeat: Heartbeat | None = None
    progress: Progress | None = None
    exit: Exit | None = None
    error: ErrorInfo | None = None
    operation: Operation | None = None
    asked_at: datetime | None = None
    held: tuple[HeldTable, ...] = ()


def observe(workspace: Workspace, job: str) -> Observation:
    """Read a job's documents and conclude its phase. Writes nothing."""
    documents = JobDocuments(workspace.storage, job)
    now = utc_now()
    operation = active_operation(workspace, job)
    desired = documents.desired.read()
    incarnation = current_incarnation(documents)
    if desired is None or incarnation is None:
        return Observation(job, Phase.NOT_DEPLOYED, "no driver was ever launched", now, desired=desired)
    launch = documents.launch(incarnation).read()
    # Read before the exit, so that a driver that ends in between shows as ended.
    heartbeat = documents.heartbeat(incarnation).read()
    progress = documents.progress(incarnation).read()
    ended = documents.exit(incarnation).read()
    found = FoundDriver(StartState.UNKNOWN)
    if ended is None and _is_quiet(workspace, heartbeat, now):
        found = launcher_of(workspace).find(job, incarnation)
    phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now, found)
    if phase is Phase.DEAD:
        # The driver may have written its exit between the two reads; its last error then says more.
        ended = documents.exit(incarnation).read()
        phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now, found)
    if operation is None and not phase.alive:
        # An operation that started since is the reason that the job is down.
        operation = active_operation(workspace, job)
    # Only then: otherwise nothing depends on it, and each observation would cost one read more.
    asked = documents.stop(incarnation).read() if phase.alive and desired.state == "suspended" else None
    return Observation(
        job=job,
        phase=phase,
        reason=reason,
        since=since,
        desired=desired,
        incarnation=incarnation,
        launch=launch,
        heartbeat=heartbeat,
        progress=progress,
        exit=ended,
        error=error,
        operation=operation,
        asked_at=asked.at if asked else None,
        held=held_tables(workspace, desired.spec),
    )


def process_of_driver(seen: Observation) -> ProcessRef | None:
    """Return the process of the observed driver, or None if it is unknown."""
    return seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None


def is_here(seen: Observation) -> bool:
    """Return whether the observed driver is a process on this machine."""
    process = process_of_driver(seen)
    return process is not None and is_alive(process) is not None


def current_incarnation(documents: JobDocuments) -> str | None:
    """Return the incarnation that a job's state is concluded from; None if none was ever launched."""
    lease = documents.lease.read()
    # Of two drivers started at once, the newer may have been refused the lease: the lease holder is current.
    # A holder that wrote its exit and has not released the lease yet is not current if another was launched after it.
    if lease is not None and lease_is_live(lease) and documents.exit(lease.incarnation).read() is None:
        return lease.incarnation
    launched = documents.incarnations()
    for incarnation in reversed(launched):
        ended = documents.exit(incarnation).read()
        # A driver that was refused the lease never was the job's driver: the holder's end counts.
        if ended is None or ended.error is None or ended.error.code != "LEASE_HELD":
            return incarnation
    return launched[-1] if launched else None


def _is_quiet(workspace: Workspace, heartbeat: Heartbeat | None, now: datetime) -> bool:
    """Whether only the launcher can say more: a driver that lives is seen by its heartbeat, for one read less."""
    # A process of this machine is looked at in any case.
    if workspace.profile.launcher == "local":
        return False
    return heartbeat is None or now - heartbeat.at > _MISSED * workspace.profile.heartbeat


def _conclude(
    workspace: Workspace,
    incarnation: str,
    launch: Launch | None,
    heartbeat: Heartbeat | None,
    ended: Exit | None,
    now: datetime,
    found: FoundDriver,
) -> tuple[Phase, str, datetime, ErrorInfo | None]:
    if ended is not None:
        if ended.outcome == "stopped":
            return Phase.STOPPED, f"stopped after batch {ended.batch}", ended.at, None
        what = f"{ended.error.code}: {ended.error.what.splitlines()[0]}" if ended.error else "failed"
        return Phase.FAILED, what, ended.at, ended.error
    if heartbeat is None and found.state is StartState.WAITING:
        return Phase.STARTING, found.reason, found.since or now, None
    process = heartbeat.process if heartbeat else launch.process if launch else None
    last_sign = _last_sign(launch, heartbeat, found) or now
    code: ErrorCode = "DRIVER_DIED" if heartbeat else "DRIVER_DID_NOT_START"
    if process is not None and is_alive(process) is False:
        died = StreamwardenError(code, f"incarnation {incarnation}, pid {process.pid}")
        return Phase.DEAD, f"its process {process.pid} is gone", last_sign, ErrorInfo.of(died)
    if found.state is StartState.ENDED:
        died = found.error or StreamwardenError(code, f"incarnation {incarnation}: {found.reason or 'ended'}")
        return Phase.DEAD, found.reason or "its launcher says that it has ended", last_sign, ErrorInfo.of(died)
    limit = workspace.profile.lease if heartbeat else max(START_TIMEOUT, workspace.profile.lease + _AFTER_LEASE)
    age = now - last_sign
    if age > limit:
        silent = StreamwardenError(
            "DRIVER_SILENT", f"incarnation {incarnation}: no heartbeat for {age.total_seconds():.0f} s"
        )
        return Phase.SILENT, f"no heartbeat for {age.total_seconds():.0f} s", last_sign, ErrorInfo.of(silent)
    if heartbeat is None:
        return Phase.STARTING, "launched, no heartbeat yet", last_sign, None
    # A driver's states are phases of its job, with the same names.
    phase = Phase(heartbeat.state.value)
    return phase, heartbeat.reason or phase.value, heartbeat.at, None


def _last_sign(launch: Launch | None, heartbeat: Heartbeat | None, found: FoundDriver) -> datetime | None:
    if heartbeat is not None:
        return heartbeat.at
    if found.state is StartState.STARTED and found.since is not None:
        return found.since
    return launch.at if launch is not None else None
