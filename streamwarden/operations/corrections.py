"""Find rows that came after the watermark and were dropped, and fold them into the table that they belong to.

A sink's `reconcile` computes the table's rows from the job's sources. Only closed rows are compared: those whose end
the watermark of the newest committed batch has passed. The job can't change them any more, so it and a correction never
write the same row. See docs/decisions/0047-late-rows-are-folded-in-by-a-query.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from streamwarden.errors import StreamwardenError
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.formats.output_columns import IS_FINAL
from streamwarden.model.reconcile_spec import ReconcileSpec
from streamwarden.model.spec import SinkSpec
from streamwarden.quality import sql
from streamwarden.quality.table_versions import TableVersions, UnreadableHereError
from streamwarden.runtime.operation_lock import refuse_if_busy
from streamwarden.store.config import job_names
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["CORRECTED_AT", "CORRECTED_ROWS", "Applied", "Corrections", "Found", "corrections_of"]

CORRECTED_AT = "corrected_at"
"""Column with the time of a row's newest correction; null in other rows. The job does not write it."""

CORRECTED_ROWS = "corrected_rows"
"""Column with the number of late source rows that corrections have added to a row."""

_TRIES = 20
"""Maximum lost races with the job's commits."""

_EXAMPLES = 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Found:
    """What a reconciliation found.

    Parameters
    ----------
    job, table
        The job, and its table.
    version
        The version of the table that was compared; None if there is no committed batch or no table yet.
    sources
        The versions of the sources.
    closed_before
        The watermark: rows that end then or before are closed. None without one.
    compared
        Closed rows of the query.
    rows
        Rows of the table to be changed or added.
    missing
        Those of them that the table lacks.
    late
        Source rows that they lack.
    amounts
        By column of an exact type other than the count: the sum that they lack.
    other
        Closed rows that differ without lacking source rows: late rows can't be the cause, so they are left alone.
    examples
        Some of `rows`: the keys, and the counts of the table and of the query.
    other_examples
        Some of `other`.
    """

    job: str
    table: str
    version: int | None = None
    sources: dict[str, int] | None = None
    closed_before: datetime | None = None
    compared: int = 0
    rows: int = 0
    missing: int = 0
    late: int = 0
    amounts: dict[str, Decimal | int] | None = None
    other: int = 0
    examples: tuple[dict[str, Any], ...] = ()
    other_examples: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Applied:
    """A correction.

    Parameters
    ----------
    found
        What was found, and folded in.
    commit
        The version of the table with it; None if there was nothing to correct.
    """

    found: Found
    commit: int | None


def corrections_of(workspace: Workspace, name: str | None = None) -> list[Corrections]:
    """Return the corrections of a job's tables, or of one table.

    Parameters
    ----------
    name
        A job's or a table's; default all tables whose sinks have a `reconcile`.

    Raises
    ------
    StreamwardenError
        ``CORRECTIONS_UNAVAILABLE``: no such sink has a `reconcile`.
    """
    names = job_names(workspace.config)
    found = []
    for job in [name] if name in names else names:
        for sink in workspace.job(job).delta_sinks:
            if sink.reconcile is not None and name in (None, job, sink.table):
                found.append(Corrections(workspace, job, sink))
    if not found and name is not None:
        raise StreamwardenError("CORRECTIONS_UNAVAILABLE", f"{name}: no sink of that job or table has `reconcile`")
    return found


class Corrections:
    """Late rows of one table.

    Parameters
    ----------
    workspace
        Where the job is.
    job
        Its name.
    sink
        The table's sink; it has `reconcile`.
    """

    def __init__(self, workspace: Workspace, job: str, sink: SinkSpec) -> None:
        assert sink.reconcile is not None and sink.final_when_passed is not None
        self._workspace = workspace
        self._job = job
        self._sink = sink
        self._spec: ReconcileSpec = sink.reconcile
        self._end: str = sink.final_when_passed

    def find(self) -> Found:
        """Return what the table lacks. Changes nothing.

        Raises
        ------
        StreamwardenError
            ``RECONCILE_FAILED``, ``CORRECTIONS_UNAVAILABLE``, ``TABLE_NOT_FOUND``, ``TABLE_DAMAGED``.
        """
        return self._compared()[0]

    def apply(self, *, by: str) -> Applied:
        """Fold in what the table lacks, in one commit. A second call finds nothing, and commits nothing.

        Safe while the job runs, and if it is killed at any time: the commit succeeds only on the version that was
        compared; otherwise all is compared anew.

        Parameters
        ----------
        by
            Who asked for it; it is in the commit.

        Raises
        ------
        StreamwardenError
            Those of :meth:`find`; ``OPERATION_RUNNING`` during a restore, rescale or rollout; ``DOCUMENT_CONFLICT`` if
            others commit all the time.
        """
        # It loads polars, which no other command needs.
        from streamwarden.formats.delta_writer import hindrance

        for _ in range(_TRIES):
            # Within the loop: an operation that began meanwhile has committed a fence, so the commit failed.
            refuse_if_busy(self._workspace, self._job)
            found, rows, table = self._compared()
            if table is None or not rows.num_rows:
                return Applied(found, None)
            reason = hindrance(table)
            if reason:
                raise StreamwardenError(
                    "CORRECTIONS_UNAVAILABLE", f"{self._sink.table}: delta-rs can't write it: {reason}"
                )
            before = table.version()
            try:
                self._merge(table, rows, found, by)
            except CommitFailedError:
                if TableVersions(self._workspace, self._sink.table).opened().version() == before:
                    raise
                continue
            return Applied(found, before + 1)
        raise StreamwardenError("DOCUMENT_CONFLICT", f"{self._sink.table}: {_TRIES} commits were lost to other writers")

    def _closed_before(self) -> datetime | None:
        """Return the watermark of the newest committed batch; None without one.

        The next batch drops rows of a window that it has passed, and that batch has written all that it did not drop.
        """
        reference = JobDocuments(self._workspace.storage, self._job).checkpoint.read()
        if reference is None:
            return None
        reader = CheckpointReader(self._workspace.storage, reference.path)
        last = reader.last_commit()
        offsets = reader.offsets(last) if last is not None else None
        if offsets is None or offsets.watermark_ms <= 0:
            return None
        return _EPOCH + timedelta(milliseconds=offsets.watermark_ms)

    def _compared(self) -> tuple[Found, pa.Table, DeltaTable | None]:
        """Return what was found, the rows to write, and the table at the compared version."""
        # The watermark first: it only grows, so the table has at least all that was written before it.
        watermark = self._closed_before()
        versions = TableVersions(self._workspace, self._sink.table)
        if watermark is None or versions.log.latest is None:
            return Found(self._job, self._sink.table, closed_before=watermark), pa.table({}), None
        table = versions.opened()
        expected, sources = self._expected(watermark, pa.schema(table.schema().to_arrow()))
        there = self._there(table, watermark)
        differences = _differences(expected, there, self._sink.keys, self._spec.count)
        rows = self._rows(differences, expected, datetime.now(UTC))
        found = self._found(differences, expected.num_rows, table.version(), sources, watermark)
        return found, rows, table

    def _expected(self, watermark: datetime, schema: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
        """Return the query's closed rows, with the types of the table, and the versions of the sources."""
        tables, read = {}, {}
        try:
            query = sql.translated(self._spec.query)
            columns = _columns_of(query)
            for name in self._spec.tables:
                versions = TableVersions(self._workspace, name)
                opened = versions.opened()
                read[name] = opened.version()
                names = [one.name for one in opened.schema().fields if columns is None or one.name.lower() in columns]
                source = versions.read(versions.whole(read[name]).files, read[name], names or None)
                tables[sql.other(name)] = sql.without_zones(source)
            closed = f'SELECT * FROM ({query}) AS q WHERE "{self._end}" <= {_naive(watermark)}'
            found = sql.run(closed, tables)
        except sql.QueryError as error:
            raise self._failed(str(error)) from error
        except UnreadableHereError as error:
            raise StreamwardenError("CORRECTIONS_UNAVAILABLE", f"{self._sink.table}: {error}") from error
        own = {IS_FINAL, CORRECTED_AT, CORRECTED_ROWS}
        unknown = [name for name in found.column_names if name not in schema.names or name in own]
        lacking = [name for name in (*self._sink.keys, self._end, self._spec.count) if name not in found.column_names]
        if unknown or lacking:
            raise self._failed(
                f"it gives {', '.join(unknown)}, which the table does not have or the job's sink sets"
                if unknown
                else f"it does not give {', '.join(lacking)}"
            )
        try:
            found = found.cast(pa.schema([schema.field(name) for name in found.column_names]))
        except pa.ArrowException as error:
            raise self._failed(f"its types are not the table's: {error}") from error
        keys = found.group_by(list(self._sink.keys)).aggregate([])
        if keys.num_rows < found.num_rows:
            raise self._failed(f"{found.num_rows - keys.num_rows} of its rows repeat a key")
        return found, read

    def _there(self, table: DeltaTable, watermark: datetime) -> pa.Table:
        micros = (watermark - _EPOCH) // timedelta(microseconds=1)
        # As text it would be parsed to nanoseconds, which end in 2262.
        closed = f'"{self._end}" <= arrow_cast({micros}, \'Timestamp(Microsecond, Some("UTC"))\')'
        found = pa.table(table.scan(predicate=closed))
        found = found.cast(pa.schema(table.schema().to_arrow()))
        for name, kind in ((CORRECTED_AT, pa.timestamp("us", "UTC")), (CORRECTED_ROWS, pa.int64())):
            if name not in found.column_names:
                found = found.append_column(name, pa.nulls(found.num_rows, kind))
        return found

    def _rows(self, differences: pa.Table, expected: pa.Table, now: datetime) -> pa.Table:
        """Return the rows to write: the query's, marked as final and as corrected."""
        late = differences.filter(differences["_late"])
        rows = late.select(expected.column_names).cast(expected.schema)
        number = rows.num_rows
        added = pc.add(pc.coalesce(late["_corrected"], pa.scalar(0, pa.int64())), late["_lacks"].cast(pa.int64()))
        return (
            rows.append_column(IS_FINAL, pa.repeat(pa.scalar(True), number))
            .append_column(CORRECTED_AT, pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), number))
            .append_column(CORRECTED_ROWS, added)
        )

    def _found(
        self, differences: pa.Table, compared: int, version: int, sources: dict[str, int], watermark: datetime
    ) -> Found:
        late = differences.filter(differences["_late"])
        other = differences.filter(pc.invert(differences["_late"]))
        amounts = {
            name.removeprefix("_more_"): pc.sum(late[name]).as_py() or 0
            for name in late.column_names
            if name.startswith("_more_")
        }
        shown = [*self._sink.keys, "_has", "_should"]
        names = [*self._sink.keys, f"{self._spec.count}_there", self._spec.count]

        def examples(of: pa.Table) -> tuple[dict[str, Any], ...]:
            return tuple(of.select(shown).rename_columns(names).slice(0, _EXAMPLES).to_pylist())

        return Found(
            job=self._job,
            table=self._sink.table,
            version=version,
            sources=sources,
            closed_before=watermark,
            compared=compared,
            rows=late.num_rows,
            missing=late["_has"].null_count,
            late=int(pc.sum(late["_lacks"]).as_py() or 0),
            amounts=amounts,
            other=other.num_rows,
            examples=examples(late),
            other_examples=examples(other),
        )

    def _merge(self, table: DeltaTable, rows: pa.Table, found: Found, by: str) -> None:
        note = f"correction of {self._job} by {by}: {found.late} late rows in {found.rows} rows"
        merge = table.merge(
            rows,
            " AND ".join(f'(t."{key}" IS NOT DISTINCT FROM s."{key}")' for key in self._sink.keys),
            source_alias="s",
            target_alias="t",
            # The first correction adds the two columns, in the same commit.
            merge_schema=True,
            streamed_exec=False,
            # On another version, the job may have changed rows, or an operation may have fenced the table.
            commit_properties=CommitProperties(custom_metadata={"userMetadata": note}, max_commit_retries=0),
        )
        values = {f'"{name}"': f's."{name}"' for name in rows.column_names}
        merge.when_matched_update(values).when_not_matched_insert(values).execute()

    def _failed(self, what: str) -> StreamwardenError:
        return StreamwardenError("RECONCILE_FAILED", f"{self._job}, table {self._sink.table}: {what}")


def _differences(expected: pa.Table, there: pa.Table, keys: Sequence[str], count: str) -> pa.Table:
    """Return the keys whose rows differ, with the query's values, and what the table's rows lack."""
    matches = " AND ".join(f'e."{key}" IS NOT DISTINCT FROM t."{key}"' for key in keys)
    values = [name for name in expected.column_names if name not in keys]
    differ = " OR ".join(f'e."{name}" IS DISTINCT FROM t."{name}"' for name in values)
    more = "".join(
        f', coalesce(e."{name}", 0) - coalesce(t."{name}", 0) AS "_more_{name}"'
        for name in values
        if name != count and _exact(expected.schema.field(name).type)
    )
    query = f"""
        SELECT {", ".join(f'coalesce(e."{name}", t."{name}") AS "{name}"' for name in keys)},
          {", ".join(f'e."{name}" AS "{name}"' for name in values)},
          t."{count}" AS _has, e."{count}" AS _should, t."{CORRECTED_ROWS}" AS _corrected,
          coalesce(e."{count}", 0) - coalesce(t."{count}", 0) AS _lacks,
          coalesce(e."{count}", 0) > coalesce(t."{count}", 0) AS _late {more}
        FROM (SELECT *, TRUE AS _is FROM expected) AS e FULL JOIN (SELECT *, TRUE AS _is FROM there) AS t ON {matches}
        WHERE e._is IS NULL OR t._is IS NULL OR {differ}
        ORDER BY {", ".join(f'"{key}"' for key in keys)}"""
    return sql.run(query, {"expected": sql.without_zones(expected), "there": sql.without_zones(there)})


def _columns_of(query: str) -> set[str] | None:
    """Return the names of all columns that a query mentions, in lower case, or None for all: only these are read."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(query, read="duckdb")
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return None
    return {column.name.lower() for column in tree.find_all(exp.Column)}


def _exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _naive(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"
