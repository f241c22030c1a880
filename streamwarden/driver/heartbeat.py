"""The thread of a driver that keeps its lease, writes its heartbeat and reads its stop request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Heartbeat, LandingState
from streamwarden.runtime.lease import LeaseHolder
from streamwarden.runtime.processes import current_process
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Heart"]

_log = logging.getLogger(__name__)

_STOP_POLL_S = 0.5
_STOP_POLL_S3 = 2.0
"""Seconds between two reads of the stop request, or the heartbeat's interval if that is shorter. A person waits for the
stop. On S3 each read is charged: 2 s make 43,200 a day."""


class Heart:
    """What a driver shows of itself, and what it hears from others.

    The public attributes are the fields of the next heartbeat; the driver sets them.

    Parameters
    ----------
    workspace
        The workspace of the job.
    documents
        The job's control documents.
    incarnation
        The id of this process's run.

    Attributes
    ----------
    stop
        Set when the driver is to stop: by a signal, or by a stop request.
    lease
        The job's lease, which this thread renews.
    """

    def __init__(self, workspace: Workspace, documents: JobDocuments, incarnation: str) -> None:
        self._workspace = workspace
        self._documents = documents
        self._incarnation = incarnation
        self._started_at = utc_now()
        self._fatal: StreamwardenError | None = None
        self._ended = threading.Event()
        self.process = current_process()
        self.lease = LeaseHolder(documents, incarnation, self.process, workspace.profile.lease)
        self.stop = threading.Event()
        self.state = DriverState.STARTING
        self.reason = "starting"
        self.generation = 0
        self.digest = ""
        self.batch: int | None = None
        self.failures = 0
        self.idle = False
        self.idle_at: datetime | None = None
        self.query_ended = False
        self.versions: dict[str, str] = {}
        self.notes: list[str] = []
        self.metrics = ""
        self.landing: Callable[[], LandingState] | None = None

    def start(self) -> None:
        """Begin to beat. The lease must have been acquired."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def end(self) -> None:
        """Beat no more."""
        self._ended.set()

    def check(self) -> None:
        """Raise ``LEASE_LOST`` if another driver has the lease: this one must end."""
        if self._fatal is not None:
            raise self._fatal

    def guard(self) -> None:
        """Raise if this driver may not write. Called before every write to a table.

        Raises
        ------
        StreamwardenError
            ``LEASE_LOST``, for good; what the store raises if it is unavailable, and the next try asks again.
        """
        self.check()
        try:
            self.lease.renew()
        except StreamwardenError as error:
            if error.code == "LEASE_LOST":
                self._fatal = error
            raise

    def request_stop(self, why: str) -> None:
        """Have the driver stop after its batch in flight."""
        # First: the stop takes effect even if logging fails.
        self.stop.set()
        _log.info("stop: %s", why)

    def say(self, state: DriverState, reason: str) -> None:
        """Set state and reason, and write them at once, also to the log.

        Raises
        ------
        StreamwardenError
            If the heartbeat can't be written, and a later one neither.
        """
        self.state, self.reason = state, reason
        _log.info("%s: %s", state.value, reason)
        try:
            self._write()
        except StreamwardenError as error:
            # The next heartbeat repeats it.
            if not error.retryable:
                raise
            _log.warning("heartbeat: %s", error)

    def _beat(self) -> None:
        every = self._workspace.profile.heartbeat.total_seconds()
        poll_s = _STOP_POLL_S if self._workspace.s3 is None else _STOP_POLL_S3
        renewed = time.monotonic()
        trouble = ""
        told = False

        def pause_s() -> float:
            # Overdue is a heartbeat only after a failure, which must not be repeated at once.
            due_s = renewed + every - time.monotonic()
            return due_s if 0 < due_s < poll_s else poll_s

        while not self._ended.wait(pause_s() if told else 0):
            try:
                if not told:
                    # Only once: if it can't be written, the next heartbeat contains the then current state.
                    told = True
                    self.say(DriverState.STARTING, "lease taken")
                self._read_stop_request()
                if time.monotonic() - renewed >= every:
                    renewed = time.monotonic()
                    self.lease.renew()
                    self._write()
                trouble = ""
            except StreamwardenError as error:
                if self._ended.is_set():
                    return
                if error.code == "LEASE_LOST":
                    self._fatal = error
                    return
                # Logged once, not twice a second.
                if error.code != trouble:
                    _log.warning("heartbeat: %s", error)
                trouble = error.code
            except Exception as error:
                # No exception may end this thread: a working driver would count as silent, and be killed. If the
                # documents are unreachable, the lease expires, and the guard then rejects commits.
                if self._ended.is_set():
                    return
                # Also only once: a traceback twice a second fills a disk that may already be full.
                if repr(error) != trouble:
                    _log.exception("heartbeat")
                trouble = repr(error)

    def _read_stop_request(self) -> None:
        request = None if self.stop.is_set() else self._documents.stop(self._incarnation).read()
        if request is not None:
            self.request_stop(f"asked by {request.by}: {request.reason or 'no reason given'}")

    def _write(self) -> None:
        self._documents.heartbeat(self._incarnation).write(
            Heartbeat(
                incarnation=self._incarnation,
                at=utc_now(),
                started_at=self._started_at,
                state=self.state,
                reason=self.reason,
                process=self.process,
                generation=self.generation,
                digest=self.digest,
                batch=self.batch,
                failures=self.failures,
                idle=self.idle,
                idle_at=self.idle_at,
                query_ended=self.query_ended,
                versions=self.versions,
                notes=self.notes,
                metrics=self.metrics,
                landing=self.landing() if self.landing else None,
            )
        )
