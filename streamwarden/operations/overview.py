"""What a list shows of a job: its state, its health and its newest batches, from control documents alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.progress import BatchProgress
from streamwarden.model.supervision import Supervision
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.savepoints import catalog
from streamwarden.savepoints.catalog import Savepoint
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.decide import assess, decide
from streamwarden.supervision.described import is_described
from streamwarden.supervision.health_rules import Health, Level
from streamwarden.supervision.observe import Observation, Phase, observe

__all__ = ["Overview", "Trouble", "overview"]


class Trouble(IntEnum):
    """How much a job needs a person, from most to least."""

    DOWN = 0
    CRITICAL = 1
    WARN = 2
    BUSY = 3
    """An operation works on it, or it starts, retries or stops."""
    OK = 4
    STOPPED = 5
    NOT_DEPLOYED = 6


@dataclass(frozen=True)
class Overview:
    """One job in a list.

    Parameters
    ----------
    job
        Its name.
    described
        Whether its YAML exists.
    seen
        The observation; None if a document is damaged.
    health
        The verdict of the health rules.
    memory
        Restarts and decisions of its supervisor.
    operation
        The operation that works on it now.
    savepoint
        The newest one.
    error
        Why the job can't be shown, if its documents are damaged.
    """

    job: str
    described: bool
    seen: Observation | None
    health: Health
    memory: Supervision
    operation: Operation | None = None
    savepoint: Savepoint | None = None
    error: StreamwardenError | None = None

    @property
    def recent(self) -> list[BatchProgress]:
        """The newest batches of the current incarnation, oldest first."""
        progress = self.seen.progress if self.seen is not None else None
        return progress.recent if progress is not None else []

    @property
    def last(self) -> BatchProgress | None:
        """The newest batch of the current incarnation."""
        progress = self.seen.progress if self.seen is not None else None
        return progress.last if progress is not None else None

    @property
    def trouble(self) -> Trouble:
        """How much the job needs a person."""
        if self.seen is None or self.seen.phase in (Phase.FAILED, Phase.DEAD, Phase.SILENT):
            # An operation stops and starts drivers itself.
            return Trouble.BUSY if self.operation is not None else Trouble.DOWN
        if self.health.level is not Level.OK:
            return Trouble.CRITICAL if self.health.level is Level.CRITICAL else Trouble.WARN
        if self.operation is not None:
            return Trouble.BUSY
        return {
            Phase.RUNNING: Trouble.OK,
            Phase.STOPPED: Trouble.STOPPED,
            Phase.NOT_DEPLOYED: Trouble.NOT_DEPLOYED,
        }.get(self.seen.phase, Trouble.BUSY)


def overview(workspace: Workspace, job: str) -> Overview:
    """Return what a list shows of a job. A damaged document is part of the result, so that other jobs are shown."""
    documents = JobDocuments(workspace.storage, job)
    described = is_described(workspace, job)
    try:
        seen = observe(workspace, job)
        memory = documents.supervision.read() or Supervision()
        return Overview(
            job=job,
            described=described,
            seen=seen,
            health=assess(seen, memory, decide(seen, memory)),
            memory=memory,
            # Of a job that was never deployed, it has not looked for one.
            operation=seen.operation if seen.incarnation else active_operation(workspace, job),
            savepoint=catalog.newest(workspace, job),
        )
    except StreamwardenError as error:
        if error.code != "DOCUMENT_INVALID":
            raise
        return Overview(job, described, None, Health(), Supervision(), error=error)
