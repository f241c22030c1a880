"""Carrying out the verdicts that end a job's run: it failed for good, or its state has reached its limit."""

from __future__ import annotations

from datetime import timedelta

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Origin
from streamwarden.model.status import ErrorInfo, utc_now
from streamwarden.savepoints.take import take
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import ask_to_stop, clear_ending, end_stuck, kill_silent, record_ending
from streamwarden.supervision.decide import Action, Verdict
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["put_down"]

_SAVEPOINT_PATIENCE = timedelta(minutes=10)
"""How long after the driver's end a savepoint is tried again whose failure may pass. 10 minutes: a store that restarts,
or throttles, is back by then; the job is down meanwhile in any case, and its checkpoint stays."""


def put_down(workspace: Workspace, seen: Observation, verdict: Verdict, *, by: str, timeout: float = 300) -> ErrorInfo:
    """Leave a job down that failed or reached a limit, and return the error that says so.

    After FAIL a driver that still lives is stuck, and killed, and so is a silent one, which would go on unwatched when
    it wakes; what is wanted of the job stays as it was. After SUSPEND the job is suspended between batches, with a
    savepoint if the verdict says so. One that can't be taken leaves the job suspended all the same, at the limit that
    it has reached, and the error says so; where its failure may pass, it is tried again for ten minutes from the
    driver's end. What was observed is then past: who tells what became of the driver observes anew.

    A job that has moved on since it was observed is left alone: another driver runs it, or the silent one woke.

    Parameters
    ----------
    by
        Who carries it out.
    timeout
        Seconds that a driver may take to stop.

    Raises
    ------
    StreamwardenError
        All but ``NOT_DEPLOYED`` are for the next look, which decides anew or tries again, also where the driver has
        stopped since: ``DOCUMENT_CONFLICT`` of a job that has moved on, ``STOP_TIMED_OUT``, ``OPERATION_RUNNING``, a
        store that is away, and what a savepoint fails with that may pass.
    """
    _refuse_if_moved_on(seen, verdict, observe(workspace, seen.job))
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
            # From the end, which stays what it is: what is remembered of this is dated anew at each look.
            if reason.retryable and utc_now() - stopped.since < _SAVEPOINT_PATIENCE:
                raise reason from failed
            # Not started again, as by a savepoint with a stop: it would reach its limit with the next batch, for ever.
            what = f"{what}. Suspended without a savepoint: {reason.code}: {reason.what}"
    clear_ending(workspace, seen.job)
    return error.model_copy(update={"what": what})


def _refuse_if_moved_on(seen: Observation, verdict: Verdict, now: Observation) -> None:
    """Raise if a verdict is no longer about what runs: whoever reached it may have waited for a slow notifier since."""
    if now.incarnation != seen.incarnation:
        what = f"{now.incarnation} is its driver now, not {seen.incarnation}"
    elif verdict.action is Action.FAIL and now.phase.alive and not seen.phase.alive:
        what = f"its driver {seen.incarnation} was {seen.phase}, and is {now.phase} now"
    else:
        return
    raise StreamwardenError("DOCUMENT_CONFLICT", f"{seen.job}: not put down ({verdict.why}): {what}")


def _as_ours(error: OSError | StreamwardenError, job: str) -> StreamwardenError:
    if isinstance(error, StreamwardenError):
        return error
    # A disk that is full, before the take itself began.
    return StreamwardenError("SAVEPOINT_FAILED", f"{job}: {error}")
