"""Carrying out the verdicts that end a job's run: it failed for good, or its state has reached its limit."""

from __future__ import annotations

from streamwarden.control import running
from streamwarden.control.documents import ErrorInfo
from streamwarden.control.savepoints.manifest import Origin
from streamwarden.control.savepoints.take import take
from streamwarden.control.supervision import (
    Action,
    Observation,
    Phase,
    Verdict,
    ask_to_stop,
    clear_ending,
    end_stuck,
    kill_silent,
    record_ending,
)
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["put_down"]


def put_down(workspace: Workspace, seen: Observation, verdict: Verdict, *, by: str, timeout: float = 300) -> ErrorInfo:
    """Leave a job down that failed or reached a limit, and return the error that says so.

    After FAIL a driver that still lives is stuck, and killed, and so is a silent one, which would go on unwatched when
    it wakes; what is wanted of the job stays as it was. After SUSPEND the job is suspended between batches, with a
    savepoint if the verdict says so. One that can't be taken leaves the job suspended all the same, at the limit that
    it has reached, and the error says so. What was observed is then past: who tells what became of the driver observes
    anew.

    Parameters
    ----------
    by
        Who carries it out.
    timeout
        Seconds that a driver may take to stop.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT`` or ``OPERATION_RUNNING``: the next look tries again, also where the driver has stopped since.
    """
    error = verdict.error or ErrorInfo.of(StreamwardenError("DRIVER_DIED", seen.reason))
    if verdict.action is Action.FAIL:
        if seen.phase.alive:
            end_stuck(workspace, seen, by=by, why=verdict.why)
        elif seen.phase is Phase.SILENT and not kill_silent(seen):
            # On another machine: nobody has taken its lease, so it would renew that and work on.
            ask_to_stop(workspace, seen, by=by, why=verdict.why)
        record_ending(workspace, seen, verdict, error)
        return error
    # Before the stop: it may take longer than is waited for, and whoever looks next must not find a job that somebody
    # has merely suspended.
    record_ending(workspace, seen, verdict, error)
    running.stop(workspace, seen.job, by=by, reason=verdict.why, incarnation=seen.incarnation, timeout=timeout)
    what = error.what
    if verdict.savepoint:
        try:
            made = take(workspace, seen.job, origin=Origin.SUSPEND, by=by, note=verdict.why)
            what = f"{what}. Savepoint {made.id} at batch {made.batch}"
        except StreamwardenError as failed:
            # Not started again, as by a savepoint with a stop: it would reach its limit with the next batch, for ever.
            what = f"{what}. Suspended without a savepoint: {failed.code}: {failed.what}"
    clear_ending(workspace, seen.job)
    return error.model_copy(update={"what": what})
