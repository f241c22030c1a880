"""Drivers started, asked to stop, and waited for: what every operation on a job is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.model.status import Decision, Desired, Request, Supervision, utc_now
from streamwarden.runtime import processes
from streamwarden.runtime.launcher import launch_driver
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.runtime.spare import Standby
from streamwarden.store.documents import JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.act import kill_by_hand, kill_silent
from streamwarden.supervision.observe import Observation, Phase, observe, process_of_driver
from streamwarden.supervision.silence import Silence, observe_for_sure

__all__ = [
    "await_health",
    "await_stop",
    "deployed_jobs",
    "end_driver",
    "forgive",
    "may_speak_again",
    "observe_by",
    "request_stop",
    "start",
    "stop",
    "stop_all",
    "stop_in_turn",
    "wait_for",
]

_POLL_S = 0.25


def start(workspace: Workspace, job: str, *, by: str, reason: str = "", spare: Standby | None = None) -> str:
    """Launch a driver for a job as it was deployed last, and return its incarnation. Does not wait until it runs.

    Does not read the YAML: see :func:`~streamwarden.operations.deploy.deploy_job`.

    Parameters
    ----------
    spare
        One that stands by for this; another is launched if it can't.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``.
    """
    seen = observe_for_sure(workspace, job)
    if seen.desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    desired = JobDocuments(workspace.storage, job).desired.update(
        lambda was: (was or seen.desired).model_copy(  # type: ignore[union-attr]
            update={"state": "running", "updated_at": utc_now(), "updated_by": by, "note": reason}
        )
    )
    kill_silent(seen)
    taken = spare.run(desired, by=by, reason=reason or "start") if spare is not None else None
    return taken or launch_driver(workspace, desired, by=by, reason=reason or "start")


def request_stop(workspace: Workspace, job: str, *, by: str, reason: str = "", incarnation: str | None = None) -> bool:
    """Ask a driver to stop between batches, without waiting; return whether there is one to ask.

    Does not change the desired state.

    Parameters
    ----------
    incarnation
        Only this one; default the current. A late request to an old one reaches nobody.
    """
    seen = observe(workspace, job)
    target = incarnation or seen.incarnation
    # A silent one may wake up: then it must find the request.
    if target is None or (target == seen.incarnation and not (seen.phase.alive or seen.phase is Phase.SILENT)):
        return False
    documents = JobDocuments(workspace.storage, job)
    request = Request(id=new_id(), kind="stop", incarnation=target, at=utc_now(), by=by, reason=reason)
    documents.request(target, request.id).write(request)
    return True


def stop(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    reason: str = "",
    incarnation: str | None = None,
    timeout: float | None = 300,
    kill: bool = False,
) -> Observation:
    """Suspend a job: its driver finishes the batch in flight and ends. One that is silent can't, and is killed.

    Parameters
    ----------
    incarnation
        Only if this one is the current: an old request can't hit a newer run.
    timeout
        Seconds to wait for the end; None does not wait.
    kill
        Kill the driver, if it is one of this machine, when the time is over. The next start finishes its batch.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``, ``OPERATION_RUNNING`` or ``STOP_TIMED_OUT``.
    """
    seen = _suspend(workspace, job, by=by, reason=reason, incarnation=incarnation)
    if incarnation is not None and incarnation != seen.incarnation:
        return seen
    if timeout is None:
        if seen.phase is Phase.SILENT:
            # It can't finish its batch. If it speaks again, it can, and finds what it was asked.
            now = observe_for_sure(workspace, job)
            if now.incarnation == seen.incarnation:
                kill_silent(now)
        return observe(workspace, job)
    # Also if there was nobody to ask: a driver that a supervisor launched meanwhile finds the job suspended, and ends.
    return _stopped(workspace, job, timeout, by=by, kill=kill)


def _suspend(workspace: Workspace, job: str, *, by: str, reason: str, incarnation: str | None = None) -> Observation:
    """Suspend a job and ask its driver to stop; return what was seen before. Does nothing if another one was meant."""
    seen = observe(workspace, job)
    if seen.desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    refuse_if_busy(workspace, job)
    if incarnation is not None and incarnation != seen.incarnation:
        return seen

    def suspend(was: Desired | None) -> Desired:
        found = was or seen.desired
        assert found is not None
        if incarnation is not None and found.state == "suspended":
            # A second hand that ends what the first has ended: were it dated anew, it would undo a run asked for since.
            return found
        return found.model_copy(
            update={"state": "suspended", "updated_at": utc_now(), "updated_by": by, "note": reason}
        )

    JobDocuments(workspace.storage, job).desired.update(suspend)
    request_stop(workspace, job, by=by, reason=reason, incarnation=incarnation or seen.incarnation)
    return seen


def _stopped(workspace: Workspace, job: str, timeout: float, *, by: str, kill: bool) -> Observation:
    if observe(workspace, job).phase is Phase.SILENT:
        # Whether it is one, is seen in that time.
        timeout = max(timeout, Silence.lasts(workspace) + 1)
    try:
        return await_stop(workspace, job, timeout)
    except StreamwardenError as error:
        if not kill or error.code != "STOP_TIMED_OUT":
            raise
        seen = observe(workspace, job)
        if seen.phase.alive and not kill_by_hand(workspace, seen, by=by):
            process = process_of_driver(seen)
            where = f"its process is one of {process.host}: kill it there" if process else "its process is not known"
            raise StreamwardenError(error.code, f"{error.what}; {where}", remedy=error.remedy) from error
    return observe(workspace, job)


def end_driver(workspace: Workspace, job: str, *, by: str, reason: str, timeout: float = 60) -> None:
    """End a job's driver for good, without changing what is wanted of the job: between batches, or killed after a time.

    Parameters
    ----------
    timeout
        Seconds until it is killed. 60: a batch in flight of a driver that is to go anyway.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT`` for one of another machine, which can't be killed from here.
    """
    request_stop(workspace, job, by=by, reason=reason)
    deadline = time.monotonic() + timeout
    ended = _ended(workspace)
    while not ended(seen := observe(workspace, job)):
        process = process_of_driver(seen)
        if time.monotonic() >= deadline and process is not None:
            if processes.kill(process):
                return
            if processes.is_alive(process) is None:
                what = f"{job}: its driver on {process.host} was asked to stop {timeout:.0f} s ago, and lives"
                remedy = f"End process {process.pid} there, and repeat this."
                raise StreamwardenError("STOP_TIMED_OUT", what, remedy=remedy)
        time.sleep(0.2)


def stop_all(
    workspace: Workspace,
    jobs: Iterable[str] | None = None,
    *,
    by: str,
    reason: str = "",
    timeout: float = 300,
    kill: bool = False,
) -> dict[str, Observation]:
    """Suspend several jobs at once, so that none waits for another's batch; return how each ended.

    Jobs that were never deployed are passed over. One that can't be stopped keeps no other from it.

    Parameters
    ----------
    jobs
        Names; None for every job that was deployed here, whether or not its YAML is still there.
    timeout
        Seconds for all of them together.
    kill
        As for :func:`stop`.

    Raises
    ------
    StreamwardenError
        ``STOP_INCOMPLETE``, naming each that was not stopped, and why; all others have ended by then.
    """
    deadline = time.monotonic() + timeout
    names = deployed_jobs(workspace) if jobs is None else jobs
    asked = [job for job in names if _was_deployed(workspace, job)]
    ended: dict[str, Observation] = {}
    failed: dict[str, StreamwardenError] = {}
    for job in asked:
        try:
            _suspend(workspace, job, by=by, reason=reason)
        except StreamwardenError as error:
            failed[job] = error
    for job in asked:
        if job in failed:
            continue
        try:
            ended[job] = _stopped(workspace, job, max(deadline - time.monotonic(), 0), by=by, kill=kill)
        except StreamwardenError as error:
            failed[job] = error
    if failed:
        why = "".join(f"\n  {job}: {error.code}: {error.what}" for job, error in failed.items())
        raise StreamwardenError("STOP_INCOMPLETE", f"{len(failed)} of {len(asked)} jobs{why}")
    return ended


def deployed_jobs(workspace: Workspace) -> list[str]:
    """Return the names of all jobs that were ever deployed here, sorted: also of those whose YAML was removed since."""
    return [job for job in workspace.files.folders("control") if _was_deployed(workspace, job)]


def _was_deployed(workspace: Workspace, job: str) -> bool:
    # A damaged document of one job is an error of that job alone.
    return workspace.storage.read(JobDocuments(workspace.storage, job).desired.key) is not None


def await_stop(workspace: Workspace, job: str, timeout: float) -> Observation:
    """Wait for the end of a driver that was asked to stop.

    Parameters
    ----------
    timeout
        Seconds.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT``.
    """
    return wait_for(
        workspace, job, _ended(workspace), timeout=timeout, what="the driver to stop", code="STOP_TIMED_OUT"
    )


def _ended(workspace: Workspace) -> Callable[[Observation], bool]:
    """Return what tells of each observation whether there is no driver any more.

    A silent one is an end only once it has been silent for a while, and, if it is of this machine, was killed: it may
    wake, and would finish a batch that whoever waits for its end knows nothing of.
    """
    silence = Silence()

    def ended(seen: Observation) -> bool:
        return not (seen.phase.alive or silence.is_doubtful(workspace, seen) or kill_silent(seen))

    return ended


def wait_for(
    workspace: Workspace,
    job: str,
    condition: Callable[[Observation], bool],
    *,
    timeout: float,
    what: str,
    code: str = "DRIVER_DID_NOT_START",
    poll: float = 0.25,
) -> Observation:
    """Observe a job until a condition holds.

    Parameters
    ----------
    condition
        Of the observation.
    timeout, poll
        Seconds.
    what, code
        What is waited for, and the error's code if it does not come.

    Raises
    ------
    StreamwardenError
        With `code`, when the time is over.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen = observe(workspace, job)
        if condition(seen):
            return seen
        if time.monotonic() >= deadline:
            raise StreamwardenError(
                code, f"{job}: waited {timeout:.0f} s for {what}; it is {seen.phase} ({seen.reason})"
            )
        time.sleep(poll)


def stop_in_turn(
    workspace: Workspace, job: str, *, by: str, reason: str, timeout: float, query_only: bool = False
) -> str:
    """Stop a job's driver between batches, and every one that takes over meanwhile; return how the last one ended.

    For operations: does not change what is wanted of the job, and supervisors wait while one works on it.

    Parameters
    ----------
    timeout
        Seconds for all of them together.
    query_only
        Return when the query has ended, after which no batch comes. The driver still ends Spark, which takes seconds,
        and holds its lease until then: see :func:`await_stop`.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT``.
    """
    was = observe(workspace, job)
    if not (was.phase.alive or was.phase is Phase.SILENT):
        return f"the job is {was.phase}"
    asked: set[str | None] = set()
    is_over = _ended(workspace)

    def ended(now: Observation) -> bool:
        # Each in its turn: a killed try may have started one that takes over when the asked one ends.
        if now.incarnation not in asked:
            asked.add(now.incarnation)
            request_stop(workspace, job, by=by, reason=reason, incarnation=now.incarnation)
        return is_over(now) or (query_only and now.heartbeat is not None and now.heartbeat.query_ended)

    return wait_for(workspace, job, ended, timeout=timeout, what="the driver to stop", code="STOP_TIMED_OUT").reason


def await_health(
    workspace: Workspace,
    job: str,
    *,
    generation: int,
    base: int | None,
    timeout: float,
    say: Callable[[str], None] = lambda _: None,
    may_wait: bool = False,
) -> str:
    """Wait until a job that was just started is healthy; return by what it is.

    Healthy is a batch that was committed, or a source that has nothing new, with no failed try since.

    Parameters
    ----------
    generation
        The generation that it was started under; what is still known of an older one counts for nothing.
    base
        The newest batch that was committed before; None for none.
    timeout
        Seconds.
    say
        Told what is waited for.
    may_wait
        Whether waiting for a source table that is not there yet counts as healthy.

    Raises
    ------
    StreamwardenError
        The driver's own error if it ends, ``DRIVER_SILENT`` if it says nothing for three leases, or
        ``DRIVER_DID_NOT_START`` when the time is over.
    """
    deadline = time.monotonic() + timeout
    before = -1 if base is None else base
    silence = Silence()
    while True:
        seen = observe_by(workspace, job, deadline)
        heartbeat = seen.heartbeat
        doubtful = silence.is_doubtful(workspace, seen)
        mine = heartbeat is not None and heartbeat.generation == generation
        # One of an older generation, paused or on another machine, holds its lease for a moment yet. One that ended
        # before it knew its generation (0) is the new one: the older had been running.
        over = not seen.phase.alive and not doubtful and not may_speak_again(workspace, seen)
        if over and (mine or heartbeat is None or heartbeat.generation == 0):
            raise seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DIED", seen.reason)
        if mine and heartbeat is not None and seen.phase is Phase.RUNNING and heartbeat.failures == 0:
            if heartbeat.batch is not None and heartbeat.batch > before:
                return f"batch {heartbeat.batch} committed"
            if heartbeat.idle:
                return "runs, and the source has nothing new"
        if may_wait and mine and seen.phase is Phase.WAITING:
            return f"runs, and waits as before: {seen.reason}"
        say(f"{seen.phase}: {seen.reason}")
        # Where the time went by in an outage, the first look after it says nothing yet.
        if time.monotonic() >= deadline and not doubtful:
            raise StreamwardenError(
                "DRIVER_DID_NOT_START",
                f"no batch after {timeout:.0f} s; {seen.incarnation} is {seen.phase} ({seen.reason})",
            )
        time.sleep(_POLL_S)


def observe_by(workspace: Workspace, job: str, deadline: float) -> Observation:
    """Observe a job; where the store is away, once it is back, if that is before a moment.

    Parameters
    ----------
    deadline
        Of the monotonic clock.

    Raises
    ------
    StreamwardenError
        ``S3_UNREACHABLE`` or ``S3_THROTTLED``, when the time is over.
    """
    while True:
        try:
            return observe(workspace, job)
        except StreamwardenError as error:
            if error.code not in OUTAGES or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_S)


def may_speak_again(workspace: Workspace, seen: Observation) -> bool:
    """Tell whether a silent driver is given time: one that waited for the store goes on where nobody replaced it."""
    return seen.phase is Phase.SILENT and utc_now() - seen.since < 3 * workspace.profile.lease


def forgive(workspace: Workspace, job: str, *, why: str) -> None:
    """Give a job a fresh restart budget, and forget that it was given up: it was deployed."""
    decision = Decision(at=utc_now(), what="deploy", why=why)

    def change(memory: Supervision | None) -> Supervision:
        return Supervision(restarts=[], decisions=[*(memory.decisions if memory else []), decision][-50:])

    JobDocuments(workspace.storage, job).supervision.update(change)
