"""Quarantined rows of a table, and what became of them: open, replayed, or failed again.

A row that fails again after a replay is not a row of its own: it is the latest form of the row that was replayed. It is
recognised by its origin, the file of the replay, or by its content, for rows that came from a table.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import DeltaLog
from streamwarden.formats.quarantine_edits import EditsTable
from streamwarden.model import exact_json
from streamwarden.model.row_rules import QUARANTINE_SUFFIX, quarantine_of
from streamwarden.model.spec import JobSpec
from streamwarden.store.config import job_names
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL
from streamwarden.store.workspace import Workspace

__all__ = [
    "Cause",
    "Content",
    "Quarantined",
    "RowState",
    "counted",
    "job_of_table",
    "quarantine_tables",
    "quarantined_rows",
    "specs_of",
    "stored_rows",
    "trace",
]

Content = Callable[[Sequence[Mapping[str, Any]]], list[str | None]]
"""Returns a hash of each stored row by its source's columns, or None."""


_NOT_A_JOB = ("JOB_UNKNOWN", "CONFIG_INVALID", "SUITE_INVALID")


class RowState(StrEnum):
    """What became of a quarantined row."""

    OPEN = "open"
    REPLAYED = "replayed"
    FAILED_AGAIN = "failed again"


@dataclass(frozen=True)
class Quarantined:
    """A quarantined row, as it failed last.

    Parameters
    ----------
    id
        Its id: stays the same through replays.
    state
        What became of it.
    attempts
        Its replays.
    rules
        The row rules that it fails; empty for bad input that the job itself has refused.
    reasons
        Why.
    raw
        The row as text, usually JSON; None for a file that was refused as a whole.
    source
        The name of the job's source, where the table has it.
    source_file, source_row, source_offset
        Its origin; None if unknown. After a failed replay: the replay's.
    batch, at
        When it was quarantined, where the table has it.
    content
        See :data:`Content`.
    """

    id: str
    state: RowState = RowState.OPEN
    attempts: int = 0
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    raw: str | None = None
    source: str | None = None
    source_file: str | None = None
    source_row: int | None = None
    source_offset: str | None = None
    batch: int | None = None
    at: Any = None
    content: str | None = None

    @property
    def row(self) -> Any:
        """The row parsed, or its text if it is not JSON."""
        try:
            return exact_json.loads(self.raw) if self.raw is not None else None
        except ValueError:
            return self.raw

    @property
    def causes(self) -> tuple[str, ...]:
        """What it is counted under: its rules, else its reasons without their details."""
        return self.rules or tuple(dict.fromkeys(reason.split(": ", 1)[0] for reason in self.reasons)) or ("?",)


@dataclass(frozen=True)
class Cause:
    """How many rows of a quarantine table a rule or reason has, by state.

    Parameters
    ----------
    name
        The rule or reason.
    """

    name: str
    open: int
    replayed: int
    failed_again: int


def counted(rows: Iterable[Quarantined]) -> list[Cause]:
    """Return the causes of rows, sorted by name. A row that fails two rules counts for both."""
    counts: Counter[tuple[str, RowState]] = Counter()
    for one in rows:
        counts.update((cause, one.state) for cause in one.causes)
    return [
        Cause(name, counts[name, RowState.OPEN], counts[name, RowState.REPLAYED], counts[name, RowState.FAILED_AGAIN])
        for name in sorted({name for name, _ in counts})
    ]


def specs_of(workspace: Workspace) -> Iterator[JobSpec]:
    """Yield the spec of each job: the deployed one, else the YAML's.

    Leaves out jobs that were never deployed and whose YAML is invalid or gone: they have written nothing.

    Raises
    ------
    StreamwardenError
        If a job's document can't be read: nobody knows what that job writes.
    """
    for name in sorted({*job_names(workspace.config), *workspace.files.folders(CONTROL)}):
        desired = JobDocuments(workspace.storage, name).desired.read()
        if desired is not None:
            yield desired.spec
            continue
        try:
            spec = workspace.job(name)
        except StreamwardenError as error:
            if error.code not in _NOT_A_JOB:
                raise
            continue
        yield spec


def quarantine_tables(workspace: Workspace) -> dict[str, JobSpec]:
    """Return the quarantine tables that exist, each with the job that writes it or has written it."""
    found: dict[str, JobSpec] = {}
    for spec in specs_of(workspace):
        tables = [sink.table for sink in spec.delta_sinks]
        # A table whose last rule was removed still has its rows.
        for name in (*tables, *map(quarantine_of, tables)):
            if name.endswith(QUARANTINE_SUFFIX) and DeltaLog(workspace.files, name).latest is not None:
                found.setdefault(name, spec)
    return found


def job_of_table(workspace: Workspace, table: str) -> JobSpec:
    """Return the job that writes a quarantine table.

    Raises
    ------
    StreamwardenError
        ``QUARANTINE_UNKNOWN``.
    """
    known = quarantine_tables(workspace)
    if table not in known:
        raise StreamwardenError("QUARANTINE_UNKNOWN", f"{table} (there are: {', '.join(sorted(known)) or 'none'})")
    return known[table]


def quarantined_rows(
    workspace: Workspace,
    table: str,
    *,
    content: Content | None = None,
    edits: Sequence[Mapping[str, Any]] | None = None,
) -> list[Quarantined]:
    """Return a quarantine table's rows with their state, oldest first where the table has times.

    Parameters
    ----------
    content
        For a job that reads a table.
    edits
        The entries of ``quarantine_edits``; default all that are there.

    Raises
    ------
    StreamwardenError
        ``QUARANTINE_EDITS_FAILED``, ``TABLE_NOT_FOUND``.
    """
    entries = EditsTable(workspace).of(table) if edits is None else edits
    stored = stored_rows(workspace, table)
    return trace(stored, entries, content(stored) if content is not None else None)


def stored_rows(workspace: Workspace, table: str) -> list[dict[str, Any]]:
    """Return a table's rows as they are stored.

    Raises
    ------
    StreamwardenError
        ``TABLE_NOT_FOUND`` if it can't be read.
    """
    address, options = workspace.delta_rs(table)
    try:
        opened = DeltaTable(address, storage_options=options)
        found: list[dict[str, Any]] = pa.table(opened.scan()).to_pylist()
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StreamwardenError("TABLE_NOT_FOUND", f"{table}: {error}") from error
    return found


def trace(
    stored: Sequence[Mapping[str, Any]], edits: Sequence[Mapping[str, Any]], hashes: Sequence[str | None] | None = None
) -> list[Quarantined]:
    """Assign rows that failed again to the rows that were replayed; see :func:`quarantined_rows`.

    Parameters
    ----------
    hashes
        See :data:`Content`.
    """
    replayed = _Replays(edits)
    found: dict[str, Quarantined] = {}
    again: dict[str, tuple[int, Quarantined]] = {}
    numbers: Counter[str] = Counter()
    contents: Counter[str] = Counter()
    given = hashes if hashes is not None else [None] * len(stored)
    for row, hashed in sorted(zip(stored, given, strict=True), key=lambda pair: _order(pair[0])):
        if hashed is not None:
            contents[hashed] += 1
        one = _quarantined(row, hashed)
        numbers[one.id] += 1
        is_known = one.source_offset is not None or (one.source_file is not None and one.source_row is not None)
        if numbers[one.id] > 1 and is_known and row.get("row_id") is not None:
            # The same row of the source, written again by a batch that was read again.
            continue
        if numbers[one.id] > 1:
            one = replace(one, id=f"{one.id}-{numbers[one.id]}")
        entries = replayed.failed_as(one, contents[hashed] if hashed is not None else 0)
        if not entries:
            found[one.id] = one
        for entry in entries:
            latest = again.get(entry["row_id"])
            if latest is None or latest[0] < entry["attempt"]:
                # Of a file that was refused as a whole, each row is known from the edit.
                raw = one.raw if one.raw is not None else entry["after"]
                again[entry["row_id"]] = entry["attempt"], replace(one, id=entry["row_id"], raw=raw)
    for root, (_, one) in again.items():
        found[root] = one
    return [_with_state(one, replayed.attempts[one.id], again.get(one.id)) for one in found.values()]


class _Replays:
    def __init__(self, edits: Sequence[Mapping[str, Any]]) -> None:
        self.attempts: Counter[str] = Counter()
        self._by_origin: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
        self._by_file: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self._by_content: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
        for entry in edits:
            self.attempts[entry["row_id"]] = max(self.attempts[entry["row_id"]], entry["attempt"])
            if entry["content"] is not None:
                self._by_content[entry["content"], entry["seen"] + 1].append(entry)
            else:
                self._by_origin[entry["sent_as"], entry["number"]].append(entry)
                self._by_file[entry["sent_as"]].append(entry)

    def failed_as(self, one: Quarantined, occurrence: int) -> list[Mapping[str, Any]]:
        """Return the entries whose replay has failed as this row."""
        if one.content is not None:
            return self._by_content.get((one.content, occurrence), [])
        # A file that was read again has a number at the end.
        file = (one.source_file or "").partition("#")[0]
        if one.source_row is None:
            return self._by_file.get(file, [])
        return self._by_origin.get((file, one.source_row), [])


def _with_state(one: Quarantined, attempts: int, again: tuple[int, Quarantined] | None) -> Quarantined:
    if not attempts:
        return one
    failed = again is not None and again[0] == attempts
    return replace(one, attempts=attempts, state=RowState.FAILED_AGAIN if failed else RowState.REPLAYED)


def _quarantined(row: Mapping[str, Any], content: str | None) -> Quarantined:
    raw, reasons = row.get("raw"), row.get("reasons")
    own = row.get("row_id")
    if own is None:
        # Columns that name the moment differ if a batch is computed again.
        told = [row.get(name) for name in ("source", "source_file", "source_row", "raw", "reasons")]
        own = hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:16]
    return Quarantined(
        id=str(own),
        rules=tuple(row.get("rules") or ()),
        reasons=tuple(reasons) if isinstance(reasons, list) else tuple(filter(None, [reasons])),
        raw=raw,
        source=row.get("source"),
        source_file=row.get("source_file"),
        source_row=row.get("source_row"),
        source_offset=row.get("source_offset"),
        batch=row.get("batch"),
        at=row.get("quarantined_at"),
        content=content,
    )


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    # Equal rows are numbered in this order; they can't be told apart anyway.
    at = row.get("quarantined_at")
    return (
        at.isoformat() if at is not None else "",
        str(row.get("source_file")),
        row.get("source_row") if row.get("source_row") is not None else -1,
        str(row.get("raw")),
    )
