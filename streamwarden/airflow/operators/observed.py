"""A job's state as operators report it."""

from __future__ import annotations

from typing import Any

from streamwarden.operations.status import job_status
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation

__all__ = []


def is_suspended(seen: Observation) -> bool:
    return seen.desired is not None and seen.desired.state == "suspended"


def summary_of(workspace: Workspace, seen: Observation) -> dict[str, Any]:
    status = job_status(workspace, seen.job)
    kept = ("job", "incarnation", "phase", "reason", "batch", "totals")
    return {**{key: status[key] for key in kept}, "restarts": len(status["restarts"])}
