"""What Streamwarden asks of YARN, by its REST interface: applications by tag, their end, and a container's output.

Read against Hadoop 3.5: "ResourceManager REST API's" and "NodeManager REST API's".
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx

from streamwarden.foreign_json import parse_object

__all__ = ["Application", "ResourceManagers", "Unanswered", "container_output"]

T = TypeVar("T")

_TIMEOUT_S = 5.0
"""Observations wait for this: a supervisor looks at its other jobs later by as much."""

# OSError and OverflowError: a time that no clock of this machine can have.
_UNREADABLE = (
    httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError, AttributeError, OSError, OverflowError,
)  # fmt: skip
"""What it raises to ask a server that is away, or gives another answer than YARN's."""


class Unanswered(Exception):
    """No ResourceManager has given an answer that can be read."""


@dataclass(frozen=True)
class Application:
    """An application as YARN shows it.

    Parameters
    ----------
    state
        YARN's: ``ACCEPTED``, ``RUNNING``, ``FINISHED``, ``FAILED``, ``KILLED``, or one before these.
    succeeded
        Whether it ended well.
    diagnostics
        Why it waits, or how it ended, in YARN's words.
    submitted, launched, ended
        Times; None before.
    node, container
        Where its driver runs: the NodeManager's HTTP address, and the container; empty before.
    """

    id: str
    state: str
    succeeded: bool
    diagnostics: str
    submitted: datetime | None
    launched: datetime | None
    ended: datetime | None
    node: str
    container: str

    @property
    def has_ended(self) -> bool:
        """Whether YARN has ended it, or it has ended itself."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


class ResourceManagers:
    """The ResourceManagers of a cluster, of which one is active.

    Parameters
    ----------
    addresses
        ``http://host:port``. A ResourceManager in standby redirects to the active one.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = [address.rstrip("/") for address in addresses]

    def check(self) -> None:
        """Raise :class:`Unanswered`, unless one answers."""
        self._ask(lambda client, address: _json(client.get(f"{address}/ws/v1/cluster/info")))

    def tagged(self, tag: str) -> Application | None:
        """Return the newest application with a tag; None if YARN knows none."""

        def ask(client: httpx.Client, address: str) -> Application | None:
            found = _json(client.get(f"{address}/ws/v1/cluster/apps", params={"applicationTags": tag}))
            # No applications are null or an empty object; a single one may come without its list.
            rows = (found["apps"] or {}).get("app") or []
            applications = [_application(row) for row in ([rows] if isinstance(rows, dict) else rows)]
            return max(applications, key=lambda one: one.id, default=None)

        return self._ask(ask)

    def kill(self, application: str) -> None:
        """Ask YARN to kill an application; it takes a moment."""

        def ask(client: httpx.Client, address: str) -> None:
            # The user by whom Spark submits, where YARN has no logins of its own.
            user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
            answer = client.put(
                f"{address}/ws/v1/cluster/apps/{application}/state",
                params={"user.name": user},
                json={"state": "KILLED"},
            )
            answer.raise_for_status()

        self._ask(ask)

    def _ask(self, ask: Callable[[httpx.Client, str], T]) -> T:
        said = []
        with _client() as client:
            for address in self._addresses:
                try:
                    return ask(client, address)
                except _UNREADABLE as error:
                    said.append(
                        f"{address}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                    )
        raise Unanswered("; ".join(said))


def container_output(application: Application, name: str, size: int) -> str | None:
    """Return the end of a file of the driver's container, such as ``stdout``; None if its machine does not have it.

    Parameters
    ----------
    size
        The most bytes to read.
    """
    if not application.node or not application.container:
        return None
    address = f"http://{application.node}/ws/v1/node/containerlogs/{application.container}/{name}"
    try:
        with _client() as client:
            answer = client.get(address, params={"size": -size}, headers={"Accept": "text/plain"})
            answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return _without_frame(answer.text)


@contextmanager
def _client() -> Iterator[httpx.Client]:
    # A standby redirects. Not by a proxy of the environment: that leads out of the cluster's network.
    with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True, trust_env=False) as client:
        yield client


def _json(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    return parse_object(answer.content)


def _application(row: dict[str, Any]) -> Application:
    container = re.search(r"/(container_\w+)", row.get("amContainerLogs") or "")
    return Application(
        id=str(row["id"]),
        state=str(row["state"]),
        succeeded=row.get("finalStatus") == "SUCCEEDED",
        diagnostics=str(row.get("diagnostics") or ""),
        submitted=_time(row.get("startedTime")),
        launched=_time(row.get("launchTime")),
        ended=_time(row.get("finishedTime")),
        node=str(row.get("amHostHttpAddress") or ""),
        container=container[1] if container else "",
    )


def _time(milliseconds: Any) -> datetime | None:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC) if milliseconds and int(milliseconds) > 0 else None


def _without_frame(text: str) -> str:
    """Return what the file holds, without the lines that YARN writes around it."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("LogContents:"):
            lines = lines[number + 1 :]
            break
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("End of LogType:"):
            lines = lines[:number]
            break
    return "\n".join(lines).strip("\n")
