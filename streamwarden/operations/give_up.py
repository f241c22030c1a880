"""Carry out the verdicts that end a job's run: the job failed for good, or its state reached its limit."""

from __future__ import annotations

from datetime import timedelta

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.savepoint import Origin
from streamwarden.savepoints.take import take
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import ask_to_stop, clear_ending, end_stuck, kill_silent, record_ending
from streamwarden.supervision.decide import Action, Verdict
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["put_down"]

_SAVEPOINT_PATIENCE = timedelta(minutes=10)
"""How long after the driver's end a savepoint with a retryable failure is retried. 10 minutes: a store that restarts or
throttles is available again by then. The job is down meanwhile in any case, and its checkpoint stays."""


def put_down(workspace: Workspace, seen: Observation, verdict: Verdict, *, by: str, timeout: float = 300) -> ErrorInfo:
    """Leave a job down that failed or reached a limit, and return the error to report.

    After FAIL, a living driver is stuck and is killed. A silent driver is killed too, since it would continue without a
    supervisor when it wakes. The desired state stays unchanged. After SUSPEND, the job is suspended between batches,
    with a savepoint if the verdict asks for it. If the savepoint fails, the job still stays suspended at its limit, and
    the error reports the failure; a retryable failure is retried for ten minutes from the driver's end. The observation
    is outdated after this call. Leaves a job alone that has moved on: another driver runs it, or the silent one woke.

    Parameters
    ----------
    by
        The actor.
    timeout
        Seconds that a driver may take to stop.

    Raises
    ------
    StreamwardenError
        Except after ``NOT_DEPLOYED``, the next observation decides again or retries, even if the driver has stopped:
        ``DOCUMENT_CONFLICT`` for a job that has moved on, ``STOP_TIMED_OUT``, ``OPERATION_RUNNING``, a store outage,
        and retryable failures of a savepoint.
    """
    _refuse_if_moved_on(seen, verdict, observe(workspace, seen.job))
    error = verdict.error or ErrorInfo.of(StreamwardenError("DRIVER_DIED", seen.reason))
    if verdict.action is Action.FAIL:
        if seen.phase.alive:
            end_stuck(workspace, seen, by=by, why=verdict.why)
        elif seen.phase is Phase.SILENT and not kill_silent(workspace, seen):
            # The driver is on another machine. Its lease was not acquired by another driver: it would renew and go on.
            ask_to_stop(workspace, seen, by=by, why=verdict.why)
        record_ending(workspace, seen, verdict, error)
        return error
    # Recorded before the stop, which may exceed the time-out: the next observer must not take the job for a job that a
    # user suspended.
    record_ending(workspace, seen, verdict, error)
    stopped = driver_control.stop(
        workspace, seen.job, by=by, reason=verdict.why, incarnation=seen.incarnation, timeout=timeout
    )
    _refuse_if_moved_on(seen, verdict, stopped)
    what = error.what
    if verdict.savepoint:
        try:
            made = take(workspace, seen.job, origin=Origin.SUSPEND, by=by, note=verdict.why)
            what = f"{what}. Savepoint {made.id} at batch {made.batch}"
        except (OSError, StreamwardenError) as failed:
            reason = _as_ours(failed, seen.job)
            # Measured from the driver's end, which is constant: the recorded ending gets a new time at each call.
            if reason.retryable and utc_now() - stopped.since < _SAVEPOINT_PATIENCE:
                raise reason from failed
            # Not started again, unlike after a failed savepoint with a stop: each first batch would reach the limit.
            what = f"{what}. Suspended without a savepoint: {reason.code}: {reason.what}"
    clear_ending(workspace, seen.job)
    return error.model_copy(update={"what": what})


def _refuse_if_moved_on(seen: Observation, verdict: Verdict, now: Observation) -> None:
    """Raise if a verdict is outdated: its supervisor may have waited for a slow notifier in between."""
    if now.incarnation != seen.incarnation:
        what = f"{now.incarnation} is its driver now, not {seen.incarnation}"
    elif verdict.action is Action.FAIL and now.phase.alive and not seen.phase.alive:
        what = f"its driver {seen.incarnation} was {seen.phase}, and is {now.phase} now"
    else:
        return
    raise StreamwardenError("DOCUMENT_CONFLICT", f"{seen.job}: not stopped ({verdict.why}): {what}")


def _as_ours(error: OSError | StreamwardenError, job: str) -> StreamwardenError:
    if isinstance(error, StreamwardenError):
        return error
    # For example a full disk, before the savepoint itself began.
    return StreamwardenError("SAVEPOINT_FAILED", f"{job}: {error}")
