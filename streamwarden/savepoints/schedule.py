"""Whether a job's periodic savepoint is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from croniter import croniter

from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.durations import format_duration
from streamwarden.model.record import utc_now
from streamwarden.model.savepoint import Origin
from streamwarden.model.spec import SavepointSpec
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Phase, observe

__all__ = ["reason_to_skip", "schedule_text"]

_EARLY = 0.1
"""Fraction of an interval that may be missing: a scheduler's runs don't start at the exact second."""


def schedule_text(spec: SavepointSpec) -> str:
    """Return a short description of the schedule of periodic savepoints; empty if there is none."""
    if spec.every is not None:
        return f"every {format_duration(spec.every)}"
    return f"cron {spec.cron}" if spec.cron is not None else ""


def reason_to_skip(
    workspace: Workspace, job: str, *, planned: str | None = None, now: datetime | None = None
) -> str | None:
    """Return why no periodic savepoint of a job is due now, or None if it is due.

    Uses the deployed spec and not the YAML: a changed YAML is not in force before it is deployed.

    Parameters
    ----------
    planned
        The caller's schedule, as :func:`schedule_text` writes it. If the deployed spec has another schedule, a
        savepoint is due by the deployed spec. None ignores the schedule: a person requests the savepoint.
    now
        The current time; default the real time.
    """
    seen = observe(workspace, job)
    desired = seen.desired
    if desired is None:
        return f"{job} is not deployed"
    if seen.operation is not None:
        return f"{seen.operation.kind} {seen.operation.id} is working on {job}, and takes its own savepoints"
    if desired.state == "suspended":
        return f"{job} was suspended by {desired.updated_by}: nothing new since then"
    if not seen.phase.alive or seen.phase is Phase.STOPPING:
        return f"{job} is {seen.phase}: {seen.reason}"
    found = catalog.savepoints(workspace, job)
    if planned is not None:
        early = _early(desired.spec.savepoints, planned, found, now or utc_now())
        if early is not None:
            return f"{job}: {early}"
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    batch = CheckpointReader(workspace.storage, reference.path).last_commit() if reference is not None else None
    if reference is None or batch is None:
        return f"{job} has not committed a batch yet"
    for one in found:
        # An idle job's savepoints are identical, and would push older, different savepoints out of retention.
        if (one.summary.generation, one.summary.batch) == (reference.generation, batch) and one.verdict != "damaged":
            return f"{job} has no new batch since savepoint {one.id} (batch {batch})"
    return None


def _early(spec: SavepointSpec, planned: str, found: list[Savepoint], now: datetime) -> str | None:
    deployed = schedule_text(spec)
    if deployed == planned:
        return None
    if not deployed:
        return f"the deployed spec takes no periodic savepoints (YAML: {planned}); deploy the job to change that"
    last = next((one.summary.taken_at for one in found if one.record.origin is Origin.PERIODIC), None)
    if last is None:
        return None
    if spec.every is not None:
        due: datetime = last + spec.every * (1 - _EARLY)
    else:
        assert spec.cron is not None
        # A savepoint's time is that of its end, shortly after its scheduled time.
        due = croniter(spec.cron, last + timedelta(seconds=1)).get_next(datetime)
    if now >= due:
        return None
    return f"by the deployed schedule ({deployed}; YAML: {planned}) the next one is due at {due:%Y-%m-%d %H:%M:%S} UTC"
