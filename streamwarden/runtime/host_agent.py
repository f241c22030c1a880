"""A driver host: it starts, watches and kills drivers on its machine for everybody who shares the place.

Drivers do not depend on the process that asked for them, such as an Airflow task. Nor do they depend on the host's own
process: a host that is started again finds its drivers. What a host knows is in its requests, see
:class:`~streamwarden.model.hosting.DriverStart`.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache

from streamwarden.errors import OUTAGES, ErrorCode, StreamwardenError
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.record import ErrorInfo, utc_now
from streamwarden.model.status import Exit
from streamwarden.names import part
from streamwarden.runtime.launchers.hosts import LOST, host_document
from streamwarden.runtime.launchers.local import start_here
from streamwarden.runtime.processes import current_process, is_alive, kill
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document, JobDocuments
from streamwarden.store.layout import STARTS
from streamwarden.store.workspace import Workspace

__all__ = ["POLL_S", "HostAgent"]

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks at the requests. 1 s: a start takes ten. On S3 it is one LIST, $0.43 a day."""

_SIGN = timedelta(seconds=3)
_YIELD = timedelta(seconds=1)
"""A host with more drivers waits longer before it takes a request: so much for each driver, at most ten times."""

_FORGET = timedelta(hours=1)
"""How long the request of an ended driver is kept, for people who look."""


_Act = Callable[[Document[DriverStart], DriverStart, str], bool]


class HostAgent:
    """Takes requests for drivers until it is stopped. Its drivers stay.

    Parameters
    ----------
    workspace
        The place.
    name
        The host's name; unique in the place, and the same after a restart.
    most
        How many drivers it runs at once; further requests are left to other hosts. None: any number.

    Raises
    ------
    StreamwardenError
        ``NAME_INVALID``.
    """

    def __init__(self, workspace: Workspace, *, name: str, most: int | None = None) -> None:
        part(name)
        self._workspace = workspace
        self._name = name
        self._most = most
        self._process = current_process()
        self._since = utc_now()
        self._signed = self._since - 2 * _SIGN

    def run(self, stop: threading.Event) -> None:
        """Look at the requests until `stop` is set.

        Raises
        ------
        StreamwardenError
            ``HOST_NAME_TAKEN`` if a host with this name lives elsewhere.
        """
        self._check_name(stop)
        _log.info("driver host %s for %s", self._name, self._workspace.base)
        while not stop.is_set():
            try:
                self.look()
            except (StreamwardenError, OSError) as error:
                # Whatever it is: in a container, all its drivers would end with this process.
                _log.warning("%s", error)
            stop.wait(POLL_S)

    def look(self) -> None:
        """Take requests, and watch the drivers that were started."""
        is_gone = cache(self._is_gone)
        mine: list[tuple[Document[DriverStart], DriverStart, str]] = []
        open_: list[tuple[Document[DriverStart], DriverStart, str]] = []
        storage = self._workspace.storage
        for key in storage.list(STARTS):
            document = Document(storage, key, DriverStart, derived=True)
            found = document.read_versioned()
            if found is None:
                continue
            start, etag = found
            if start.ended is not None:
                if utc_now() - start.ended > _FORGET:
                    document.delete()
            elif start.host is None:
                open_.append((document, start, etag))
            elif start.host == self._name:
                mine.append((document, start, etag))
            elif is_gone(start.host) and self._is_superseded(start):
                self._settle(document, start, etag, ended=utc_now())
        running = [start.job for document, start, etag in mine if self._attempt(self._tend, document, start, etag)]
        for document, start, etag in open_:
            if self._most is not None and len(running) >= self._most:
                break
            waited = utc_now() - start.at
            if waited >= _YIELD * min(len(running), 10) and self._attempt(self._take, document, start, etag):
                running.append(start.job)
        if utc_now() - self._signed >= _SIGN:
            self._sign(running)

    def _attempt(self, act: _Act, document: Document[DriverStart], start: DriverStart, etag: str) -> bool:
        """Act for one request; an error of its job is logged, and must not keep others waiting."""
        try:
            return act(document, start, etag)
        except StreamwardenError as error:
            if error.code in OUTAGES:
                raise
            _log.warning("%s: %s", start.job, error)
            # It may run: this host must not take more than it should.
            return True

    def _take(self, document: Document[DriverStart], start: DriverStart, etag: str) -> bool:
        """Take a request, and start its driver; return whether it runs."""
        if self._is_superseded(start):
            self._settle(document, start, etag, ended=utc_now())
            return False
        taken = start.model_copy(update={"host": self._name, "taken": utc_now()})
        try:
            etag = document.replace(taken, etag)
        except Conflict:
            return False
        return self._start(document, taken, etag)

    def _start(self, document: Document[DriverStart], start: DriverStart, etag: str) -> bool:
        launch = JobDocuments(self._workspace.storage, start.job).launch(start.incarnation).read()
        if launch is None:
            # Housekeeping has removed it: the request is older than a hundred others.
            self._settle(document, start, etag, ended=utc_now())
            return False
        try:
            # Started already, if this host was killed before it could write so into the request.
            known = launch.process if launch.process is not None and is_alive(launch.process) else None
            process = known or start_here(self._workspace, start.job, launch)
        except (OSError, subprocess.SubprocessError) as error:
            self._say_end(start, "DRIVER_DID_NOT_START", f"on {self._name}: {error}")
            self._settle(document, start, etag, ended=utc_now())
            return False
        _log.info("%s: started as incarnation %s, pid %d", start.job, start.incarnation, process.pid)
        self._settle(document, start, etag, process=process)
        return True

    def _tend(self, document: Document[DriverStart], start: DriverStart, etag: str) -> bool:
        """Watch a driver of this host; return whether it runs."""
        if start.process is None:
            # This host was killed in between, or the store was away.
            return self._start(document, start, etag)
        if start.kill and kill(start.process):
            _log.info("%s: killed incarnation %s as asked", start.job, start.incarnation)
        # A process of an earlier container with this host's name counts as unknown (None): it ended with its container.
        elif is_alive(start.process):
            return True
        else:
            self._say_end(start, "DRIVER_DIED", f"incarnation {start.incarnation}, pid {start.process.pid}")
        self._settle(document, start, etag, ended=utc_now())
        return False

    def _is_gone(self, host: str) -> bool:
        sign = host_document(self._workspace, host).read()
        return sign is None or utc_now() - sign.at > LOST

    def _is_superseded(self, start: DriverStart) -> bool:
        return any(one > start.incarnation for one in JobDocuments(self._workspace.storage, start.job).incarnations())

    def _say_end(self, start: DriverStart, code: ErrorCode, what: str) -> None:
        """Write exit.json for a driver that did not: its supervisor need not wait until it counts as silent."""
        documents = JobDocuments(self._workspace.storage, start.job)
        heartbeat = documents.heartbeat(start.incarnation).read()
        error = ErrorInfo.of(StreamwardenError(code, what))
        ended = Exit(
            incarnation=start.incarnation,
            at=utc_now(),
            outcome="failed",
            error=error,
            batch=heartbeat.batch if heartbeat else None,
        )
        with suppress(Conflict):
            documents.exit(start.incarnation).create(ended)
            _log.info("%s: %s: %s", start.job, code, what)

    def _settle(self, document: Document[DriverStart], start: DriverStart, etag: str, **changes: object) -> None:
        try:
            document.replace(start.model_copy(update=changes), etag)
        except Conflict:
            # A request to kill came in between.
            document.update(lambda now: (now or start).model_copy(update=changes))

    def _check_name(self, stop: threading.Event) -> None:
        document = host_document(self._workspace, self._name)
        found = document.read()
        if found is None or utc_now() - found.at > LOST:
            return
        lives = is_alive(found.process)
        if lives is False and found.process.boot == self._process.boot:
            return
        if not lives:
            # Elsewhere, or in another container. One that was replaced left its sign; one that lives signs again.
            if stop.wait(2 * _SIGN.total_seconds()):
                return
            now = document.read()
            if now is None or now.at == found.at:
                return
        what = f"{self._name}: process {found.process.pid} on {found.process.host}, seen at {found.at:%H:%M:%S} UTC"
        raise StreamwardenError("HOST_NAME_TAKEN", what)

    def _sign(self, jobs: list[str]) -> None:
        sign = DriverHost(
            name=self._name,
            process=self._process,
            since=self._since,
            at=utc_now(),
            drivers=sorted(jobs),
            most=self._most,
        )
        host_document(self._workspace, self._name).write(sign)
        self._signed = sign.at
