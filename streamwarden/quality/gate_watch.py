"""Decide about each new version of all tables that have a suite, until told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.model.gate import Decision
from streamwarden.model.spec import QUALITY_TABLE
from streamwarden.quality.gate import Gate
from streamwarden.storage import Conflict
from streamwarden.store.workspace import Workspace

__all__ = ["IDLE_S", "POLL_S", "watch"]

POLL_S = 1.0
"""Seconds between two looks at a table's log. 1: a listing of the newest names costs a fraction of a millisecond."""
IDLE_S = 30.0
"""Seconds between two looks at an idle table on S3, where each is a request: under 3,000 a day for a table."""

RECHECK_S = 600.0
"""Seconds after which the rules about recent rows of an idle table are judged again. 600: so much later than its rule
says is a table noticed that gets no new rows."""

KEEP_S = 30.0
"""Seconds between two commits to the table of results. 30: as for the table of batches."""

Told = Callable[[str, Decision | StreamwardenError], None]


@dataclass
class _Table:
    known: int = -1
    wait: float = POLL_S
    due: float = 0.0
    decided: float = 0.0


def watch(workspace: Workspace, gate: Gate, told: Told, stop: threading.Event, *, poll: float = POLL_S) -> None:
    """Decide about new versions as they come. An error of one table does not stop the others.

    Parameters
    ----------
    workspace
        Where the tables are.
    gate
        Decides.
    told
        Called with each table's decision or error.
    stop
        Set it to end after the decision in progress.
    poll
        Seconds between two looks at a table that is written.
    """
    tables: dict[str, _Table] = {}
    kept = time.monotonic()
    while not stop.is_set():
        for name in gate.tables:
            table = tables.setdefault(name, _Table(wait=poll))
            if stop.is_set() or time.monotonic() < table.due:
                continue
            if _is_new(workspace, name, table):
                table.wait = poll
                _decide(gate, name, told)
                table.decided = time.monotonic()
            elif table.known >= 0 and time.monotonic() > table.decided + RECHECK_S:
                _decide(gate, name, told, idle=True)
                table.decided = time.monotonic()
            elif workspace.s3 is not None:
                table.wait = min(IDLE_S, 1.5 * table.wait)
            table.due = time.monotonic() + table.wait
        if time.monotonic() > kept + KEEP_S:
            _keep(gate, told)
            kept = time.monotonic()
        stop.wait(poll)
    _keep(gate, told)


def _keep(gate: Gate, told: Told) -> None:
    try:
        gate.keep_results()
    except StreamwardenError as error:
        told(QUALITY_TABLE, error)


def _is_new(workspace: Workspace, name: str, table: _Table) -> bool:
    newer = DeltaLog(workspace.files, name).since(table.known + 1)
    if newer:
        table.known = newer[-1]
    return bool(newer)


def _decide(gate: Gate, name: str, told: Told, *, idle: bool = False) -> None:
    try:
        decision = gate.decide(name, idle=idle)
    except StreamwardenError as error:
        told(name, error)
    except Conflict:
        # Another publisher is at it.
        return
    else:
        if decision is not None:
            told(name, decision)
