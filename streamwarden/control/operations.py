"""What an operator does with a job: deploy, stop, look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streamwarden.control.documents import (
    Decision,
    Desired,
    JobDocuments,
    Request,
    Supervision,
    dump,
    utc_now,
)
from streamwarden.control.ids import new_id
from streamwarden.control.launcher import launch_driver
from streamwarden.control.operation import active_operation, refuse_if_busy
from streamwarden.control.processes import is_alive, kill
from streamwarden.control.supervision import Observation, Phase, kill_silent, observe
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = ["Deployment", "deploy", "end_driver", "request_stop", "start", "status", "stop", "stop_all", "wait_for"]


@dataclass(frozen=True)
class Deployment:
    """What a deploy did.

    Parameters
    ----------
    job
        The job.
    incarnation
        The driver that runs it.
    launched
        False if one ran already with this very spec, and was left alone.
    """

    job: str
    incarnation: str
    launched: bool


def deploy(workspace: Workspace, job: str, *, by: str, note: str = "", stop_timeout: float = 300) -> Deployment:
    """Make a job run as its YAML says now.

    A driver that runs with the same spec is left alone. One with another spec is stopped between batches and started
    anew from its checkpoint. Gives the job a fresh restart budget. Does not wait until the new driver runs: see
    :func:`wait_for`.

    Parameters
    ----------
    workspace
        Where.
    job
        The job's name.
    by, note
        Who and why, for the record.
    stop_timeout
        Seconds that a driver with another spec may take to stop.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``OPERATION_RUNNING``, ``STOP_TIMED_OUT``.
    """
    spec = workspace.job(job)
    refuse_if_busy(workspace, job)
    documents = JobDocuments(workspace.storage, job)
    digest = spec.digest()
    desired = Desired(
        job=job,
        state="running",
        spec=spec,
        digest=digest,
        profile=workspace.profile.name,
        updated_at=utc_now(),
        updated_by=by,
        note=note,
    )
    seen = observe(workspace, job)
    same = seen.launch is not None and seen.launch.digest == digest
    if seen.phase.alive and same and not _stops(documents, seen):
        if seen.desired is None or seen.desired.state != "running":
            documents.desired.write(desired)
        assert seen.incarnation is not None
        return Deployment(job, seen.incarnation, launched=False)
    # Before the old driver ends: a supervisor that sees it end, and restarts the job, then starts it with this spec.
    documents.desired.write(desired)

    def forgive(memory: Supervision | None) -> Supervision:
        decision = Decision(at=utc_now(), what="deploy", why=note or by)
        return Supervision(restarts=[], decisions=[*(memory.decisions if memory else []), decision][-50:])

    documents.supervision.update(forgive)
    if seen.phase.alive:
        old = seen.incarnation
        request_stop(workspace, job, by=by, reason="deployed anew", incarnation=old)
        seen = wait_for(
            workspace,
            job,
            lambda now: now.incarnation != old or not now.phase.alive,
            timeout=stop_timeout,
            what="the old driver to stop",
            code="STOP_TIMED_OUT",
        )
        if seen.phase.alive and seen.incarnation is not None and seen.launch and seen.launch.digest == digest:
            return Deployment(job, seen.incarnation, launched=True)
    kill_silent(seen)
    return Deployment(job, launch_driver(workspace, desired, by=by, reason=note or "deploy"), launched=True)


def start(workspace: Workspace, job: str, *, by: str, reason: str = "") -> str:
    """Launch a driver for a job as it was deployed last, and return its incarnation. Does not wait until it runs.

    Other than :func:`deploy`, it does not read the YAML.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``.
    """
    seen = observe(workspace, job)
    if seen.desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    desired = JobDocuments(workspace.storage, job).desired.update(
        lambda was: (was or seen.desired).model_copy(  # type: ignore[union-attr]
            update={"state": "running", "updated_at": utc_now(), "updated_by": by, "note": reason}
        )
    )
    kill_silent(seen)
    return launch_driver(workspace, desired, by=by, reason=reason or "start")


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
) -> Observation:
    """Suspend a job: its driver finishes the batch in flight and ends. One that is silent can't, and is killed.

    Parameters
    ----------
    incarnation
        Only if this one is the current: an old request can't hit a newer run.
    timeout
        Seconds to wait for the end; None does not wait.

    Raises
    ------
    StreamwardenError
        ``NOT_DEPLOYED``, ``OPERATION_RUNNING`` or ``STOP_TIMED_OUT``.
    """
    seen = observe(workspace, job)
    if seen.desired is None:
        raise StreamwardenError("NOT_DEPLOYED", job)
    refuse_if_busy(workspace, job)
    if incarnation is not None and incarnation != seen.incarnation:
        return seen
    documents = JobDocuments(workspace.storage, job)
    documents.desired.update(
        lambda was: (was or seen.desired).model_copy(  # type: ignore[union-attr]
            update={"state": "suspended", "updated_at": utc_now(), "updated_by": by, "note": reason}
        )
    )
    asked = request_stop(workspace, job, by=by, reason=reason, incarnation=incarnation or seen.incarnation)
    kill_silent(seen)
    if not asked or timeout is None:
        return observe(workspace, job)
    return _await_stop(workspace, job, timeout)


def end_driver(workspace: Workspace, job: str, *, by: str, reason: str, timeout: float = 60) -> None:
    """End a job's driver for good, without changing what is wanted of the job: between batches, or killed after a time.

    Parameters
    ----------
    timeout
        Seconds until it is killed. 60: a batch in flight of a driver that is to go anyway.
    """
    request_stop(workspace, job, by=by, reason=reason)
    deadline = time.monotonic() + timeout
    while (seen := observe(workspace, job)).phase.alive:
        process = seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None
        if time.monotonic() >= deadline and process is not None and kill(process):
            return
        time.sleep(0.2)
    kill_silent(seen)


def stop_all(
    workspace: Workspace, jobs: Iterable[str], *, by: str, reason: str = "", timeout: float = 300
) -> dict[str, Observation]:
    """Suspend several jobs at once, so that none waits for another's batch; return how each ended.

    Jobs that were never deployed are passed over.

    Parameters
    ----------
    timeout
        Seconds for all of them together.

    Raises
    ------
    StreamwardenError
        ``STOP_TIMED_OUT`` for the first that doesn't end in time; all have been asked by then.
    """
    deadline = time.monotonic() + timeout
    asked = [job for job in jobs if JobDocuments(workspace.storage, job).desired.read() is not None]
    for job in asked:
        stop(workspace, job, by=by, reason=reason, timeout=None)
    return {job: _await_stop(workspace, job, max(deadline - time.monotonic(), 0)) for job in asked}


def _await_stop(workspace: Workspace, job: str, timeout: float) -> Observation:
    return wait_for(
        workspace,
        job,
        lambda now: not now.phase.alive,
        timeout=timeout,
        what="the driver to stop",
        code="STOP_TIMED_OUT",
    )


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


def status(workspace: Workspace, job: str) -> dict[str, Any]:
    """Return what is known of a job, as plain JSON values."""
    documents = JobDocuments(workspace.storage, job)
    seen = observe(workspace, job)
    memory = documents.supervision.read() or Supervision()
    heartbeat = seen.heartbeat
    return {
        "job": job,
        "desired": seen.desired.state if seen.desired else None,
        "phase": seen.phase.value,
        "reason": seen.reason,
        "since": seen.since.isoformat(),
        "incarnation": seen.incarnation,
        "pid": heartbeat.process.pid if heartbeat and is_alive(heartbeat.process) else None,
        "checkpoint": dump(documents.checkpoint.read()),
        "batch": seen.exit.batch if seen.exit else heartbeat.batch if heartbeat else None,
        "progress": dump(seen.progress.last) if seen.progress else None,
        "totals": dump(documents.totals.read()),
        "restarts": [dump(entry) for entry in memory.restarts],
        "decisions": [dump(entry) for entry in memory.decisions[-10:]],
        "error": dump(seen.error),
        "operation": dump(active_operation(workspace, job)),
        "logs": str(workspace.log_dir(job, seen.incarnation)) if seen.incarnation else None,
    }


def _stops(documents: JobDocuments, seen: Observation) -> bool:
    if seen.phase is Phase.STOPPING:
        return True
    # Asked already, but not yet aware of it: it is not a driver to leave alone.
    return seen.incarnation is not None and any(r.kind == "stop" for r in documents.open_requests(seen.incarnation))
