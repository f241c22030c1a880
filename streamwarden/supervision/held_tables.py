"""The tables of a job that the gate holds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import GateRecord
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import Document
from streamwarden.store.layout import gate_key
from streamwarden.store.workspace import Workspace

__all__ = ["HeldTable", "held_tables"]

_EVERY_S = 30.0
"""Seconds for which an answer is kept. 30: an alarm may be that late, and each reading is a request on S3."""


@dataclass(frozen=True)
class HeldTable:
    """A table that the gate holds.

    Parameters
    ----------
    table
        Its name.
    since
        Since when.
    what
        The versions, and the first failed expectation.
    """

    table: str
    since: datetime
    what: str


_known: dict[tuple[str, str], tuple[float, HeldTable | None]] = {}


def held_tables(workspace: Workspace, spec: JobSpec) -> tuple[HeldTable, ...]:
    """Return the job's tables that the gate holds, as of the last 30 seconds."""
    found = (_held(workspace, sink.table) for sink in spec.delta_sinks)
    return tuple(one for one in found if one is not None)


def _held(workspace: Workspace, table: str) -> HeldTable | None:
    name, now = (workspace.base, table), time.monotonic()
    read_at, held = _known.get(name, (-_EVERY_S, None))
    if now - read_at >= _EVERY_S:
        try:
            record = Document(workspace.storage, gate_key(table), GateRecord).read()
        except StreamwardenError:
            # The gate's own commands say what is wrong with it. It must not stop supervision.
            record = None
        held = _of(record)
        _known[name] = (now, held)
    return held


def _of(record: GateRecord | None) -> HeldTable | None:
    if record is None or record.hold is None:
        return None
    hold = record.hold
    failed = hold.failures[0] if hold.failures else None
    why = f": {failed.expectation}, {failed.finding}" if failed else ""
    return HeldTable(record.table, hold.since, f"the gate holds {record.table} from version {hold.after + 1} on{why}")
