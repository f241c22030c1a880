"""The lock and record of a job's operation: at most one runs, each step is recorded, and a dead one is detected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation, OperationPlan, OperationState, Step, StepName
from streamwarden.model.record import Decided, ErrorInfo, utc_now
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
"""After this time without a sign of life, an operation of another machine counts as dead. Its interval is 5 s."""

_SPEAK_S = 5.0

D = TypeVar("D", bound=Decided)


def active_operation(workspace: Workspace, job: str) -> Operation | None:
    """Return the operation that works on a job now; None also if an operation was interrupted."""
    found = JobDocuments(workspace.storage, job).operation.read()
    return found if found is not None and _lives(found) else None


def operations_of(documents: JobDocuments) -> Iterator[Operation]:
    """Return a job's operations, each once, newest first: the current or last operation, then the archived operations.

    An ended operation may not be archived yet.
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
        ``OPERATION_RUNNING`` if its process lives, ``OPERATION_NONE`` if no such operation was interrupted.
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
        The id of the calling operation, which does not count.

    Raises
    ------
    StreamwardenError
        ``OPERATION_RUNNING``.
    """
    found = active_operation(workspace, job)
    if found is not None and found.id != but:
        raise StreamwardenError("OPERATION_RUNNING", _describe(found))


def abandon(workspace: Workspace, job: str, *, by: str) -> Operation:
    """End an operation whose process died, by hand. The operation is not resumed, and nothing is rolled back.

    The changes of its switch stay in force. The record is kept, as failed with ``OPERATION_ABANDONED``.

    Raises
    ------
    StreamwardenError
        ``OPERATION_NONE``, or ``OPERATION_RUNNING`` if the process of the operation lives.
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
        return found.model_copy(
            update={"state": OperationState.FAILED, "ended_at": utc_now(), "process": None, "error": error}
        )

    ended = documents.operation.update(give_up)
    # Its process may only be paused, and may wake up.
    _outdate(documents)
    documents.past_operation(ended.id).write(ended)
    return ended


def is_half_way(found: Operation) -> bool:
    """Return whether an unfinished rescale may already have changed the job: only its own record can roll it back.

    False for other kinds: another restore may replace a restore, and the next deploy finishes a rollout.
    """
    begun = found.plan.after is not None or found.plan.failure is not None
    return found.kind == "rescale" and found.state == "running" and begun


def refuse_if_half_way(workspace: Workspace, job: str, *, but: str | None = None) -> None:
    """Raise if an operation was interrupted half way, whether or not a process has resumed it.

    Parameters
    ----------
    but
        The id of the calling operation, which does not count.

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
        The workspace of the job.
    operation
        The initial content of its document.
    resumed
        Whether another process began the operation.
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
        """The operation's id."""
        return self.operation.id

    def plan(self, **values: Any) -> None:
        """Record values that another process needs to finish the operation: fields of :class:`.OperationPlan`."""
        assert values.keys() <= OperationPlan.model_fields.keys(), values.keys()
        self._change(lambda now: now.model_copy(update={"plan": now.plan.model_copy(update=values)}))

    def check(self) -> None:
        """Raise if another process has taken over the operation; otherwise write a sign of life.

        Raises
        ------
        StreamwardenError
            ``OPERATION_INTERRUPTED``.
        """
        self._change(lambda now: now)

    @contextmanager
    def step(self, name: StepName) -> Iterator[Step]:
        """Record a step with its times; the body may set the step's ``detail``."""
        step = Step(name=name, started_at=utc_now())
        self._change(lambda now: now.model_copy(update={"steps": [*now.steps, step]}))
        try:
            yield step
        finally:
            step.ended_at = utc_now()
            self._change(lambda now: now.model_copy(update={"steps": [*now.steps[:-1], step]}))

    def end(self, state: OperationState, error: StreamwardenError | None = None) -> Operation:
        """Record the result, and release the job for the next operation.

        The operation ends with the write of its document. If archiving it fails, the next operation archives it.
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
        """Write a sign of life regularly until the end; runs in a thread."""
        while not self._ended.wait(_SPEAK_S):
            try:
                with self._lock:
                    # No write may follow the result.
                    if not self._ended.is_set():
                        self.check()
            except (OSError, StreamwardenError):
                # The next recorded step raises if the operation was taken over; a short storage outage must not end it.
                continue

    def let_go(self) -> None:
        """Release an unfinished operation, so that another process can resume it."""
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
    """Begin an operation, or resume the same operation after its process died.

    Operations are the same if kind, params and `by` are equal: a retried task resumes where the killed task ended, and
    no caller resumes another caller's operation. A different operation replaces it, unless it is half way.

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
            # It was not archived, because of a kill or a store outage. Archive it before its document is overwritten.
            documents.past_operation(found.id).write(found)
        return fresh

    taken = documents.operation.update(take)
    for old in replaced:
        documents.past_operation(old.id).write(
            old.model_copy(update={"state": OperationState.INTERRUPTED, "ended_at": utc_now()})
        )
    handle = OperationHandle(workspace, taken, resumed=taken.id != fresh.id)
    if handle.resumed or replaced:
        _outdate(documents)
    threading.Thread(target=handle.speak, name="operation", daemon=True).start()
    try:
        yield handle
    finally:
        handle.let_go()


def _outdate(documents: JobDocuments) -> None:
    """Bump the versions of desired, checkpoint and parallelism, so that a paused previous owner fails its write.

    The previous owner may be paused between its ownership check and its write. The write is a compare-and-swap against
    the version that it read before the check.
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
