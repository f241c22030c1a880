"""Ask driver hosts for drivers, and to kill them; see :mod:`streamwarden.runtime.host_agent` for their side.

A request is one document. A host takes it by a compare-and-swap, so exactly one does. Nothing else passes between the
two sides: hosts and those who ask share only the place.
"""

from __future__ import annotations

from datetime import timedelta

from typing_extensions import override

from streamwarden.errors import StreamwardenError
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.record import utc_now
from streamwarden.model.status import Launch
from streamwarden.runtime.launchers.interface import KILL_S, FoundDriver, Launcher, StartState
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import kill
from streamwarden.storage import Conflict
from streamwarden.store.documents import Document
from streamwarden.store.layout import HOSTS, STARTS, host_key, start_key
from streamwarden.store.workspace import Workspace

__all__ = ["LOST", "HostLauncher", "driver_hosts", "host_document", "start_document"]

LOST = timedelta(seconds=15)
"""After this time without a sign, a host counts as gone. 15 s: five of its signs."""


def start_document(workspace: Workspace, incarnation: str) -> Document[DriverStart]:
    """Return the request for an incarnation's driver."""
    return Document(workspace.storage, start_key(incarnation), DriverStart)


def host_document(workspace: Workspace, name: str) -> Document[DriverHost]:
    """Return a host's sign of life."""
    return Document(workspace.storage, host_key(name), DriverHost, derived=True)


def driver_hosts(workspace: Workspace) -> list[DriverHost]:
    """Return the hosts that were ever seen, by name."""
    keys = [key for key in workspace.storage.list(HOSTS) if not key.startswith(f"{STARTS}/")]
    found = (Document(workspace.storage, key, DriverHost, derived=True).read() for key in keys)
    return [one for one in found if one is not None]


class HostLauncher(Launcher):
    """Asks driver hosts for drivers: any of them may take a request.

    A driver is found again by its request, which names its host and process.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @override
    def start(self, job: str, launch: Launch) -> None:
        """Write the request. Without a host, it waits for one."""
        request = DriverStart(job=job, incarnation=launch.incarnation, at=utc_now())
        start_document(self._workspace, launch.incarnation).create(request)

    @override
    def find(self, job: str, incarnation: str) -> FoundDriver:
        """Return what the request says; unknown once it was removed, an hour after the driver's end."""
        start = start_document(self._workspace, incarnation).read()
        if start is None:
            return FoundDriver(StartState.UNKNOWN)
        if start.ended is not None:
            return FoundDriver(StartState.ENDED, start.ended)
        if start.host is None:
            waited = (utc_now() - start.at).total_seconds()
            # A host takes it within a second, one with ten drivers within eleven.
            question = ": is `streamwarden host` running?" if waited > 15 else ""
            reason = f"no driver host has taken it for {waited:.0f} s{question}"
            return FoundDriver(StartState.WAITING, start.at, reason)
        return FoundDriver(StartState.STARTED, start.taken)

    @override
    def kill(self, job: str, incarnation: str) -> bool:
        """Kill the driver here, or through its host; waits up to 10 s for the host. A host that is gone can't kill.

        A request that no host has taken is withdrawn.
        """
        document = start_document(self._workspace, incarnation)
        found = document.read_versioned()
        if found is None:
            return False
        start, etag = found
        if start.host is None and start.ended is None:
            try:
                document.replace(start.model_copy(update={"ended": utc_now()}), etag)
            except Conflict:
                # A host has taken it at this moment.
                return False
            return True
        if start.process is None or start.host is None or start.ended is not None:
            return False
        if kill(start.process):
            return True
        sign = host_document(self._workspace, start.host).read()
        if sign is None or utc_now() - sign.at > LOST:
            return False
        try:
            document.update(lambda now: (now or start).model_copy(update={"kill": True}))
        except StreamwardenError:
            return False
        deadline = Deadline(KILL_S)
        while deadline.pause(0.25):
            now = document.read()
            if now is None or now.ended is not None:
                return True
        return False

    @override
    def logs(self, job: str, incarnation: str, lines: int) -> str | None:
        """Return None: the files are on the host's machine."""
        return None
