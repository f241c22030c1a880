"""The status of a job, for people and for Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.row_rules import quarantine_of
from streamwarden.model.supervision import Supervision
from streamwarden.operations.diagnosis import diagnose
from streamwarden.operations.spec_diff import changed_fields
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.runtime.processes import is_alive
from streamwarden.store.documents import JobDocuments, dump
from streamwarden.store.each import for_each
from streamwarden.store.effective_spec import effective_spec
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.described import is_described
from streamwarden.supervision.driver_control import (
    deployed_jobs,
)
from streamwarden.supervision.observe import Observation, observe

__all__ = ["job_status", "metrics_targets"]


def job_status(workspace: Workspace, job: str) -> dict[str, Any]:
    """Return the status of a job as plain JSON values."""
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
        "row_rules": _row_rules(seen),
        "logs": str(workspace.log_dir(job, seen.incarnation)) if seen.incarnation else None,
    }


def metrics_targets(workspace: Workspace) -> dict[str, str]:
    """Return, by job, the address of its driver's metrics: for each job that must run, the last known address.

    Includes jobs whose driver is down, unless an operation works on them. If another job's driver uses that port now,
    the port is 0, where no process answers. Omits jobs whose drivers never had an address.
    """
    living: dict[str, str] = {}
    down: dict[str, str] = {}
    jobs = deployed_jobs(workspace)
    for job, seen in zip(jobs, for_each(workspace, jobs, lambda job: _observed(workspace, job)), strict=True):
        if seen is None:
            continue
        address = seen.heartbeat.metrics if seen.heartbeat else ""
        if seen.phase.alive and address:
            living[job] = address
        elif seen.desired is not None and seen.desired.state == "running" and seen.operation is None:
            documents = JobDocuments(workspace.storage, job)
            beats = (documents.heartbeat(one).read() for one in reversed(documents.incarnations()))
            last = next((beat.metrics for beat in beats if beat is not None and beat.metrics), None)
            if last is not None:
                down[job] = last
    taken = set(living.values())
    free = {job: f"{at.rpartition(':')[0]}:0" if at in taken else at for job, at in down.items()}
    return dict(sorted({**living, **free}.items()))


def _observed(workspace: Workspace, job: str) -> Observation | None:
    try:
        return observe(workspace, job)
    except StreamwardenError as error:
        if error.code != "DOCUMENT_INVALID":
            raise
        # A job with damaged documents is skipped; the other jobs are unaffected.
        return None


def _row_rules(seen: Observation) -> list[dict[str, str]]:
    """Return the row rules of the deployed spec, which judge the job's batches whatever the suites say now."""
    return [
        {"table": sink.table, "id": rule.id, "reason": rule.reason, "quarantine": quarantine_of(sink.table)}
        for sink in (seen.desired.spec.delta_sinks if seen.desired is not None else ())
        for rule in sink.row_rules
    ]


def _changed(workspace: Workspace, seen: Observation) -> list[str] | None:
    """Return the fields that a deploy would change, from the YAML and from rescales; None if unknown."""
    if seen.desired is None:
        return None
    try:
        return changed_fields(seen.desired.spec, effective_spec(workspace, seen.job))
    except StreamwardenError:
        # The file is missing or invalid: `deploy` and `diff` report the error.
        return None
