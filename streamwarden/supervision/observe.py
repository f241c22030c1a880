"""What a job is doing, concluded from its documents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from streamwarden.errors import StreamwardenError
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.status import (
    Desired,
    ErrorInfo,
    Exit,
    Heartbeat,
    Launch,
    Operation,
    Progress,
    utc_now,
)
from streamwarden.runtime.lease import lease_is_live
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["START_TIMEOUT", "Observation", "Phase", "observe", "process_of_driver"]

START_TIMEOUT = timedelta(seconds=90)
"""How long a launched process may take to its first heartbeat. 90 s: a JVM and Python on a machine under heavy load.
Where leases are long, it may take longer."""

_AFTER_LEASE = timedelta(seconds=30)
"""How much longer than a lease it may take at least: before it speaks, it waits until a dead driver's has run out, and
2 s more. The rest of the 30 s is for its own start."""


class Phase(StrEnum):
    """What a job is doing."""

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
        """Whether a driver process does the job's work now, as far as it can be told."""
        return self in _ALIVE


_ALIVE = {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.RETRYING, Phase.STOPPING}


@dataclass(frozen=True)
class Observation:
    """A job as its documents show it at one moment.

    Parameters
    ----------
    phase
        What it is doing.
    reason
        Why this phase was concluded, in words.
    since
        When it was last known to be otherwise: the exit, or the last sign of life.
    error
        The last error, for the phases that have one.
    operation
        What is being done to the job, such as a restore, while it is.
    asked_at
        For a driver that lives though its job is suspended: when it was first asked to stop; None if it never was.
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


def observe(workspace: Workspace, job: str) -> Observation:
    """Read a job's documents and conclude what it is doing. Writes nothing."""
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
    phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now)
    if phase is Phase.DEAD:
        # It may have written its end between the two looks, and then its last error says more.
        ended = documents.exit(incarnation).read()
        phase, reason, since, error = _conclude(workspace, incarnation, launch, heartbeat, ended, now)
    if operation is None and not phase.alive:
        # One that has begun since is why it is down.
        operation = active_operation(workspace, job)
    asked: list[datetime] = []
    if phase.alive and desired.state == "suspended":
        # Only then: a listing at each look of every job would cost more than it tells.
        asked = [request.at for request in documents.open_requests(incarnation)]
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
        asked_at=min(asked, default=None),
    )


def process_of_driver(seen: Observation) -> ProcessRef | None:
    """Return the process of the driver that was observed, as far as it is known."""
    return seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None


def is_here(seen: Observation) -> bool:
    """Tell whether the driver that was observed is a process of this machine, which can be killed."""
    process = process_of_driver(seen)
    return process is not None and is_alive(process) is not None


def current_incarnation(documents: JobDocuments) -> str | None:
    lease = documents.lease.read()
    # Of two drivers started at once the newer may be the one that was refused: the holder is the current one.
    # One that has written its end and not given it back yet is no longer it, if another was launched after it.
    if lease is not None and lease_is_live(lease) and documents.exit(lease.incarnation).read() is None:
        return lease.incarnation
    launched = documents.incarnations()
    for incarnation in reversed(launched):
        ended = documents.exit(incarnation).read()
        # One that was refused the lease never was the job's driver; what became of the holder counts.
        if ended is None or ended.error is None or ended.error.code != "LEASE_HELD":
            return incarnation
    return launched[-1] if launched else None


def _conclude(
    workspace: Workspace,
    incarnation: str,
    launch: Launch | None,
    heartbeat: Heartbeat | None,
    ended: Exit | None,
    now: datetime,
) -> tuple[Phase, str, datetime, ErrorInfo | None]:
    if ended is not None:
        if ended.outcome == "stopped":
            return Phase.STOPPED, f"stopped after batch {ended.batch}", ended.at, None
        what = f"{ended.error.code}: {ended.error.what.splitlines()[0]}" if ended.error else "failed"
        return Phase.FAILED, what, ended.at, ended.error
    process = heartbeat.process if heartbeat else launch.process if launch else None
    last_sign = heartbeat.at if heartbeat else launch.at if launch else now
    if process is not None and is_alive(process) is False:
        code = "DRIVER_DIED" if heartbeat else "DRIVER_DID_NOT_START"
        died = StreamwardenError(code, f"incarnation {incarnation}, pid {process.pid}")
        return Phase.DEAD, f"its process {process.pid} is gone", last_sign, ErrorInfo.of(died)
    limit = workspace.profile.lease if heartbeat else max(START_TIMEOUT, workspace.profile.lease + _AFTER_LEASE)
    age = now - last_sign
    if age > limit:
        silent = StreamwardenError(
            "DRIVER_SILENT", f"incarnation {incarnation}: nothing for {age.total_seconds():.0f} s"
        )
        return Phase.SILENT, f"no heartbeat for {age.total_seconds():.0f} s", last_sign, ErrorInfo.of(silent)
    if heartbeat is None:
        return Phase.STARTING, "launched, no heartbeat yet", last_sign, None
    # A driver's own states are phases of its job, by the same names.
    phase = Phase(heartbeat.state.value)
    return phase, heartbeat.reason or phase.value, heartbeat.at, None
