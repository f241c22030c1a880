"""Stop a job and take a savepoint of where it stopped."""

from __future__ import annotations

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import Desired
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.savepoints.take import Report, take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe

__all__ = ["savepoint_and_stop"]


def savepoint_and_stop(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    note: str = "",
    origin: Origin = Origin.SUSPEND,
    timeout: float = 300,
    report: Report | None = None,
) -> Manifest:
    """Suspend a job and take a savepoint of where it stopped: no row is processed after it.

    If the job is already suspended and down, it is left unchanged, including its stop time. If the savepoint fails, the
    job is started again, as Flink's stop-with-savepoint leaves a job running, unless another stop was requested since.
    A supervisor that saw the stop has ended; this does not ensure a new one.

    Parameters
    ----------
    timeout
        Seconds that the driver has to stop.

    Raises
    ------
    StreamwardenError
        As :func:`~.take.take`, or ``STOP_TIMED_OUT``: then the job is suspended, still without a savepoint.
    """
    was, reason = observe(workspace, job), note or f"savepoint ({origin})"
    # Or an earlier try of this take stopped it, and was killed before it could start it again.
    ran = was.desired is not None and (
        (was.desired.state == "running" and was.phase.alive) or _is_stop(was.desired, by=by, reason=reason)
    )
    if was.desired is not None and was.desired.state == "suspended" and was.phase in (Phase.STOPPED, Phase.FAILED):
        refuse_if_busy(workspace, job)
    else:
        _stop(workspace, job, by=by, reason=reason, timeout=timeout)
    try:
        return take(workspace, job, origin=origin, by=by, note=note, report=report)
    except BaseException:
        now = JobDocuments(workspace.storage, job).desired.read()
        if ran and now is not None and _is_stop(now, by=by, reason=reason):
            driver_control.start(workspace, job, by=by, reason="its savepoint failed")
        raise


def _is_stop(desired: Desired, *, by: str, reason: str) -> bool:
    """Return whether the desired state is the stop for this savepoint, and not a later request."""
    return (desired.state, desired.updated_by, desired.note) == ("suspended", by, reason)


def _stop(workspace: Workspace, job: str, *, by: str, reason: str, timeout: float) -> None:
    try:
        driver_control.stop(workspace, job, by=by, reason=reason, timeout=timeout)
    except StreamwardenError as error:
        if error.code != "STOP_TIMED_OUT":
            raise
        remedy = "No savepoint was taken. The job is suspended, and its driver ends after its batch. "
        remedy += f"Repeat the command then, or now with a larger --timeout. {error.remedy}"
        raise StreamwardenError(error.code, error.what, remedy=remedy) from error
