"""Send corrected quarantined rows through their job again, each once.

A replay is entered in ``quarantine_edits`` first, and its rows are sent then: as a file for a job that reads files, or
as one commit for a job that reads a table. Both carry the replay's id. So a repeated call sends what a killed one has
not sent, and nothing twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import json as arrow_json

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.quarantine_edits import EditsTable
from streamwarden.landing.folder import landing_folder
from streamwarden.landing.inspect import planned_names
from streamwarden.model.record import utc_now
from streamwarden.model.source_spec import DeltaSource, FileSource, KafkaSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.operations.quarantine import (
    Content,
    Quarantined,
    RowState,
    job_of_table,
    quarantined_rows,
    specs_of,
    stored_rows,
    trace,
)
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["Replayed", "content_of", "replay_rows"]

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
    stored = stored_rows(workspace, table)
    known = {one.id: one for one in quarantined_rows(workspace, table, content=content_of(workspace, spec))}
    unknown = [name for name in corrected if name not in known]
    if unknown:
        raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{table}: no row {', '.join(unknown[:5])}")
    by_source: dict[str, list[str]] = {}
    for name in corrected:
        by_source.setdefault(_source_of(workspace, spec, known[name]), []).append(name)
    parts = [
        _Part(workspace, spec, table, source, {name: corrected[name] for name in names}, by, note)
        for source, names in by_source.items()
    ]
    # All are checked before the first is entered.
    for part in parts:
        part.prepare(known)
    done = {one.replay: one for one in (part.perform(stored) for part in parts)}
    return [*(one for one in completed if one.replay not in done), *done.values()]


def content_of(workspace: Workspace, spec: JobSpec) -> Content | None:
    """Return what recognises a row of a job that reads tables by its content; None for a job that reads files only."""
    hashers = {
        name: _Hasher(_schema(workspace, source.table))
        for name, source in spec.inputs.items()
        if isinstance(source, DeltaSource) and _exists(workspace, source.table)
    }
    if not hashers:
        return None

    def content(row: Mapping[str, Any]) -> str | None:
        name = _named_source(spec, row.get("source"))
        return hashers[name].of_text(row.get("raw")) if name in hashers else None

    return content


def _named_source(spec: JobSpec, told: str | None) -> str | None:
    """Return which source a row came from; None if it is unknown."""
    return next(iter(spec.inputs)) if spec.sources is None else told if told in spec.inputs else None


def _source_of(workspace: Workspace, spec: JobSpec, one: Quarantined) -> str:
    """Return the source that a row can be replayed into.

    Raises
    ------
    StreamwardenError
        ``QUARANTINE_NOT_REPLAYABLE``.
    """
    name = _named_source(spec, one.source)
    if name is None:
        raise _refused(spec, one, "it is not known from which of the job's sources the row came")
    source = spec.inputs[name]
    if isinstance(source, KafkaSource):
        remedy = f"Send the corrected record to {source.topic or 'its topic'} yourself; `quarantine show` prints it."
        raise _refused(spec, one, "the job reads a topic, which has other readers", remedy)
    if one.raw is None:
        remedy = "Land a corrected file under a new name, or `streamwarden landing reread` a replaced one."
        raise _refused(spec, one, f"{one.source_file} was refused as a whole", remedy)
    if one.rules:
        _check_same_rows(workspace, spec, one, source)
    if isinstance(source, DeltaSource):
        writer = next((s.name for s in specs_of(workspace) if source.table in [k.table for k in s.delta_sinks]), None)
        if writer is not None or source.published:
            remedy = f"Correct the row in table {source.table}, or quarantine it by a rule there, in job {writer}."
            raise _refused(spec, one, f"table {source.table} is written by job {writer} and read by others", remedy)
    return name


def _check_same_rows(workspace: Workspace, spec: JobSpec, one: Quarantined, source: Source) -> None:
    """Refuse an output row that is no row of the source."""
    remedy = "Correct the rows that it was computed from, in the source; or change the rule."
    reference = JobDocuments(workspace.storage, spec.name).checkpoint.read()
    if reference is not None and CheckpointReader(workspace.storage, reference.path).has_state():
        raise _refused(spec, one, "the job keeps state: the row was computed from others, or its key is known", remedy)
    if isinstance(source, FileSource) and one.source_row is None:
        raise _refused(spec, one, "the table's rows do not name the row of a file that they came from", remedy)
    if isinstance(source, DeltaSource):
        row = one.row
        missing = [name for name in _schema(workspace, source.table).names if name not in row]
        if missing:
            what = f"the row has no {missing[0]}, which table {source.table} has"
            raise _refused(spec, one, what, remedy)


def _refused(spec: JobSpec, one: Quarantined, why: str, remedy: str | None = None) -> StreamwardenError:
    return StreamwardenError("QUARANTINE_NOT_REPLAYABLE", f"{spec.name}: row {one.id}: {why}", remedy=remedy)


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
        self._hasher = _Hasher(_schema(workspace, found.table)) if isinstance(found, DeltaSource) else None
        self._after: dict[str, str] = {}

    def prepare(self, known: Mapping[str, Quarantined]) -> None:
        """Check the rows, without writing."""
        for name, given in self._corrected.items():
            row = known[name].row if given is None else given
            if not isinstance(row, dict):
                what = f"{self._table}: row {name} is no JSON object: {str(row)[:80]}"
                raise StreamwardenError("QUARANTINE_ROWS_INVALID", what)
            own = self._of_source(row, known[name].row)
            self._after[name] = json.dumps(own, ensure_ascii=False, separators=(",", ":"))
            if self._hasher is not None:
                self._hasher.checked(own, f"{self._table}: row {name}")

    def _of_source(self, row: Mapping[str, Any], before: Any) -> dict[str, Any]:
        """Return a row without the columns that the job has added to it."""
        if self._hasher is None:
            return {key: value for key, value in row.items() if key not in _ORIGIN}
        added = set(before if isinstance(before, dict) else ()) - set(self._hasher.names)
        return {key: value for key, value in row.items() if key not in added}

    def perform(self, stored: Sequence[Mapping[str, Any]]) -> Replayed:
        """Enter the replay, and send it."""
        edits = EditsTable(self._workspace)
        content = content_of(self._workspace, self._spec)
        chosen: list[Mapping[str, Any]] = []

        def make(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            known = {one.id: one for one in trace(stored, entries, content)}
            chosen[:] = self._begun(entries, known)
            if chosen:
                return []
            new = self._entries(entries, known, stored, content)
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
        stored: Sequence[Mapping[str, Any]],
        content: Content | None,
    ) -> list[dict[str, Any]]:
        twice = [name for name in self._after if known[name].state is RowState.REPLAYED]
        if twice:
            last = next(entry for entry in reversed(entries) if entry["row_id"] == twice[0])
            what = f"{self._table}: row {twice[0]} by {last['by']} at {last['at']:%Y-%m-%d %H:%M:%S} ({last['note']})"
            raise StreamwardenError("QUARANTINE_REPLAYED", what)
        attempts = {name: known[name].attempts + 1 for name in self._after}
        replay = self._id(attempts)
        seen: Counter[str | None] = Counter(content(row) for row in stored) if content is not None else Counter()
        # Replays that were not refused (yet) may still fail: their rows are counted before those of this one.
        made: list[dict[str, Any]] = []
        now = utc_now()
        for number, (name, after) in enumerate(self._after.items()):
            hashed = self._hasher.of_text(after) if self._hasher is not None else None
            waiting = (
                sum(entry["content"] == hashed and entry["seen"] >= seen[hashed] for entry in (*entries, *made))
                if hashed is not None
                else 0
            )
            made.append(
                {
                    "table": self._table,
                    "row_id": name,
                    "attempt": attempts[name],
                    "at": now,
                    "by": self._by,
                    "note": self._note,
                    "before": known[name].raw,
                    "after": after,
                    "job": self._spec.name,
                    "source": self._name,
                    "replay": replay,
                    "sent_as": self._source.table
                    if isinstance(self._source, DeltaSource)
                    else f"replay-{replay}.jsonl",
                    "number": number,
                    "content": hashed,
                    "seen": seen[hashed] + waiting if hashed is not None else None,
                }
            )
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
    lines = "".join(f"{entry['after']}\n" for entry in sorted(entries, key=lambda entry: entry["number"]))
    source = spec.inputs.get(first["source"])
    if isinstance(source, FileSource):
        # A file may have been archived since the job read it.
        if first["sent_as"] in planned:
            return False
        return landing_folder(workspace, source).create(first["sent_as"], lines.encode())
    if isinstance(source, DeltaSource) and source.table == first["sent_as"]:
        rows = _Hasher(_schema(workspace, source.table)).rows(lines)
        return _append(workspace, source.table, rows, first["replay"])
    # The job reads another source now, which must not get these rows.
    return False


def _complete(workspace: Workspace, spec: JobSpec, table: str) -> list[Replayed]:
    """Send what killed calls have entered and not sent."""
    replays: dict[str, list[dict[str, Any]]] = {}
    for entry in EditsTable(workspace).of(table):
        replays.setdefault(entry["replay"], []).append(entry)
    planned = _planned(workspace, spec)
    return [_replayed(entries, True) for entries in replays.values() if _send(workspace, spec, entries, planned)]


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
            properties = CommitProperties(
                app_transactions=[Transaction(application, 1, round(time.time() * 1000))], max_commit_retries=0
            )
            write_deltalake(opened, rows, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            if number == _TRIES:
                raise StreamwardenError("QUARANTINE_EDITS_FAILED", f"{table}: {error}") from error
            continue
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise StreamwardenError("QUARANTINE_EDITS_FAILED", f"{table}: {error}") from error
        return True
    raise AssertionError


class _Hasher:
    """Reads rows in JSON by a table's columns, and hashes them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def names(self) -> list[str]:
        """The table's columns."""
        return list(self._schema.names)

    def checked(self, row: Mapping[str, Any], words: str) -> None:
        """Raise ``QUARANTINE_ROWS_INVALID`` for a row that the table can't take."""
        foreign = sorted(set(row) - set(self._schema.names))
        if foreign:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{words}: the source has no column {foreign[0]}")
        try:
            self.rows(json.dumps(row))
        except (pa.ArrowException, ValueError) as error:
            raise StreamwardenError("QUARANTINE_ROWS_INVALID", f"{words}: {error}") from error

    def rows(self, lines: str) -> pa.Table:
        """Parse JSON lines."""
        options = arrow_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore")
        found = arrow_json.read_json(io.BytesIO(lines.encode()), parse_options=options)
        return found.select(self._schema.names).cast(self._schema)

    def of_text(self, text: str | None) -> str | None:
        """Return the hash of a row; None if it can't be read."""
        if text is None:
            return None
        try:
            (row,) = self.rows(text).to_pylist()
        except (pa.ArrowException, ValueError):
            return None
        plain = json.dumps(row, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value))
        return hashlib.sha256(plain.encode()).hexdigest()[:32]


def _exists(workspace: Workspace, table: str) -> bool:
    address, options = workspace.delta_rs(table)
    return bool(DeltaTable.is_deltatable(address, storage_options=options))


def _schema(workspace: Workspace, table: str) -> pa.Schema:
    address, options = workspace.delta_rs(table)
    try:
        return pa.schema(DeltaTable(address, storage_options=options).schema())
    except (DeltaError, OSError) as error:
        raise StreamwardenError("TABLE_NOT_FOUND", f"{table}: {error}") from error
