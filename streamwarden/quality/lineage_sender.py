"""Sends OpenLineage events in a thread of its own, so that no receiver delays or stops the gate."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from streamwarden import __version__

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

__all__ = ["CLOSE_S", "Sender", "configured_client"]

CLOSE_S = 5.0
"""The longest wait for unsent events at the end of a command, seconds. 5: the client's time-out for one request."""

QUEUED = 1000
"""Events that wait to be sent; further ones are lost. 1000: about a megabyte, and an outage of some minutes."""

WARN_S = 600.0
"""Seconds between two warnings about lost events. 600: six an hour while the receiver is down."""

_THREAD = "lineage"

_log = logging.getLogger(__name__)


def configured_client() -> OpenLineageClient | None:
    """Return OpenLineage's client; None, without an import, if no transport is configured.

    The client's own rules say what is configured: ``OPENLINEAGE_URL``, ``OPENLINEAGE__TRANSPORT__*``, or a file
    ``openlineage.yml`` here, in ``~/.openlineage`` or where ``OPENLINEAGE_CONFIG`` says. Also None, with a warning, if
    the configuration is wrong or `openlineage-python` is not installed: no lineage is no reason not to decide.
    """
    if not _is_mentioned():
        return None
    if find_spec("openlineage") is None:
        _log.warning("OpenLineage is configured but not installed, no events are sent: install streamwarden[lineage]")
        return None
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import set_producer

        client = OpenLineageClient()
        wanted = (client.config.transport or {}).get("type")
    except Exception as error:
        # A missing package of a transport, a typing error in its options: whatever the client's constructors raise.
        _log.warning("OpenLineage's configuration is wrong, no events are sent: %s", error)
        return None
    # Without a transport the client prints events. A decision's output is no place for them, unless somebody asks.
    if client.transport.kind == "noop" or (client.transport.kind == "console" and wanted != "console"):
        return None
    set_producer(f"urn:streamwarden:{__version__}")
    return client


def _is_mentioned() -> bool:
    # No import of the client: it takes longer than all that a command of the gate does when there is nothing to decide.
    if any(
        name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG") or name.startswith("OPENLINEAGE__") for name in os.environ
    ):
        return True
    folders = (Path.cwd(), Path("~/.openlineage").expanduser())
    return any((folder / "openlineage.yml").is_file() for folder in folders)


class Sender:
    """Sends events in order, one after the other.

    Parameters
    ----------
    client
        Sends one event, and retries it as its transport is configured.
    """

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._events: queue.Queue[RunEvent | None] = queue.Queue(QUEUED)
        self._lost = 0
        self._closed = False
        self._warned = -WARN_S
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        # Its warnings about each retry repeat what `_lose` says.
        logging.getLogger("urllib3.connectionpool").addFilter(_is_not_ours)
        self._thread.start()

    def send(self, event: RunEvent) -> None:
        """Queue an event; lose it if the queue is full. Returns at once, and raises nothing."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._lose("the receiver is too slow")

    def close(self, timeout: float = CLOSE_S) -> None:
        """Wait until all events are sent, but not longer than a time, in seconds. Later events are not sent."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout
        self._try(lambda: self._events.put(None, timeout=timeout))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warned = -WARN_S
            self._lose(f"not sent within {timeout:g} s, and the command ends", self._events.qsize())

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            self._try(lambda event=event: self._client.emit(event))  # type: ignore[misc]
        # A transport of its own thread, such as `async_http` or `kafka`, still has events.
        self._try(lambda: self._client.close(CLOSE_S))

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            # Each transport has its own exceptions, and none of them may reach the gate.
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str, events: int = 1) -> None:
        self._lost += events
        if time.monotonic() >= self._warned + WARN_S:
            self._warned = time.monotonic()
            _log.warning("OpenLineage events are lost, %d so far: %s", self._lost, why)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD
