"""Decide about each new version of all tables that have a suite, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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

RETRY_S = 60.0
"""The longest wait after an error of a table, seconds. 60: an outage's end is noticed within a minute."""

Told = Callable[[str, Decision | Exception], None]

_log = logging.getLogger(__name__)


@dataclass
class _Table:
    known: int = -1
    wait: float = POLL_S
    due: float = 0.0
    decided: float = 0.0
    held: bool = False
    errors: int = 0
    cleared: bool = False
    """Whether an earlier process's trouble is out of the table's status."""


def watch(workspace: Workspace, gate: Gate, told: Told, stop: threading.Event, *, poll: float = POLL_S) -> None:
    """Decide about new versions as they come.

    An error concerns its own table, which is tried again, less and less often. A table whose hold ends, as after
    :meth:`~streamwarden.quality.gate.Gate.accept`, is decided about at once.

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

    Raises
    ------
    StreamwardenError
        ``SUITE_INVALID``: there is no suite at the beginning.
    """
    with gate.lineage.watching():
        _watch(workspace, gate, told, stop, poll)


def _watch(workspace: Workspace, gate: Gate, told: Told, stop: threading.Event, poll: float) -> None:
    names, tables = gate.tables, dict[str, _Table]()
    kept = time.monotonic()
    while not stop.is_set():
        for name in names:
            table = tables.setdefault(name, _Table(wait=poll))
            if not stop.is_set() and time.monotonic() >= table.due:
                _look(workspace, gate, name, table, told, poll)
        if time.monotonic() > kept + KEEP_S:
            _keep(gate, told)
            kept = time.monotonic()
        gate.lineage.still_watching()
        stop.wait(poll)
        with suppress(StreamwardenError):
            names = gate.tables
    _keep(gate, told)


def _look(workspace: Workspace, gate: Gate, name: str, table: _Table, told: Told, poll: float) -> None:
    try:
        is_ended = table.held and not gate.is_held(name)
        if _is_new(workspace, name, table) or is_ended:
            table.wait = poll
            _decide(gate, name, table, told)
        elif table.errors:
            # Whatever failed: also the judgement of an idle table.
            _decide(gate, name, table, told, idle=True)
            table.wait = poll
        elif table.known >= 0 and time.monotonic() > table.decided + RECHECK_S:
            _decide(gate, name, table, told, idle=True)
        elif workspace.s3 is not None:
            table.wait = min(IDLE_S, 1.5 * table.wait)
    except Conflict:
        # Another gate is at it.
        table.known = -1
    except Exception as error:
        # Whatever it is, the other tables must go on.
        _failed(gate, name, table, error, told, poll)
    table.due = time.monotonic() + table.wait


def _decide(gate: Gate, name: str, table: _Table, told: Told, *, idle: bool = False) -> None:
    decision = gate.decide(name, idle=idle)
    table.decided = time.monotonic()
    table.held = gate.is_held(name)
    if table.errors or not table.cleared:
        gate.note(name, None)
        table.errors, table.cleared = 0, True
    if decision is not None:
        told(name, decision)


def _failed(gate: Gate, name: str, table: _Table, error: Exception, told: Told, poll: float) -> None:
    table.errors += 1
    table.wait = min(RETRY_S, poll * 2 ** min(table.errors, 20))
    if table.errors == 1 or not isinstance(error, StreamwardenError):
        _log.warning("%s: no decision: %s", name, error, exc_info=not isinstance(error, StreamwardenError))
    # A repeated error is in the table's status; the log need not have it each time.
    if table.errors == 1:
        told(name, error)
    with suppress(Exception):
        gate.note(name, error)


def _keep(gate: Gate, told: Told) -> None:
    try:
        gate.keep_results()
    except Exception as error:
        # Decisions go on without the table of results.
        told(QUALITY_TABLE, error)


def _is_new(workspace: Workspace, name: str, table: _Table) -> bool:
    newer = DeltaLog(workspace.files, name).since(table.known + 1)
    if newer:
        table.known = newer[-1]
    return bool(newer)
