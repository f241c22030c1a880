"""The newest batches of a job: of its table, and those that the driver has still to write there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_history import ProgressHistory
from streamwarden.model.record import utc_now
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import observe

__all__ = ["newest_batches"]

_SHOWN = 100
_BACK = timedelta(days=7)


def newest_batches(workspace: Workspace, job: str) -> tuple[list[dict[str, Any]], StreamwardenError | None]:
    """Return a job's batches of the last week, newest first, and why some are missing if the table can't be read."""
    seen = observe(workspace, job)
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    rows: list[dict[str, Any]] = []
    problem = None
    try:
        rows = ProgressHistory(workspace).batches(job, since=utc_now() - _BACK, last=_SHOWN)
    except StreamwardenError as error:
        problem = error
    if seen.progress is not None:
        known = {(row["incarnation"], row["batch"]) for row in rows}
        generation = seen.heartbeat.generation if seen.heartbeat else reference.generation if reference else 0
        for done in seen.progress.recent:
            if (seen.progress.incarnation, done.batch) not in known:
                pending = done.source.pending if done.source is not None else None
                own = {"incarnation": seen.progress.incarnation, "generation": generation, "source_pending": pending}
                rows.append({**done.__dict__, **own})
    return sorted(rows, key=lambda row: row["at"], reverse=True)[:_SHOWN], problem
