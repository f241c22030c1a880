"""Start drivers, stop drivers, and wait for them: the building blocks of every operation on a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from streamwarden.errors import OUTAGES, ErrorCode, StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import Desired, Exit
from streamwarden.model.supervision import Decision, Supervision
from streamwarden.runtime import processes, spares
from streamwarden.runtime.launchers.interface import StartState
from streamwarden.runtime.launchers.launch import launch_driver, launcher_of
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.standby import Standby
from streamwarden.storage import Conflict
from streamwarden.store.documents import JobDocuments
from streamwarden.store.each import for_each
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.act import kill_by_hand, kill_driver, kill_silent
from streamwarden.supervision.observe import POLL_S, Observation, Phase, observe, process_of_driver
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


def start(workspace: Workspace, job: str, *, by: str, reason: str = "", spare: Standby | None = None) -> str:
    """Launch a driver with the last deployed spec, and return its incarnation. Does not wait until the driver runs.

    Does not read the YAML: see :func:`~streamwarden.operations.deploy.deploy_job`.

    Parameters
    ----------
    spare
        A standby driver that takes the job over. If it cannot, another driver is launched.

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
    kill_silent(workspace, seen)
    taken = spare.run(desired, by=by, reason=reason or "start") if spare is not None else None
    return taken or launch_driver(workspace, desired, by=by, reason=reason or "start")


def request_stop(workspace: Workspace, job: str, *, by: str, reason: str = "", incarnation: str | None = None) -> bool:
    """Ask a driver to stop between batches, without waiting; return whether there was a driver to ask.

    A driver that still waits for a place to run is withdrawn instead. Does not change the desired state.

    Parameters
    ----------
    incarnation
        The driver to ask; default the current driver. A late request to an old incarnation has no effect.
    """
    seen = observe(workspace, job)
    target = incarnation or seen.incarnation
    # A silent driver may wake up: then it must find the request.
    if target is None or (target == seen.incarnation and not (seen.phase.alive or seen.phase is Phase.SILENT)):
        return False
    JobDocuments(workspace.storage, job).request_stop(target, by=by, reason=reason)
    if target == seen.incarnation and _never_ran(seen):
        _withdraw(workspace, job, target)
    return True


def _never_ran(seen: Observation) -> bool:
    return seen.phase is Phase.STARTING and seen.heartbeat is None


def _withdraw(workspace: Workspace, job: str, incarnation: str) -> None:
    launcher = launcher_of(workspace)
    if launcher.find(job, incarnation).state is StartState.WAITING and launcher.kill(job, incarnation):
        ended = Exit(incarnation=incarnation, at=utc_now(), outcome="stopped", batch=None)
        # It may have come to run at this moment, and have written its own.
        with suppress(Conflict):
            JobDocuments(workspace.storage, job).exit(incarnation).create(ended)


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
    """Suspend a job: its driver finishes the batch in flight and ends. A silent driver cannot, and is killed.

    Parameters
    ----------
    incarnation
        Stop the job only if this incarnation is current: an old request must not stop a newer run.
    timeout
        Seconds to wait for the end; None does not wait.
    kill
        After the time-out, kill the driver if it runs on this machine or has a driver host. The next start finishes
        its batch.

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
            # A silent driver cannot finish its batch. If its heartbeat returns, it can, and it finds the request.
            now = observe_for_sure(workspace, job)
            if now.incarnation == seen.incarnation:
                kill_silent(workspace, now)
        return observe(workspace, job)
    # Also without a driver to ask: a driver that a supervisor launched meanwhile finds the job suspended, and ends.
    return _stopped(workspace, job, timeout, by=by, kill=kill)


def _suspend(workspace: Workspace, job: str, *, by: str, reason: str, incarnation: str | None = None) -> Observation:
    """Suspend a job, ask its driver to stop, return the earlier observation. Does nothing if `incarnation` is old."""
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
            # The job is suspended already. A new `updated_at` would override a run that was requested since.
            return found
        return found.model_copy(
            update={"state": "suspended", "updated_at": utc_now(), "updated_by": by, "note": reason}
        )

    JobDocuments(workspace.storage, job).desired.update(suspend)
    request_stop(workspace, job, by=by, reason=reason, incarnation=incarnation or seen.incarnation)
    return seen


def _stopped(workspace: Workspace, job: str, timeout: float, *, by: str, kill: bool) -> Observation:
    if observe(workspace, job).phase is Phase.SILENT:
        # That time confirms whether the driver is silent.
        timeout = max(timeout, Silence.lasts(workspace) + 1)
    try:
        return await_stop(workspace, job, timeout)
    except StreamwardenError as error:
        if not kill or error.code != "STOP_TIMED_OUT":
            raise
        seen = observe(workspace, job)
        if seen.phase.alive and not kill_by_hand(workspace, seen, by=by):
            process = process_of_driver(seen)
            where = f"its process runs on {process.host}: kill it there" if process else "its process is unknown"
            raise StreamwardenError(error.code, f"{error.what}; {where}", remedy=error.remedy) from error
    return observe(workspace, job)


def end_driver(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    reason: str,
    timeout: float = 60,
    check: Callable[[], object] = lambda: None,
) -> None:
    """End a job's driver between batches, or kill it after a time-out. Does not change the desired state.

    Parameters
    ----------
    timeout
        Seconds until the driver is killed. 60: time for the batch in flight; the driver must end in any case.
    check
        Called before each driver is asked: raises if this is no more the caller's to decide.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT`` for a driver that cannot be killed from here: on another machine, or not known to run.
    """
    deadline = Deadline(timeout)
    ended = _asking_each(workspace, by=by, reason=reason, check=check)
    while not ended(seen := observe(workspace, job)):
        process = process_of_driver(seen)
        if deadline.passed:
            if kill_driver(workspace, seen):
                return
            what = f"{job}: its driver was asked to stop {timeout:.0f} s ago, and is {seen.phase}: {seen.reason}"
            if process is None:
                raise StreamwardenError("STOP_TIMED_OUT", what)
            if processes.is_alive(process) is None:
                remedy = f"End process {process.pid} on {process.host}, then repeat the command."
                raise StreamwardenError("STOP_TIMED_OUT", what, remedy=remedy)
        time.sleep(POLL_S)


def stop_all(
    workspace: Workspace,
    jobs: Iterable[str] | None = None,
    *,
    by: str,
    reason: str = "",
    timeout: float = 300,
    kill: bool = False,
) -> dict[str, Observation]:
    """Suspend several jobs at once, so that no job waits for another job's batch; return how each job ended.

    With all jobs, the spares on this machine end, too.

    Skips jobs that were never deployed. If a job cannot be stopped, the others still are.

    Parameters
    ----------
    jobs
        Names; None for every job that was deployed here, with or without its YAML.
    timeout
        Seconds for all jobs together.
    kill
        As for :func:`stop`.

    Raises
    ------
    StreamwardenError
        ``STOP_INCOMPLETE``, with each job that was not stopped, and the reason. All other jobs have ended by then.
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
    if jobs is None:
        # No job is left here to take them.
        spares.end_waiting(workspace)
    if failed:
        why = "".join(f"\n  {job}: {error.code}: {error.what}" for job, error in failed.items())
        raise StreamwardenError("STOP_INCOMPLETE", f"{len(failed)} of {len(asked)} jobs{why}")
    return ended


def deployed_jobs(workspace: Workspace) -> list[str]:
    """Return the sorted names of all jobs that were ever deployed here, including jobs whose YAML was removed."""
    names = workspace.files.folders(CONTROL)
    deployed = for_each(workspace, names, lambda job: _was_deployed(workspace, job))
    return [job for job, was in zip(names, deployed, strict=True) if was]


def _was_deployed(workspace: Workspace, job: str) -> bool:
    # Does not parse the document: a damaged document must be an error of its own job only.
    return workspace.storage.read(JobDocuments(workspace.storage, job).desired.key) is not None


def await_stop(workspace: Workspace, job: str, timeout: float) -> Observation:
    """Wait until a driver that was asked to stop has ended.

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
    """Return a predicate that is true for an observation without a driver.

    A silent driver counts as ended only after :class:`Silence` confirms it and, on this machine, after a kill.
    Otherwise the driver could wake and finish a batch that the caller does not expect. One that was asked to stop and
    still waits for a place to run is withdrawn.
    """
    silence = Silence()

    def ended(seen: Observation) -> bool:
        documents = JobDocuments(workspace.storage, seen.job)
        # When it was asked, its launcher may not have known it: a submission takes seconds. A driver that nobody asked
        # was started since, by someone else.
        if seen.incarnation is not None and _never_ran(seen) and documents.stop(seen.incarnation).read() is not None:
            _withdraw(workspace, seen.job, seen.incarnation)
        return not (seen.phase.alive or silence.is_doubtful(workspace, seen) or kill_silent(workspace, seen))

    return ended


def _asking_each(
    workspace: Workspace, *, by: str, reason: str, check: Callable[[], object]
) -> Callable[[Observation], bool]:
    """Return :func:`_ended`, which first asks each driver in turn to stop.

    A killed try may have started a driver that takes over when this driver ends. A process that was paused, however,
    must not stop what another has started since.
    """
    asked: set[str | None] = set()
    is_over = _ended(workspace)

    def ended(now: Observation) -> bool:
        if now.incarnation not in asked:
            check()
            asked.add(now.incarnation)
            request_stop(workspace, now.job, by=by, reason=reason, incarnation=now.incarnation)
        return is_over(now)

    return ended


def wait_for(
    workspace: Workspace,
    job: str,
    condition: Callable[[Observation], bool],
    *,
    timeout: float,
    what: str,
    code: ErrorCode = "DRIVER_DID_NOT_START",
    poll: float = POLL_S,
) -> Observation:
    """Observe a job until a condition holds.

    Parameters
    ----------
    condition
        Predicate of the observation.
    timeout, poll
        Seconds.
    what, code
        The awaited event in words, and the error's code if the event does not come.

    Raises
    ------
    StreamwardenError
        With `code`, after the time-out.
    """
    deadline = Deadline(timeout)
    while not condition(seen := observe(workspace, job)):
        if not deadline.pause(poll):
            raise StreamwardenError(
                code, f"{job}: waited {timeout:.0f} s for {what}; it is {seen.phase} ({seen.reason})"
            )
    return seen


def stop_in_turn(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    reason: str,
    timeout: float,
    query_only: bool = False,
    check: Callable[[], object] = lambda: None,
) -> str:
    """Stop a job's driver between batches, and every driver that takes over meanwhile; return the last driver's end.

    For operations: does not change the desired state, and supervisors wait while an operation works on the job.

    Parameters
    ----------
    timeout
        Seconds for all drivers together.
    query_only
        Return when the query has ended, after which no batch starts. The driver then stops Spark, which takes seconds,
        and holds its lease until that is done: see :func:`await_stop`.
    check
        As for :func:`end_driver`.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT``.
    """
    was = observe(workspace, job)
    if not (was.phase.alive or was.phase is Phase.SILENT):
        return f"the job is {was.phase}"
    is_over = _asking_each(workspace, by=by, reason=reason, check=check)

    def ended(now: Observation) -> bool:
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
    """Wait until a job that was just started is healthy; return the evidence.

    A job is healthy if it has committed a batch or its source has nothing new, and no try has failed since.

    Parameters
    ----------
    generation
        The generation of the start; documents of an older generation do not count.
    base
        The newest batch that was committed before the start; None without a batch.
    timeout
        Seconds.
    say
        Called with the phase during the wait.
    may_wait
        Whether a driver that waits for a missing source table counts as healthy.

    Raises
    ------
    StreamwardenError
        The driver's own error if it ends, ``DRIVER_SILENT`` if it writes no heartbeat for three leases, or
        ``DRIVER_DID_NOT_START`` after the time-out.
    """
    deadline = time.monotonic() + timeout
    before = -1 if base is None else base
    silence = Silence()
    while True:
        seen = observe_by(workspace, job, deadline)
        heartbeat = seen.heartbeat
        doubtful = silence.is_doubtful(workspace, seen)
        mine = heartbeat is not None and heartbeat.generation == generation
        # A driver of an older generation, paused or on another machine, may still hold its lease for a moment. A driver
        # that ended before it knew its generation (0) is the new driver: the older driver had been running.
        over = not seen.phase.alive and not doubtful and not may_speak_again(workspace, seen)
        if over and (mine or heartbeat is None or heartbeat.generation == 0):
            raise seen.error.to_exception() if seen.error else StreamwardenError("DRIVER_DIED", seen.reason)
        if mine and heartbeat is not None and seen.phase is Phase.RUNNING and heartbeat.failures == 0:
            if heartbeat.batch is not None and heartbeat.batch > before:
                return f"batch {heartbeat.batch} committed"
            if heartbeat.idle:
                return "runs, and the source has nothing new"
        if may_wait and mine and seen.phase is Phase.WAITING:
            return f"runs, and waits as it did before: {seen.reason}"
        say(f"{seen.phase}: {seen.reason}")
        # If the time-out passed in an outage, the first observation after the outage proves nothing yet.
        if time.monotonic() >= deadline and not doubtful:
            raise StreamwardenError(
                "DRIVER_DID_NOT_START",
                f"no batch after {timeout:.0f} s; {seen.incarnation} is {seen.phase} ({seen.reason})",
            )
        time.sleep(POLL_S)


def observe_by(workspace: Workspace, job: str, deadline: float) -> Observation:
    """Observe a job; in a store outage, retry until the deadline.

    Parameters
    ----------
    deadline
        A time of the monotonic clock.

    Raises
    ------
    StreamwardenError
        ``S3_UNREACHABLE`` or ``S3_THROTTLED``, after the deadline.
    """
    while True:
        try:
            return observe(workspace, job)
        except StreamwardenError as error:
            if error.code not in OUTAGES or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def may_speak_again(workspace: Workspace, seen: Observation) -> bool:
    """Return whether a silent driver gets more time: after a store outage it continues, unless it was replaced."""
    return seen.phase is Phase.SILENT and utc_now() - seen.since < 3 * workspace.profile.lease


def forgive(workspace: Workspace, job: str, *, why: str) -> None:
    """Reset a job's restart budget and remove the record of its ending, after a deploy."""
    decision = Decision(at=utc_now(), what="deploy", why=why)

    def change(memory: Supervision | None) -> Supervision:
        return Supervision(restarts=[], decisions=[*(memory.decisions if memory else []), decision][-50:])

    JobDocuments(workspace.storage, job).supervision.update(change)
