"""Send corrected quarantined rows through their job again, each once.

A replay is entered in ``quarantine_edits`` first. Then its rows are sent: to a job that reads files as a file, to one
that reads a table as one commit. Both carry the replay's id. So a repeated call sends what a killed one has
not sent, and nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.quarantine_edits import EditsTable
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.inspect import planned_names
from streamwarden.model import exact_json
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import DeltaSource, FileSource
from streamwarden.model.spec import JobSpec
from streamwarden.operations.quarantine import Quarantined, RowState, job_of_table, stored_rows, trace
from streamwarden.operations.replay_checks import source_checker
from streamwarden.operations.source_rows import SourceRows, content_of
from streamwarden.store.workspace import Workspace

__all__ = ["Replayed", "replay_rows"]

_ORIGIN = ("source_file", "source_row")
_TRIES = 10


@dataclass(frozen=True)
class Replayed:
    """What a call of :func:`replay_rows` did.

    Parameters
    ----------
    replay
        The id of the replay.
    rows
        Its rows.
    again
        How many of them have failed a replay before.
    sent_as
        The landed file, or the table that they were appended to.
    sent
        False if an earlier call had sent them.
    """

    replay: str
    rows: int
    again: int
    sent_as: str
    sent: bool


def replay_rows(
    workspace: Workspace, table: str, corrected: Mapping[str, Any | None], *, by: str, note: str
) -> list[Replayed]:
    """Replay rows of a quarantine table; one replay for each source of the job.

    Also sends what a killed call has recorded and not sent.

    Parameters
    ----------
    corrected
        The corrected rows by id; None replays a row as it is, after a rule or the job has changed.
    by, note
        Actor and reason, for the record.

    Raises
    ------
    StreamwardenError
        With nothing sent: ``QUARANTINE_UNKNOWN``, ``QUARANTINE_ROWS_INVALID``, ``QUARANTINE_REPLAYED``,
        ``QUARANTINE_NOT_REPLAYABLE``. ``QUARANTINE_EDITS_FAILED``: repeat the call.
    """
    spec = job_of_table(workspace, table)
    completed = _complete(workspace, spec, table)
    if not corrected and not completed:
        raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{table}: no row is named")
    content = content_of(workspace, spec)
    rows = stored_rows(workspace, table)
    stored = _Stored(rows, content(rows) if content is not None else None)
    known = stored.traced(EditsTable(workspace).of(table))
    unknown = [name for name in corrected if name not in known]
    if unknown:
        raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{table}: no row {', '.join(unknown[:5])}")
    by_source: dict[str, list[str]] = {}
    source_of = source_checker(workspace, spec, table)
    for name in corrected:
        by_source.setdefault(source_of(known[name]), []).append(name)
    parts = [
        _Part(workspace, spec, table, source, {name: corrected[name] for name in names}, by, note)
        for source, names in by_source.items()
    ]
    # All are checked before the first is entered.
    for part in parts:
        part.prepare(known)
    done = {one.replay: one for one in (part.perform(stored) for part in parts)}
    return [*(one for one in completed if one.replay not in done), *done.values()]


@dataclass(frozen=True)
class _Stored:
    """The rows of the quarantine table, with the hashes of their contents: these are computed once."""

    rows: Sequence[Mapping[str, Any]]
    contents: Sequence[str | None] | None

    def traced(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Quarantined]:
        return {one.id: one for one in trace(self.rows, entries, self.contents)}


class _Part:
    """The rows of a replay that go to one source."""

    def __init__(
        self,
        workspace: Workspace,
        spec: JobSpec,
        table: str,
        source: str,
        corrected: Mapping[str, Any | None],
        by: str,
        note: str,
    ) -> None:
        self._workspace, self._spec, self._table, self._name = workspace, spec, table, source
        self._source = found = spec.inputs[source]
        self._corrected, self._by, self._note = corrected, by, note
        self._columns = SourceRows(workspace, found.table) if isinstance(found, DeltaSource) else None
        self._after: dict[str, str] = {}

    def prepare(self, known: Mapping[str, Quarantined]) -> None:
        """Check the rows, without writing."""
        for name, given in self._corrected.items():
            row = known[name].row if given is None else given
            if not isinstance(row, dict):
                what = f"{self._table}: row {name} is no JSON object: {str(row)[:80]}"
                raise StreamwardenError("QUARANTINE_ROWS_INVALID", what)
            own = self._of_source(row, known[name].row)
            self._after[name] = exact_json.dumps(own)
            if self._columns is not None:
                self._columns.check(own, f"{self._table}: row {name}")

    def _of_source(self, row: Mapping[str, Any], before: Any) -> dict[str, Any]:
        """Return a row without the columns that the job has added to it."""
        if self._columns is None:
            return {key: value for key, value in row.items() if key not in _ORIGIN}
        added = set(before if isinstance(before, dict) else ()) - set(self._columns.names)
        return {key: value for key, value in row.items() if key not in added}

    def perform(self, stored: _Stored) -> Replayed:
        """Enter the replay, and send it."""
        edits = EditsTable(self._workspace)
        chosen: list[Mapping[str, Any]] = []

        def make(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            known = stored.traced(entries)
            chosen[:] = self._begun(entries, known)
            if chosen:
                return []
            new = self._entries(entries, known, stored)
            chosen[:] = new
            return new

        edits.enter(self._table, make)
        return _replayed(chosen, _send(self._workspace, self._spec, chosen, _planned(self._workspace, self._spec)))

    def _begun(self, entries: list[dict[str, Any]], known: Mapping[str, Quarantined]) -> list[Mapping[str, Any]]:
        """Return the entries of this same replay if an earlier call has entered it, and its rows have not failed."""
        if any(known[name].state is not RowState.REPLAYED for name in self._after):
            return []
        name = self._id({name: known[name].attempts for name in self._after})
        return [entry for entry in entries if entry["replay"] == name]

    def _entries(
        self,
        entries: Sequence[Mapping[str, Any]],
        known: Mapping[str, Quarantined],
        stored: _Stored,
    ) -> list[dict[str, Any]]:
        twice = [name for name in self._after if known[name].state is RowState.REPLAYED]
        if twice:
            last = next(entry for entry in reversed(entries) if entry["row_id"] == twice[0])
            what = f"{self._table}: row {twice[0]} by {last['by']} at {last['at']:%Y-%m-%d %H:%M:%S} ({last['note']})"
            raise StreamwardenError("QUARANTINE_REPLAYED", what)
        attempts = {name: known[name].attempts + 1 for name in self._after}
        replay = self._id(attempts)
        after = list(self._after.values())
        hashes = self._columns.hashes(after) if self._columns is not None else [None] * len(after)
        seen = Counter(stored.contents or ())
        # Replays that were not refused (yet) may still fail: their rows are counted before those of this one.
        waiting = Counter(entry["content"] for entry in entries if (entry["seen"] or 0) >= seen[entry["content"]])
        made: list[dict[str, Any]] = []
        now = utc_now()
        for number, (name, hashed) in enumerate(zip(self._after, hashes, strict=True)):
            made.append(
                {
                    "table": self._table,
                    "row_id": name,
                    "attempt": attempts[name],
                    "at": now,
                    "by": self._by,
                    "note": self._note,
                    "before": known[name].raw,
                    "after": self._after[name],
                    "job": self._spec.name,
                    "source": self._name,
                    "replay": replay,
                    "sent_as": self._source.table
                    if isinstance(self._source, DeltaSource)
                    else f"replay-{replay}.jsonl",
                    "number": number,
                    "content": hashed,
                    "seen": seen[hashed] + waiting[hashed] if hashed is not None else None,
                }
            )
            waiting[hashed] += 1
        return made

    def _id(self, attempts: Mapping[str, int]) -> str:
        told = [self._table, self._name, sorted((name, attempts[name], after) for name, after in self._after.items())]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _send(workspace: Workspace, spec: JobSpec, entries: Sequence[Mapping[str, Any]], planned: frozenset[str]) -> bool:
    """Send a replay's rows, unless an earlier call has; return whether this one did.

    Parameters
    ----------
    planned
        See :func:`_planned`.
    """
    first = entries[0]
    # A landed file may be gone since, and a table forgets old transaction ids, so neither shows it for ever.
    if first.get("sent"):
        return False
    lines = "".join(f"{entry['after']}\n" for entry in sorted(entries, key=lambda entry: entry["number"]))
    source = spec.inputs.get(first["source"])
    if isinstance(source, FileSource):
        # A file may have been archived since the job read it.
        name = first["sent_as"]
        sent = name not in planned and landing_folder(workspace, source).create(name, lines.encode())
    elif isinstance(source, DeltaSource) and source.table == first["sent_as"]:
        sent = _append(workspace, source.table, SourceRows(workspace, source.table).parsed(lines), first["replay"])
    else:
        # The job reads another source now, which must not get these rows.
        return False
    EditsTable(workspace).mark_sent(first["table"], first["replay"])
    return sent


def _complete(workspace: Workspace, spec: JobSpec, table: str) -> list[Replayed]:
    """Send what killed calls have entered and not sent."""
    replays: dict[str, list[dict[str, Any]]] = {}
    for entry in EditsTable(workspace).of(table):
        replays.setdefault(entry["replay"], []).append(entry)
    waiting = [entries for entries in replays.values() if not entries[0]["sent"]]
    planned = _planned(workspace, spec) if waiting else frozenset()
    return [_replayed(entries, True) for entries in waiting if _send(workspace, spec, entries, planned)]


def _planned(workspace: Workspace, spec: JobSpec) -> frozenset[str]:
    """Return the landed files that the job knows; empty if it reads none."""
    return planned_names(workspace, spec) if spec.files_source is not None else frozenset()


def _replayed(entries: Sequence[Mapping[str, Any]], sent: bool) -> Replayed:
    first = entries[0]
    again = sum(entry["attempt"] > 1 for entry in entries)
    return Replayed(first["replay"], len(entries), again, first["sent_as"], sent)


def _append(workspace: Workspace, table: str, rows: pa.Table, replay: str) -> bool:
    """Append rows in one commit, unless the table has that commit."""
    address, options = workspace.delta_rs(table)
    application = f"streamwarden/replay/{replay}"
    for number in range(1, _TRIES + 1):
        try:
            opened = DeltaTable(address, storage_options=options)
            if opened.transaction_version(application) is not None:
                return False
            # delta-rs commits on top of others' versions, but not of one with the same transaction.
            properties = CommitProperties(app_transactions=[Transaction(application, 1, round(time.time() * 1000))])
            write_deltalake(opened, rows, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            if number == _TRIES:
                raise StreamwardenError("QUARANTINE_EDITS_FAILED", f"{table}: {error}") from error
            continue
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StreamwardenError("QUARANTINE_EDITS_FAILED", f"{table}: {error}") from error
        return True
    raise AssertionError
