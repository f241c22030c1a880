"""An operation in a task's log: its steps as they happen, and the result of an operation that an earlier try ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow.sdk import Context

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation, Step
from streamwarden.model.record import utc_now
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["ended_operation", "seconds_of", "steps_logged"]


def ended_operation(context: Context, workspace: Workspace, job: str, by: str, *, retries: int) -> Operation | None:
    """Return the operation that an earlier try of this task ended without reporting to Airflow, or None.

    Parameters
    ----------
    by
        The id of the DAG run, as an operation records it.
    retries
        The operator's retries. Only a clear raises the granted tries above them, and a clear requests a new operation.
    """
    ti = context["ti"]
    if ti.try_number <= 1 or ti.max_tries > retries:
        return None
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is None or found.by != by or found.state not in ("done", "failed", "rolled back"):
        return None
    return found


def seconds_of(step: Step) -> float | None:
    """Return the duration of a step in seconds, or None while it runs."""
    return round((step.ended_at - step.started_at).total_seconds(), 3) if step.ended_at else None


@contextmanager
def steps_logged(workspace: Workspace, job: str, by: str, log: Any) -> Iterator[None]:
    """Log the steps of an operation as they appear in its document, while the body performs the operation."""
    document, began = JobDocuments(workspace.storage, job).operation, utc_now()
    ended = threading.Event()
    said: dict[tuple[str, int], bool] = {}

    def look() -> None:
        found = document.read()
        if found is None or found.by != by or (found.state != "running" and found.started_at < began):
            return
        for number, step in enumerate(found.steps):
            before, key = said.get((found.id, number)), (found.id, number)
            if before is None and step.ended_at is None:
                log.info("step %s", step.name)
            elif not before and step.ended_at is not None:
                log.info("step %s: %s (%.1f s)", step.name, step.detail or "ended", seconds_of(step) or 0)
            said[key] = step.ended_at is not None

    def follow() -> None:
        while not ended.wait(1.0):
            # If the documents can't be read now, the next poll reads them.
            with suppress(OSError, StreamwardenError):
                look()

    follower = threading.Thread(target=follow, name="steps", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join(timeout=5)
        with suppress(OSError, StreamwardenError):
            look()
