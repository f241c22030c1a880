"""What a person must know of a range that the gate holds: the rows, where they came from, and a query for them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from streamwarden.model.gate import HeldFailure, Hold
from streamwarden.model.record import utc_now
from streamwarden.quality.arguments import SOURCE_FILE
from streamwarden.quality.failing_rows import failing_rows_query, file_literal
from streamwarden.quality.range_judge import Judged
from streamwarden.quality.results import QualityRun
from streamwarden.quality.sql import BATCH
from streamwarden.quality.suites import Expectation, Suite
from streamwarden.quality.table_versions import NewFile, NewFiles, TableVersions

__all__ = ["hold_of"]

_FAILURES = 20
"""Failed expectations in a hold. 20: the report has all of them, and a document stays small."""
_FILES = 20
"""Files that a query for failing rows names."""


def hold_of(
    suite: Suite,
    run: QualityRun,
    judged: Judged,
    added: NewFiles,
    versions: TableVersions,
    after: int,
    *,
    anew: bool = False,
) -> Hold:
    """Return a failed check as a hold.

    Parameters
    ----------
    run
        The check's results.
    judged
        The same, with what is in no results.
    added
        What the range added.
    versions
        The table.
    after
        The version before the range.
    anew
        Whether the version is to be published in place of what was published.
    """
    result = run.tables[0]
    assert result.version is not None
    kinds = {item.meta.id: item for item in suite.expectations}
    columns = [field.name for field in versions.opened(result.version).schema().fields]
    failures = []
    for item in result.failures[:_FAILURES]:
        files = [*added.files[:_FILES], *judged.older_files.get(item.id, ())]
        failures.append(
            HeldFailure(
                expectation=item.id,
                finding=item.finding(),
                description=item.description,
                examples=list(item.examples),
                query=_query(suite, kinds[item.id], columns, versions.folder, files, len(added.files) - _FILES),
            )
        )
    if result.what is not None:
        failures.append(HeldFailure(expectation="no_rows", finding=result.what, description="", examples=[]))
    sources = {str(row[SOURCE_FILE]) for item in failures for row in item.examples if row.get(SOURCE_FILE)}
    return Hold(
        after=after,
        version=result.version,
        since=utc_now(),
        run=run.run_id,
        failures=failures,
        batches=[f"{application.removeprefix('streamwarden/')}/{batch}" for application, batch in added.transactions],
        source_files=sorted(sources or judged.source_files),
        anew=anew,
        suite=result.suite,
    )


def _query(
    suite: Suite, expectation: Expectation, columns: Sequence[str], folder: str, files: Sequence[NewFile], more: int
) -> str | None:
    """Return a query that runs in DuckDB as it is; None for a rule about other rows than the new ones."""
    if expectation.meta.recent is not None or expectation.meta.tables or not files:
        return None
    query = failing_rows_query(expectation.type, expectation.arguments, suite.meta.keys, columns)
    if query is None:
        return None
    listed = ", ".join(file_literal(f"{folder}/{unquote(one.path)}") for one in files)
    cut = f" /* and {more} more files */" if more > 0 else ""
    rows = f"SELECT * FROM read_parquet([{listed}]{cut}, union_by_name = true)"
    return f"SET TimeZone = 'UTC'; WITH {BATCH} AS ({rows}) SELECT * FROM ({query})"
