"""The base of restores, rollouts and rescales: ownership, errors, the stop, and the savepoint that they take."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from streamwarden.errors import OUTAGES, StreamwardenError
from streamwarden.model.savepoint import Manifest, Origin
from streamwarden.model.status import CheckpointRef, Decided, Step
from streamwarden.runtime.operation_lock import OperationHandle
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import Report, take
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.workspace import Workspace
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from streamwarden.supervision.silence import Silence

__all__ = ["Interrupted", "JobOperation", "is_anothers", "is_passing", "named", "stopped_since"]

_log = logging.getLogger(__name__)

D = TypeVar("D", bound=Decided)


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error is not the job's: another process performs the operation, or the store has an outage."""
    return is_anothers(error) or (isinstance(error, StreamwardenError) and error.code in OUTAGES)


class Interrupted(Exception):
    """The process of an operation is ended from outside: the operation has not failed, and the next try resumes it."""


def is_anothers(error: BaseException | None) -> bool:
    """Return whether an error means that another process has taken over the operation."""
    return isinstance(error, StreamwardenError) and error.code == "OPERATION_INTERRUPTED"


def named(error: Exception) -> StreamwardenError:
    """Return an error of an operation as a catalogued error: ``OPERATION_FAILED`` if it has no code of its own."""
    if isinstance(error, StreamwardenError):
        return error
    words = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return StreamwardenError("OPERATION_FAILED", words)


def stopped_since(documents: JobDocuments) -> StreamwardenError | None:
    """Return the error that names who stopped a job since a killed try started it; None if it was not stopped."""
    desired = documents.desired.read()
    if desired is None or desired.state == "running":
        return None
    return StreamwardenError("OPERATION_CANCELLED", f"{desired.job}: it was stopped since, by {desired.updated_by}")


class JobOperation:
    """An operation that stops a job and starts it in another way.

    Parameters
    ----------
    workspace, handle
        The workspace, and the operation's record.
    stop_timeout, health_timeout
        Seconds.
    report
        Called with the progress.
    """

    def __init__(
        self,
        workspace: Workspace,
        handle: OperationHandle,
        stop_timeout: float,
        health_timeout: float,
        report: Report | None,
    ) -> None:
        self.handle = handle
        self._workspace = workspace
        self._job = handle.operation.job
        self._documents = JobDocuments(workspace.storage, self._job)
        self._stop_timeout = stop_timeout
        self._health_timeout = health_timeout
        self._report = report
        self._silence = Silence()

    @contextmanager
    def failure_on_record(self) -> Iterator[None]:
        """Record a failed operation as failed, unless it has already ended or another process has taken it over.

        Raises
        ------
        StreamwardenError
            The original error; ``OPERATION_FAILED`` for system errors and all other exceptions.
        """
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            failure = named(error)
            # If the error is retryable, an operation that is half way stays open: a repeated call resumes it.
            left = self._half_way and failure.retryable
            if self.handle.operation.state == "running" and not is_anothers(failure) and not left:
                self.handle.end("failed", failure)
            raise failure from error

    @property
    def _half_way(self) -> bool:
        """Whether the operation may have changed the job, judged by its plan alone: an outage hides all else."""
        return self._plan.get("failure") is not None

    @property
    def _kind(self) -> str:
        return self.handle.operation.kind

    @property
    def _plan(self) -> dict[str, Any]:
        return self.handle.operation.plan

    @property
    def _by(self) -> str:
        return f"{self._kind} {self.handle.id} by {self.handle.operation.by}"

    @property
    def _reason(self) -> str:
        return str(self.handle.operation.params.get("reason") or "")

    def _decide(self, document: Document[D], value: D) -> None:
        """Write a deciding document, with a compare-and-swap on the version that was read before the ownership check.

        Raises
        ------
        StreamwardenError
            ``OPERATION_INTERRUPTED``, with nothing written: another process has taken over, and decides itself.
        """

        def change(found: D | None) -> D:
            self.handle.check()
            return value if found is None else value.model_copy(update={"takeovers": found.takeovers})

        document.update(change)

    def _next_generation(self) -> int:
        """Reserve and return a generation that was never used, not even by another try of an operation.

        The Spark of a killed try may still write into its folder when the next try begins, and a paused try may wake.
        """

        def use_up(found: CheckpointRef | None) -> CheckpointRef:
            self.handle.check()
            assert found is not None
            return found.model_copy(update={"highest": max(found.generation, found.highest) + 1})

        if self._documents.checkpoint.read() is None:
            return 1
        return self._documents.checkpoint.update(use_up).highest

    def _stop_driver(self, step: Step, *, query_only: bool = False) -> None:
        step.detail = driver_control.stop_in_turn(
            self._workspace,
            self._job,
            by=self._by,
            reason=self._kind,
            timeout=self._stop_timeout,
            query_only=query_only,
        )

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Log a failure and continue: the failure must not hide the error that is being handled."""
        try:
            yield
        except (OSError, StreamwardenError) as error:
            _log.warning("%s, %s %s: %s: %s", self._job, self._kind, self.handle.id, what, error)

    def _start_again(self) -> str:
        """Start the job again, if no supervisor has started it; return the incarnation."""
        seen = observe(self._workspace, self._job)
        if seen.phase.alive and seen.incarnation is not None:
            return seen.incarnation
        return driver_control.start(self._workspace, self._job, by=self._by, reason=f"its {self._kind} failed")

    def _take(self, origin: Origin) -> Manifest:
        note = f"before {self._kind} {self.handle.id}"
        return take(self._workspace, self._job, origin=origin, by=self._by, note=note, report=self._report)

    def _take_and_hold(self, origin: Origin) -> Manifest:
        """Take the savepoint for the operation's start or rollback, and keep it in use until :meth:`_release`."""
        # Releases a killed try's savepoint: a supervisor may have restarted the job since.
        self._release()
        made = self._take(origin)
        self.handle.plan(savepoint=made.id)
        catalog.use(self._workspace, catalog.find(self._workspace, self._job, made.id), self.handle.id)
        return made

    def _release(self) -> None:
        name = self._plan.get("savepoint")
        if not name:
            return
        try:
            found = catalog.find(self._workspace, self._job, name)
        except StreamwardenError as error:
            if error.code != "SAVEPOINT_NOT_FOUND":
                raise
            return
        catalog.release(self._workspace, found, self.handle.id)

    def _say(self, text: str) -> None:
        if self._report is not None:
            self._report(text, 0, 0)
