"""Deploy a job: start it, change it live, or roll out its changed YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import Desired
from streamwarden.operations.field_effects import Effect
from streamwarden.operations.module_load import check_module
from streamwarden.operations.rollout import interrupted_rollout, is_same_rollout, rollout, settle
from streamwarden.operations.spec_diff import Change, RolloutPlan, plan
from streamwarden.runtime.launchers.launch import launch_driver
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.savepoints.take import Report
from streamwarden.store.documents import JobDocuments, dump
from streamwarden.store.effective_spec import forget_overruled, parallelism_of
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.act import kill_silent, record_decision
from streamwarden.supervision.described import is_described
from streamwarden.supervision.driver_control import (
    forgive,
    request_stop,
    wait_for,
)
from streamwarden.supervision.observe import Observation, Phase, observe
from streamwarden.supervision.silence import observe_for_sure

__all__ = ["Deployment", "deploy_job", "unknown"]


@dataclass(frozen=True)
class Deployment:
    """The result of a deploy.

    Parameters
    ----------
    job
        The job.
    incarnation
        The driver that runs the job.
    launched
        False if a running driver was left alone: its spec is the same, or differs only in fields that drivers do not
        read.
    effect
        The strongest effect of the changes in the YAML.
    changes
        The changes in the YAML.
    operation
        The id of the rollout; None if no driver was running, so that no rollout was needed.
    """

    job: str
    incarnation: str
    launched: bool
    effect: Effect = Effect.NONE
    changes: tuple[Change, ...] = ()
    operation: str | None = None


def deploy_job(
    workspace: Workspace,
    job: str,
    *,
    by: str,
    note: str = "",
    stop_timeout: float = 300,
    health_timeout: float = 300,
    report: Report | None = None,
) -> Deployment:
    """Run a job as its YAML says now.

    If a driver already does, or if only fields have changed that drivers do not read, the driver is left alone. Any
    other change of a running job is a rollout: it waits until the new driver is healthy, or rolls back; see
    :mod:`~streamwarden.operations.rollout`. A change that contradicts the checkpoint is refused, whether or not the job
    runs. A job that is down is started with a fresh restart budget, without a savepoint and without a wait for the new
    driver: see :func:`~streamwarden.supervision.driver_control.wait_for`.

    If a rollout's process died, the same call resumes that rollout; any other call first completes it.

    Parameters
    ----------
    workspace
        The workspace of the job.
    job
        The job's name.
    by, note
        Actor and reason, for the record.
    stop_timeout
        Seconds that a driver with another spec may take to stop.
    health_timeout
        Seconds until a rolled-out job that commits no batch counts as unhealthy.
    report
        Called with the progress of a rollout.

    Raises
    ------
    StreamwardenError
        With no change made: ``JOB_UNKNOWN``, ``CONFIG_INVALID``, ``JOB_MODULE_INVALID``, ``OPERATION_RUNNING``,
        ``ROLLOUT_REFUSED``. Otherwise ``STOP_TIMED_OUT``, and the errors of
        :func:`~streamwarden.operations.rollout.rollout`.
    """
    planned, written = plan(workspace, job), parallelism_of(workspace.job(job))
    if observe(workspace, job).phase is Phase.SILENT:
        # The silence may be short, as after an outage: then the driver is left alone like any running driver.
        observe_for_sure(workspace, job)
        planned = plan(workspace, job)
    refuse_if_busy(workspace, job)
    planned.refuse()
    left = interrupted_rollout(workspace, job)
    ours = left is not None and is_same_rollout(left, planned.wanted, by=by, reason=note)
    if left is not None and not ours:
        settle(workspace, left, health_timeout=health_timeout, report=report)
        planned, written = plan(workspace, job), parallelism_of(workspace.job(job))
        planned.refuse()
    documents = JobDocuments(workspace.storage, job)
    seen = observe(workspace, job)
    stopping = seen.phase.alive and _stops(documents, seen)
    # An interrupted rollout has stopped or changed the job, so there is an earlier state to roll back to. The same is
    # true if a job must run and its driver stops for an operation that did not wait for the driver's end.
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
    if not ours and not planned.loaded:
        check_module(workspace, planned.wanted)
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
    """Start a job that is down or already stopping, and return its driver's incarnation."""
    job = planned.job
    desired = _desired(workspace, planned, seen.desired, by=by, note=note)
    # Before the old driver ends: a supervisor that observes the end and restarts the job then uses this spec.
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
    kill_silent(workspace, seen)
    return launch_driver(workspace, desired, by=by, reason=note or "deploy")


def _desired(workspace: Workspace, planned: RolloutPlan, was: Desired | None, *, by: str, note: str) -> Desired:
    return Desired(
        # An interrupted operation recognises its own switch by this id, even after another deploy.
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


def unknown(workspace: Workspace, job: str, error: StreamwardenError) -> dict[str, Any]:
    """Return the status of a job with an unreadable document: the error, and no other values."""
    nothing = dict.fromkeys(("desired", "since", "health", "incarnation", "pid", "metrics", "checkpoint", "batch"))
    nothing |= dict.fromkeys(("progress", "totals", "diagnosis", "operation", "changed", "logs"))
    lists: dict[str, list[Any]] = {name: [] for name in ("findings", "restarts", "decisions", "notes", "row_rules")}
    found = {
        "job": job,
        "described": is_described(workspace, job),
        "phase": "unknown",
        "reason": error.what.splitlines()[0],
        "error": dump(ErrorInfo.of(error)),
    }
    return {**nothing, **lists, **found}


def _stops(documents: JobDocuments, seen: Observation) -> bool:
    # The driver of a suspended job ends by itself at any moment, or a supervisor asks it to stop.
    if seen.phase is Phase.STOPPING or (seen.desired is not None and seen.desired.state == "suspended"):
        return True
    # The driver has a stop request, unread or carried out since the observation: it must not be left alone.
    return seen.incarnation is not None and documents.stop(seen.incarnation).read() is not None
