"""The tables of a job that the gate holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import GateRecord, Hold
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import Document
from streamwarden.store.layout import gate_key
from streamwarden.store.workspace import Workspace

__all__ = ["HeldTable", "held_tables", "last_decision"]

_EVERY_S = 30.0
"""Seconds for which an answer is kept. 30: an alarm may be that late, and each reading is a request on S3."""
_LASTING = timedelta(minutes=1)
"""How long the gate must have failed before that is an alarm. 1m: a lost connection comes back by itself."""
_NAMED = 3
"""Batches, files and rows in an alarm. 3: it is one line; the status has 20."""


@dataclass(frozen=True)
class HeldTable:
    """A table that the gate holds, or cannot decide about.

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


_known: dict[tuple[str, str], tuple[float, _Seen]] = {}


def held_tables(workspace: Workspace, spec: JobSpec) -> tuple[HeldTable, ...]:
    """Return the job's tables that the gate holds, as of the last 30 seconds."""
    found = (_seen(workspace, sink.table).held for sink in spec.delta_sinks)
    return tuple(one for one in found if one is not None)


def last_decision(workspace: Workspace, spec: JobSpec) -> datetime | None:
    """Return when the gate last decided about any of the job's tables, as of the last 30 seconds; None: never."""
    found = (_seen(workspace, sink.table).decided_at for sink in spec.delta_sinks)
    return max((one for one in found if one is not None), default=None)


class _Seen(NamedTuple):
    held: HeldTable | None = None
    decided_at: datetime | None = None


def _seen(workspace: Workspace, table: str) -> _Seen:
    name, now = (workspace.base, table), time.monotonic()
    read_at, seen = _known.get(name, (-_EVERY_S, _Seen()))
    if now - read_at >= _EVERY_S:
        try:
            record = Document(workspace.storage, gate_key(table), GateRecord).read()
        except StreamwardenError:
            # The gate's own commands say what is wrong with it. It must not stop supervision.
            record = None
        decisions = record.decisions if record is not None else []
        seen = _Seen(_of(record), decisions[-1].at if decisions else None)
        _known[name] = (now, seen)
    return seen


def _of(record: GateRecord | None) -> HeldTable | None:
    if record is None:
        return None
    if record.hold is not None:
        return HeldTable(record.table, record.hold.since, _held_words(record.table, record.hold))
    trouble = record.trouble
    if trouble is not None and trouble.at - trouble.since >= _LASTING:
        what = f"the gate cannot decide about {record.table}, which is not published: {trouble.code}: {trouble.what}"
        return HeldTable(record.table, trouble.since, what)
    return None


def _held_words(table: str, hold: Hold) -> str:
    """Return what is held and why, in one line: versions, batches, landed files, failing keys, and a query."""
    failed = hold.failures[0] if hold.failures else None
    why = f": {failed.expectation}, {failed.finding}" if failed else ""
    if hold.is_empty:
        return f"no new version of {table} waits, but what is published fails a rule{why}"
    last = "" if hold.version == hold.after + 1 else f" to {hold.version}"
    words = [f"the gate holds {table} from version {hold.after + 1}{last} on{why}"]
    words += [f"written by {_some(hold.batches)}"] if hold.batches else []
    words += [f"landed in {_some(hold.source_files)}"] if hold.source_files else []
    if failed is not None and failed.examples:
        rows = ["(" + ", ".join(f"{name}={value}" for name, value in row.items()) + ")" for row in failed.examples]
        words.append(f"failing rows {_some(rows)}")
    words += [f"all of them: {failed.query}"] if failed is not None and failed.query else []
    return "; ".join([*words, f"see `streamwarden gate status {table}`"])


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
