"""Operations of several steps: one at a time for each job, each step on record, and known to be dead when it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

from streamwarden.errors import StreamwardenError
from streamwarden.model.status import Decided, ErrorInfo, Operation, Step, utc_now
from streamwarden.runtime.processes import current_process, is_alive
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace

__all__ = [
    "OperationHandle",
    "abandon",
    "active_operation",
    "begin",
    "interrupted_operation",
    "is_half_way",
    "operations_of",
    "refuse_if_busy",
    "refuse_if_half_way",
]

_log = logging.getLogger(__name__)

_STALE = timedelta(seconds=60)
"""After which an operation of another machine that says nothing counts as dead. It speaks every 5 s."""

_SPEAK_S = 5.0

D = TypeVar("D", bound=Decided)


def active_operation(workspace: Workspace, job: str) -> Operation | None:
    """Return the operation that works on a job now; None also where one was interrupted."""
    found = JobDocuments(workspace.storage, job).operation.read()
    return found if found is not None and _lives(found) else None


def operations_of(documents: JobDocuments) -> Iterator[Operation]:
    """Return a job's operations, each once, newest first: the one that works on it or was the last, then those filed.

    One that has ended may not be filed yet.
    """
    current = documents.operation.read()
    if current is not None:
        yield current
    for name in reversed(documents.past_operations()):
        if current is None or name != current.id:
            found = documents.past_operation(name).read()
            if found is not None:
                yield found


def interrupted_operation(workspace: Workspace, job: str, kind: str) -> Operation:
    """Return the operation of a kind whose process died before its end.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING`` if it is still worked on, ``OPERATION_NONE`` if there is none.
    """
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is None or found.kind != kind or found.state != "running":
        raise StreamwardenError("OPERATION_NONE", f"{job}: no {kind} was interrupted")
    if _lives(found):
        raise StreamwardenError("OPERATION_RUNNING", _describe(found))
    return found


def refuse_if_busy(workspace: Workspace, job: str, *, but: str | None = None) -> None:
    """Raise if an operation works on a job.

    Parameters
    ----------
    but
        The operation that asks itself.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``.
    """
    found = active_operation(workspace, job)
    if found is not None and found.id != but:
        raise StreamwardenError("OPERATION_RUNNING", _describe(found))


def abandon(workspace: Workspace, job: str, *, by: str) -> Operation:
    """End an operation whose process died, by hand: nobody goes on with it, and nothing is rolled back.

    What its switch has written stays in force. The record is kept, as failed with ``OPERATION_ABANDONED``.

    Raises
    ------
    StreamwardenError
        ``OPERATION_NONE``, or ``OPERATION_RUNNING`` where the process that performs it lives.
    """
    documents = JobDocuments(workspace.storage, job)

    def give_up(found: Operation | None) -> Operation:
        if found is None or found.state != "running":
            raise StreamwardenError("OPERATION_NONE", f"{job}: no operation is unfinished")
        if _lives(found):
            host = f"process {found.process.pid} on {found.process.host}" if found.process else "its process"
            raise StreamwardenError(
                "OPERATION_RUNNING", _describe(found), remedy=f"End {host} first; a rescale ends by `rescale --cancel`."
            )
        error = ErrorInfo.of(StreamwardenError("OPERATION_ABANDONED", f"{_describe(found)}; ended by {by}"))
        return found.model_copy(update={"state": "failed", "ended_at": utc_now(), "process": None, "error": error})

    ended = documents.operation.update(give_up)
    # Its process may be paused, and wake.
    _outdate(documents)
    documents.past_operation(ended.id).write(ended)
    return ended


def is_half_way(found: Operation) -> bool:
    """Tell whether a rescale may have put something in force already, and was not ended: it alone knows the way back.

    What is asked of restores is another one; and a rollout is brought to its end by the next deploy.
    """
    begun = found.plan.get("width") is not None or found.plan.get("failure") is not None
    return found.kind == "rescale" and found.state == "running" and begun


def refuse_if_half_way(workspace: Workspace, job: str, *, but: str | None = None) -> None:
    """Raise if an operation was interrupted half way, whether or not somebody goes on with it.

    Parameters
    ----------
    but
        The operation that asks itself.

    Raises
    ------
    StreamwardenError
        ``OPERATION_UNFINISHED``.
    """
    found = JobDocuments(workspace.storage, job).operation.read()
    if found is not None and found.id != but and is_half_way(found):
        raise StreamwardenError("OPERATION_UNFINISHED", _describe(found))


class OperationHandle:
    """An operation that this process performs.

    Parameters
    ----------
    workspace
        Where.
    operation
        Its document's first contents.
    resumed
        Whether another process began it.
    """

    def __init__(self, workspace: Workspace, operation: Operation, *, resumed: bool) -> None:
        self._document = JobDocuments(workspace.storage, operation.job).operation
        self._past = JobDocuments(workspace.storage, operation.job).past_operation(operation.id)
        self.operation = operation
        self.resumed = resumed
        self._ended = threading.Event()
        self._lock = threading.RLock()

    @property
    def id(self) -> str:
        """Its id."""
        return self.operation.id

    def plan(self, **values: Any) -> None:
        """Keep what another process would need to finish the operation."""
        self._change(lambda now: now.model_copy(update={"plan": {**now.plan, **values}}))

    def check(self) -> None:
        """Raise if another process performs the operation by now, and give a sign of life if not.

        Raises
        ------
        StreamwardenError
            ``OPERATION_INTERRUPTED``.
        """
        self._change(lambda now: now)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Record a step with its times; the body may set the step's ``detail``."""
        step = Step(name=name, started_at=utc_now())
        self._change(lambda now: now.model_copy(update={"steps": [*now.steps, step]}))
        try:
            yield step
        finally:
            step.ended_at = utc_now()
            self._change(lambda now: now.model_copy(update={"steps": [*now.steps[:-1], step]}))

    def end(self, state: Literal["done", "failed", "rolled back"], error: StreamwardenError | None = None) -> Operation:
        """Say how it ended, and free the job for the next one.

        It has ended once its document says so. That it is filed, too, can wait: whoever begins the next one does it.
        """
        self._ended.set()
        update = {"state": state, "ended_at": utc_now(), "error": ErrorInfo.of(error) if error else None}
        self._change(lambda now: now.model_copy(update=update))
        try:
            self._past.write(self.operation)
        except (OSError, StreamwardenError) as failure:
            _log.warning("%s, operation %s ended, and is not filed yet: %s", self.operation.job, self.id, failure)
        return self.operation

    def speak(self) -> None:
        """Renew the sign of life until the end; runs in a thread."""
        while not self._ended.wait(_SPEAK_S):
            try:
                with self._lock:
                    # An end that is being written is the last word.
                    if not self._ended.is_set():
                        self.check()
            except (OSError, StreamwardenError):
                # Told apart when the next step is recorded; a short outage of the storage ends nothing.
                continue

    def let_go(self) -> None:
        """Leave an operation that was not ended to be resumed: whoever performs it is interrupted."""
        if not self._ended.is_set():
            self._ended.set()
            self._change(lambda now: now.model_copy(update={"process": None}))

    def _change(self, change: Any) -> None:
        def apply(found: Operation | None) -> Operation:
            if found is None or found.id != self.id or found.process != self.operation.process:
                raise StreamwardenError("OPERATION_INTERRUPTED", f"{self.operation.job}: {self.id} was taken over")
            changed: Operation = change(found)
            return changed.model_copy(update={"seen_at": utc_now()})

        with self._lock:
            self.operation = self._document.update(apply)


@contextmanager
def begin(
    workspace: Workspace, job: str, kind: Literal["restore", "rollout", "rescale"], *, by: str, params: dict[str, Any]
) -> Iterator[OperationHandle]:
    """Begin an operation, or go on with the same one that its process died in.

    It is the same if kind, params and `by` are: so a retried task goes on where the one before it was killed, and
    nobody resumes what another asked for. Another one takes its place, unless it is half way.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING`` or ``OPERATION_UNFINISHED``.
    """
    now = utc_now()
    fresh = Operation(
        id=new_id(), kind=kind, job=job, by=by, params=params, started_at=now, seen_at=now, process=current_process()
    )
    replaced: list[Operation] = []
    documents = JobDocuments(workspace.storage, job)

    def take(found: Operation | None) -> Operation:
        replaced.clear()
        if found is not None and _lives(found):
            raise StreamwardenError("OPERATION_RUNNING", _describe(found))
        if found is not None and found.state == "running":
            if (found.kind, found.by, found.params) == (kind, by, params):
                return found.model_copy(update={"process": fresh.process, "seen_at": utc_now()})
            if is_half_way(found):
                raise StreamwardenError("OPERATION_UNFINISHED", _describe(found))
            replaced.append(found)
        elif found is not None and documents.past_operation(found.id).read() is None:
            # Who ended it was killed, or the store was away, before it was filed. Before its document is written over.
            documents.past_operation(found.id).write(found)
        return fresh

    taken = documents.operation.update(take)
    for old in replaced:
        documents.past_operation(old.id).write(old.model_copy(update={"state": "interrupted", "ended_at": utc_now()}))
    handle = OperationHandle(workspace, taken, resumed=taken.id != fresh.id)
    if handle.resumed or replaced:
        _outdate(documents)
    threading.Thread(target=handle.speak, name="operation", daemon=True).start()
    try:
        yield handle
    finally:
        handle.let_go()


def _outdate(documents: JobDocuments) -> None:
    """Make what the earlier performer has read of a job's decisions useless to it, before anything is decided anew.

    It may only be paused, between its check that the operation is its own and its write. That is bound to the version
    that it had read before the check.
    """
    _count_takeover(documents.desired)
    _count_takeover(documents.checkpoint)
    _count_takeover(documents.parallelism)


def _count_takeover(document: Document[D]) -> None:
    def count(found: D | None) -> D:
        assert found is not None
        return found.model_copy(update={"takeovers": found.takeovers + 1})

    if document.read() is not None:
        document.update(count)


def _lives(found: Operation) -> bool:
    if found.state != "running" or found.process is None:
        return False
    alive = is_alive(found.process)
    return bool(alive) if alive is not None else utc_now() - found.seen_at < _STALE


def _describe(found: Operation) -> str:
    step = f", at {found.steps[-1].name}" if found.steps else ""
    return f"{found.job}: {found.kind} {found.id} by {found.by} since {found.started_at:%H:%M:%S} UTC{step}"
