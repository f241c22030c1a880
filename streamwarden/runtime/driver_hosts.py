"""Ask driver hosts for drivers, and to kill them; see :mod:`streamwarden.runtime.host_agent` for their side.

A request is one document. A host takes it by a compare-and-swap, so exactly one does. Nothing else passes between the
two sides: hosts and those who ask share only the place.
"""

from __future__ import annotations

import time
from datetime import timedelta

from streamwarden.errors import StreamwardenError
from streamwarden.model.hosting import DriverHost, DriverStart
from streamwarden.model.record import utc_now
from streamwarden.runtime.processes import kill
from streamwarden.store.documents import Document
from streamwarden.store.layout import HOSTS, STARTS, host_key, start_key
from streamwarden.store.workspace import Workspace

__all__ = ["LOST", "ask_for_driver", "driver_hosts", "driver_start", "host_document", "kill_by_host", "start_document"]

LOST = timedelta(seconds=15)
"""After this time without a sign, a host counts as gone. 15 s: five of its signs."""

_KILL_S = 10.0
"""How long a host may take to kill a driver: some looks at the requests."""


def start_document(workspace: Workspace, incarnation: str) -> Document[DriverStart]:
    """Return the request for an incarnation's driver."""
    return Document(workspace.storage, start_key(incarnation), DriverStart)


def host_document(workspace: Workspace, name: str) -> Document[DriverHost]:
    """Return a host's sign of life."""
    return Document(workspace.storage, host_key(name), DriverHost, derived=True)


def ask_for_driver(workspace: Workspace, job: str, incarnation: str) -> None:
    """Ask the driver hosts for a driver, without waiting. Without a host, the request waits for one."""
    start_document(workspace, incarnation).create(DriverStart(job=job, incarnation=incarnation, at=utc_now()))


def driver_start(workspace: Workspace, incarnation: str) -> DriverStart | None:
    """Return what became of the request for a driver; None if there was none, or it was removed after the end."""
    return start_document(workspace, incarnation).read() if workspace.profile.launcher == "host" else None


def driver_hosts(workspace: Workspace) -> list[DriverHost]:
    """Return the hosts that were ever seen, by name."""
    keys = [key for key in workspace.storage.list(HOSTS) if not key.startswith(f"{STARTS}/")]
    found = (Document(workspace.storage, key, DriverHost, derived=True).read() for key in keys)
    return [one for one in found if one is not None]


def kill_by_host(workspace: Workspace, incarnation: str) -> bool:
    """Kill a driver that a host runs, here or through its host; return whether it was killed.

    Waits up to 10 s for the host. A host that is gone cannot kill: then the driver's lease fences it.
    """
    start = driver_start(workspace, incarnation)
    if start is None or start.process is None or start.host is None or start.ended is not None:
        return False
    if kill(start.process):
        return True
    sign = host_document(workspace, start.host).read()
    if sign is None or utc_now() - sign.at > LOST:
        return False
    document = start_document(workspace, incarnation)
    try:
        document.update(lambda now: (now or start).model_copy(update={"kill": True}))
    except StreamwardenError:
        return False
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        found = document.read()
        if found is None or found.ended is not None:
            return True
        time.sleep(0.25)
    return False
