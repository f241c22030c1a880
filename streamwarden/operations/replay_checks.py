"""Which quarantined rows can go through their job again: each row into one source, and from there to one output."""

from __future__ import annotations

import os
from collections.abc import Callable

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.row_rules import QUARANTINE_SUFFIX, quarantine_of
from streamwarden.model.source_spec import DeltaSource, FileSource, KafkaSource, Source
from streamwarden.model.spec import JobSpec
from streamwarden.operations.quarantine import Quarantined, specs_of
from streamwarden.operations.source_rows import SourceRows, named_source
from streamwarden.savepoints.compatibility import constant
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["source_checker"]

_COMPUTED = "Correct the rows that it was computed from, in the source; or change the rule."


def source_checker(workspace: Workspace, spec: JobSpec, table: str) -> Callable[[Quarantined], str]:
    """Return a function that returns the name of the source that a row of a quarantine table can be replayed into.

    It raises ``QUARANTINE_NOT_REPLAYABLE`` for a row that cannot. What holds for all rows is read once.
    """
    checked: set[str] = set()
    rules_checked = False

    def check(one: Quarantined) -> str:
        nonlocal rules_checked
        name = named_source(spec, one.source)
        if name is None:
            raise _refused(spec, f"row {one.id}", "it is not known from which of the job's sources the row came")
        source = spec.inputs[name]
        if one.raw is None and not isinstance(source, KafkaSource):
            remedy = "Land a corrected file under a new name, or `streamwarden landing reread` a replaced one."
            raise _refused(spec, f"row {one.id}", f"{one.source_file} was refused as a whole", remedy)
        if name not in checked:
            _check_source(workspace, spec, source)
            checked.add(name)
        if one.rules:
            if not rules_checked:
                _check_rows(workspace, spec, table)
                rules_checked = True
            _check_row(workspace, spec, one, source)
        return name

    return check


def _check_source(workspace: Workspace, spec: JobSpec, source: Source) -> None:
    """Refuse a source that other jobs read or write, or that can't take rows in JSON."""
    if isinstance(source, KafkaSource):
        remedy = f"Send the corrected record to {source.topic or 'its topic'} yourself; `quarantine show` prints it."
        raise _refused(spec, "source", "the job reads a topic, which has other readers", remedy)
    others = [one for one in specs_of(workspace) if one.name != spec.name]
    if isinstance(source, FileSource):
        for other in others:
            folders = [_folder(workspace, one) for one in other.inputs.values() if isinstance(one, FileSource)]
            if _folder(workspace, source) in folders:
                remedy = f"Give one of the jobs a landing folder of its own: {other.name} has read the row already."
                raise _refused(spec, f"folder {source.path}", f"job {other.name} reads it, too", remedy)
        return
    assert isinstance(source, DeltaSource)
    writer = next((one.name for one in (spec, *others) if source.table in [k.table for k in one.delta_sinks]), None)
    if writer is not None or source.published:
        remedy = f"Correct the row in table {source.table}, or quarantine it by a rule there, in job {writer}."
        raise _refused(spec, f"table {source.table}", f"it is written by job {writer} and read by others", remedy)
    column = SourceRows(workspace, source.table).unreadable
    if column is not None:
        remedy = f"Append the corrected row to table {source.table} yourself."
        raise _refused(spec, f"table {source.table}", f"JSON does not keep the values of column {column}", remedy)


def _folder(workspace: Workspace, source: FileSource) -> str:
    path = workspace.source_path(source.path).removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def _check_rows(workspace: Workspace, spec: JobSpec, table: str) -> None:
    """Refuse the rows of an output that are no rows of the source, or that another output may have got."""
    reference = JobDocuments(workspace.storage, spec.name).checkpoint.read()
    if reference is not None and CheckpointReader(workspace.storage, reference.path).has_state():
        what = "the job keeps state: the row was computed from others, or its key is known"
        raise _refused(spec, table, what, _COMPUTED)
    judged = next((sink for sink in spec.delta_sinks if quarantine_of(sink.table) == table), None)
    if judged is None:
        raise _refused(spec, table, "the job no longer writes the table that the rows were kept from", _COMPUTED)
    declared = constant(spec.module, "SOURCE_ROWS")
    if not isinstance(declared, tuple | list) or judged.output not in declared:
        remedy = (
            f"If each row of output {judged.output} is one row of the source, with the same columns and values, then"
            f' write SOURCE_ROWS = ("{judged.output}",) into the module. {_COMPUTED}'
        )
        raise _refused(spec, table, f"{spec.module} does not declare that its rows are rows of the source", remedy)
    if judged.mode == "upsert":
        remedy = "Let the source send the newest row of the key again."
        raise _refused(
            spec, table, f"{judged.table} is upserted: the row could overwrite a newer one of its key", remedy
        )
    kept = {sink.output for sink in spec.delta_sinks if sink.table.endswith(QUARANTINE_SUFFIX)}
    for sink in spec.sinks:
        if sink.output not in {judged.output, *kept}:
            remedy = f"Correct the row in table {judged.table} and in what output {sink.output} is written to."
            raise _refused(
                spec, table, f"output {sink.output} may have the row already, and would get it twice", remedy
            )


def _check_row(workspace: Workspace, spec: JobSpec, one: Quarantined, source: Source) -> None:
    if isinstance(source, FileSource) and one.source_row is None:
        what = "the table's rows do not name the row of a file that they came from"
        raise _refused(spec, f"row {one.id}", what, _COMPUTED)
    if isinstance(source, DeltaSource):
        columns, row = SourceRows(workspace, source.table), one.row
        # A nullable column may be younger than the row.
        needed = columns.required if set(columns.names) & set(row) else columns.names
        missing = [name for name in needed if name not in row]
        if missing:
            what = f"the row has no {missing[0]}, which table {source.table} has"
            raise _refused(spec, f"row {one.id}", what, _COMPUTED)


def _refused(spec: JobSpec, what: str, why: str, remedy: str | None = None) -> StreamwardenError:
    return StreamwardenError("QUARANTINE_NOT_REPLAYABLE", f"{spec.name}: {what}: {why}", remedy=remedy)
