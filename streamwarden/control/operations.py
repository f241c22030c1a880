"""What an operator does with a job: deploy, stop, look."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streamwarden.control.described import is_described
from streamwarden.control.diagnosis import diagnose
from streamwarden.control.documents import (
    Desired,
    ErrorInfo,
    JobDocuments,
    Supervision,
    dump,
    utc_now,
)
from streamwarden.control.launcher import launch_driver
from streamwarden.control.operation import active_operation, refuse_if_busy
from streamwarden.control.parallelism import effective_spec, forget_overruled, width_of
from streamwarden.control.processes import is_alive
from streamwarden.control.rollout import interrupted_rollout, is_same_rollout, rollout, settle
from streamwarden.control.rollout_plan import Change, Effect, RolloutPlan, changed_fields, plan
from streamwarden.control.running import (
    deployed_jobs,
    end_driver,
    forgive,
    request_stop,
    start,
    stop,
    stop_all,
    wait_for,
)
from streamwarden.control.savepoints.take import Report
from streamwarden.control.supervision import (
    Observation,
    Phase,
    assess,
    decide,
    kill_silent,
    observe,
    observe_for_sure,
    record_decision,
)
from streamwarden.control.workspace import Workspace
from streamwarden.errors import StreamwardenError

__all__ = [
    "Deployment",
    "deploy",
    "deployed_jobs",
    "end_driver",
    "metrics_targets",
    "request_stop",
    "start",
    "status",
    "stop",
    "stop_all",
    "unknown",
    "wait_for",
]


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
        False if one ran already and was left alone: with this very spec, or with one that differs in nothing that a
        driver reads.
    effect
        What the changes of the YAML asked for.
    changes
        What the YAML had changed.
    operation
        The rollout that did it; None where there was nothing running to roll out over.
    """

    job: str
    incarnation: str
    launched: bool
    effect: Effect = Effect.NONE
    changes: tuple[Change, ...] = ()
    operation: str | None = None


def deploy(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    note: str = "",
    stop_timeout: float = 300,
    health_timeout: float = 300,
    report: Report | None = None,
) -> Deployment:
    """Make a job run as its YAML says now.

    A driver that does so already is left alone, also where only such fields have changed as it doesn't read. Another
    change of a running job is a rollout, which waits for the health of the new driver and goes back if that does not
    come: see :mod:`~streamwarden.control.rollout`. One that the checkpoint stands against is refused, whether the job
    runs or not. A job that is down is started, and gets a fresh restart budget; then this neither takes a savepoint nor
    waits until the new driver runs: see :func:`wait_for`.

    A rollout whose process died is gone on with if this is the same call; if it is another, it is brought to its end
    first.

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
    health_timeout
        Seconds until a rolled-out job that commits no batch counts as unhealthy.
    report
        Told how far a rollout is.

    Raises
    ------
    StreamwardenError
        ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``JOB_MODULE_INVALID``, ``OPERATION_RUNNING``, ``ROLLOUT_REFUSED``: nothing
        was touched. ``STOP_TIMED_OUT``; and what :func:`~streamwarden.control.rollout.rollout` raises.
    """
    planned, written = plan(workspace, job), width_of(workspace.job(job))
    if observe(workspace, job).phase is Phase.SILENT:
        # For a moment, as after an outage: then it is left alone like any other that runs.
        observe_for_sure(workspace, job)
        planned = plan(workspace, job)
    refuse_if_busy(workspace, job)
    planned.refuse()
    left = interrupted_rollout(workspace, job)
    ours = left is not None and is_same_rollout(left, planned.wanted, by=by, reason=note)
    if left is not None and not ours:
        settle(workspace, left, health_timeout=health_timeout, report=report)
        planned, written = plan(workspace, job), width_of(workspace.job(job))
        planned.refuse()
    documents = JobDocuments(workspace.storage, job)
    seen = observe(workspace, job)
    stopping = seen.phase.alive and _stops(documents, seen)
    # One that was interrupted has stopped the job, or changed it, and there is something to go back to. So there is of
    # a job that is to run and whose driver stops for an operation that did not wait for it to the end.
    wanted = seen.desired is not None and seen.desired.state == "running"
    guarded = left is not None or (
        seen.phase.alive and (not stopping or (wanted and planned.effect.rank > Effect.LIVE.rank))
    )
    if not ours and seen.phase.alive and not stopping and planned.effect.rank <= Effect.LIVE.rank:
        assert seen.incarnation is not None
        if planned.changes or seen.desired is None:
            documents.desired.write(_desired(workspace, planned, seen.desired, by=by, note=note))
        if planned.changes:
            record_decision(workspace, job, "live change", planned.fields)
        forget_overruled(workspace, job, written)
        return Deployment(job, seen.incarnation, False, planned.effect, planned.changes)
    if guarded and planned.deployed is not None:
        done = rollout(
            workspace,
            planned,
            by=by,
            reason=note,
            stop_timeout=stop_timeout,
            health_timeout=health_timeout,
            report=report,
        )
        forget_overruled(workspace, job, written)
        incarnation = observe(workspace, job).incarnation
        assert incarnation is not None
        return Deployment(job, incarnation, True, planned.effect, planned.changes, done.id)
    incarnation = _start_anew(workspace, planned, seen, by=by, note=note, stop_timeout=stop_timeout)
    forget_overruled(workspace, job, written)
    return Deployment(job, incarnation, True, planned.effect, planned.changes)


def _start_anew(
    workspace: Workspace, planned: RolloutPlan, seen: Observation, *, by: str, note: str, stop_timeout: float
) -> str:
    """Start a job that is down, or was asked to stop already, and return its driver."""
    job = planned.job
    desired = _desired(workspace, planned, seen.desired, by=by, note=note)
    # Before the old driver ends: a supervisor that sees it end, and restarts the job, then starts it with this spec.
    JobDocuments(workspace.storage, job).desired.write(desired)
    forgive(workspace, job, why=note or by)
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
        if seen.phase.alive and seen.incarnation is not None and seen.launch and seen.launch.digest == desired.digest:
            return seen.incarnation
    kill_silent(seen)
    return launch_driver(workspace, desired, by=by, reason=note or "deploy")


def _desired(workspace: Workspace, planned: RolloutPlan, was: Desired | None, *, by: str, note: str) -> Desired:
    return Desired(
        # By it an operation that was interrupted knows that it has switched, whatever is deployed since.
        operation=was.operation if was is not None else None,
        job=planned.job,
        state="running",
        spec=planned.wanted,
        digest=planned.wanted.digest(),
        profile=workspace.profile.name,
        updated_at=utc_now(),
        updated_by=by,
        note=note,
    )


def status(workspace: Workspace, job: str) -> dict[str, Any]:
    """Return what is known of a job, as plain JSON values."""
    documents = JobDocuments(workspace.storage, job)
    seen = observe(workspace, job)
    memory = documents.supervision.read() or Supervision()
    heartbeat = seen.heartbeat
    health = assess(seen, memory, decide(seen, memory))
    diagnosis = diagnose(workspace, seen)
    return {
        "job": job,
        "described": is_described(workspace, job),
        "desired": seen.desired.state if seen.desired else None,
        "phase": seen.phase.value,
        "reason": seen.reason,
        "since": seen.since.isoformat(),
        "health": health.level.value,
        "findings": [asdict(finding) for finding in health.findings],
        "incarnation": seen.incarnation,
        "pid": heartbeat.process.pid if heartbeat and is_alive(heartbeat.process) else None,
        "metrics": (heartbeat.metrics or None) if heartbeat and seen.phase.alive else None,
        "notes": list(heartbeat.notes) if heartbeat and seen.phase.alive else [],
        "checkpoint": dump(documents.checkpoint.read()),
        "batch": seen.exit.batch if seen.exit else heartbeat.batch if heartbeat else None,
        "progress": dump(seen.progress.last) if seen.progress else None,
        "totals": dump(documents.current_totals()),
        "restarts": [dump(entry) for entry in memory.restarts],
        "decisions": [dump(entry) for entry in memory.decisions[-10:]],
        "error": dump(seen.error),
        "diagnosis": asdict(diagnosis) if diagnosis else None,
        "operation": dump(active_operation(workspace, job)),
        "changed": _changed(workspace, seen),
        "logs": str(workspace.log_dir(job, seen.incarnation)) if seen.incarnation else None,
    }


def unknown(workspace: Workspace, job: str, error: StreamwardenError) -> dict[str, Any]:
    """Return :func:`status` of a job of which a document can't be read: the error, and nothing of all else."""
    nothing = dict.fromkeys(("desired", "since", "health", "incarnation", "pid", "metrics", "checkpoint", "batch"))
    nothing |= dict.fromkeys(("progress", "totals", "diagnosis", "operation", "changed", "logs"))
    lists: dict[str, list[Any]] = {name: [] for name in ("findings", "restarts", "decisions", "notes")}
    found = {
        "job": job,
        "described": is_described(workspace, job),
        "phase": "unknown",
        "reason": error.what.splitlines()[0],
        "error": dump(ErrorInfo.of(error)),
    }
    return {**nothing, **lists, **found}


def metrics_targets(workspace: Workspace) -> dict[str, str]:
    """Return by job where its driver's metrics are: of each that should run, the last known address.

    Also where the driver is down. If another job's has its port by now, port 0 stands in its place, on which nobody
    answers either. Jobs whose drivers never had an address are left out.
    """
    living: dict[str, str] = {}
    down: dict[str, str] = {}
    for job in deployed_jobs(workspace):
        try:
            seen = observe(workspace, job)
        except StreamwardenError as error:
            if error.code != "DOCUMENT_INVALID":
                raise
            # Of a job whose documents are damaged nothing is known; the others are well.
            continue
        address = seen.heartbeat.metrics if seen.heartbeat else ""
        if seen.phase.alive and address:
            living[job] = address
        elif seen.desired is not None and seen.desired.state == "running":
            documents = JobDocuments(workspace.storage, job)
            beats = (documents.heartbeat(one).read() for one in reversed(documents.incarnations()))
            last = next((beat.metrics for beat in beats if beat is not None and beat.metrics), None)
            if last is not None:
                down[job] = last
    taken = set(living.values())
    free = {job: f"{at.rpartition(':')[0]}:0" if at in taken else at for job, at in down.items()}
    return dict(sorted({**living, **free}.items()))


def _stops(documents: JobDocuments, seen: Observation) -> bool:
    # One of a suspended job ends by itself, or is asked to by a supervisor, at any moment.
    if seen.phase is Phase.STOPPING or (seen.desired is not None and seen.desired.state == "suspended"):
        return True
    # Asked already, but not yet aware of it, or done with it since it was observed: not a driver to leave alone.
    return seen.incarnation is not None and any(r.kind == "stop" for r in documents.requests(seen.incarnation))


def _changed(workspace: Workspace, seen: Observation) -> list[str] | None:
    """Return the fields that a deploy would change, by the YAML and by what a rescale decided; None: can't be said."""
    if seen.desired is None:
        return None
    try:
        return changed_fields(seen.desired.spec, effective_spec(workspace, seen.job))
    except StreamwardenError:
        # The file is gone, or wrong: `deploy` and `diff` say how.
        return None
