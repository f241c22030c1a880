"""What a suite finds in the rows that a range of versions added: in memory if they fit, by Spark otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import GateRecord
from streamwarden.quality.arguments import SOURCE_FILE, UNIQUE
from streamwarden.quality.arrow_checker import ArrowChecker
from streamwarden.quality.engine import build, unevaluated
from streamwarden.quality.gate_state import gate_document
from streamwarden.quality.in_memory import check_size
from streamwarden.quality.older_rows import OlderRows
from streamwarden.quality.recent_rows import MissingColumnError, all_rows, begin_of, rows_since
from streamwarden.quality.results import ExpectationResult
from streamwarden.quality.spark_rows import judge_by_spark, judge_wider_by_spark
from streamwarden.quality.sql import QueryError
from streamwarden.quality.suites import Expectation, Suite
from streamwarden.quality.table_versions import NewFile, NewFiles, TableVersions, UnreadableHereError
from streamwarden.store.workspace import Workspace

__all__ = ["Judged", "RangeJudge"]

_log = logging.getLogger(__name__)

_EXAMPLES = 20
"""Failing rows of an expectation in results and holds. 20: a pattern shows, and a document stays small."""
_SOURCES = 20
"""Landed files that are named. 20: as many as failing rows."""


@dataclass(frozen=True)
class Judged:
    """What a suite finds.

    Parameters
    ----------
    rows
        The number of new rows.
    results
        By the expectation's id, in no order.
    source_files
        Some of the landed files that the new rows came from.
    older_files
        Older files whose rows an expectation is about as well, by its id.
    """

    rows: int
    results: dict[str, ExpectationResult] = field(default_factory=dict)
    source_files: Sequence[str] = ()
    older_files: dict[str, Sequence[NewFile]] = field(default_factory=dict)

    def of(self, suite: Suite) -> tuple[ExpectationResult, ...]:
        """Return the results in the suite's order."""
        return tuple(self.results[one.meta.id] for one in suite.expectations if one.meta.id in self.results)


class RangeJudge:
    """Judges ranges of versions.

    Parameters
    ----------
    workspace
        Where the tables are.
    expectations
        The folder of suites, for messages.
    """

    def __init__(self, workspace: Workspace, expectations: Path) -> None:
        self._workspace = workspace
        self._expectations = expectations
        self._checker: ArrowChecker | None = None

    def judge(self, suite: Suite, versions: TableVersions, added: NewFiles, version: int) -> Judged:
        """Return what a suite finds in a range.

        Raises
        ------
        StreamwardenError
            ``TABLE_DAMAGED`` or ``SUITE_INVALID``.
        """
        of_range = suite.only(one for one in suite.expectations if one.meta.recent is None and not one.meta.tables)
        path = self._path(suite)
        try:
            check_size(added.files)
            rows = versions.read(added.files, version)
            found = self._judge_rows(of_range, versions, added, rows, version) if rows.num_rows else Judged(0)
        except UnreadableHereError as reason:
            _log.info("%s: Spark checks versions up to %d: %s", suite.name, version, reason)
            given = self._workspace, of_range, path, added, version
            count, results, sources = judge_by_spark(*given, examples=_EXAMPLES)
            found, rows = Judged(count, {item.id: item for item in results}, sources), None
        if found.rows:
            found.results.update(self.judge_wider(suite, versions, version, added=added, rows=rows))
        return found

    def judge_wider(
        self,
        suite: Suite,
        versions: TableVersions,
        version: int,
        *,
        added: NewFiles | None = None,
        rows: pa.Table | None = None,
    ) -> dict[str, ExpectationResult]:
        """Return the results of expectations about recent rows, and of queries that read other tables.

        Parameters
        ----------
        added
            The new files; None if there are none: then only expectations about recent rows are judged.
        rows
            The new rows; None if only Spark can read them.
        """
        found: dict[str, ExpectationResult] = {}
        record = gate_document(self._workspace, suite.name).read()
        for expectation in suite.expectations:
            if expectation.meta.recent is None and (not expectation.meta.tables or added is None):
                continue
            alone = suite.only([expectation])
            try:
                results = self._judge_in_memory(alone, expectation, versions, version, rows)
            except UnreadableHereError as reason:
                _log.info("%s: Spark evaluates %s: %s", suite.name, expectation.meta.id, reason)
                given = self._workspace, alone, self._path(suite), version, added
                results = judge_wider_by_spark(*given, examples=_EXAMPLES)
            except MissingColumnError as error:
                results = [unevaluated(expectation, str(error))]
            found |= {item.id: _without_accepted(item, record) for item in results}
        return found

    def _judge_in_memory(
        self, alone: Suite, expectation: Expectation, versions: TableVersions, version: int, rows: pa.Table | None
    ) -> list[ExpectationResult]:
        recent, begin = expectation.meta.recent, None
        if recent is not None:
            begin = begin_of(versions, version, recent.column, recent.days)
            if begin is None:
                return []
            rows = rows_since(versions, version, recent.column, begin)
        if rows is None:
            raise UnreadableHereError("only Spark can read the new rows")
        try:
            others = {name: self._other(name, column, begin) for name, column in expectation.meta.tables.items()}
        except StreamwardenError as error:
            return [unevaluated(expectation, str(error).splitlines()[0])]
        return self._arrow().run_with(others, alone, build(alone, self._path(alone)), rows, rows.num_rows)

    def _judge_rows(
        self, suite: Suite, versions: TableVersions, added: NewFiles, rows: pa.Table, version: int
    ) -> Judged:
        checker, path = self._arrow(), self._path(suite)
        found = {item.id: item for item in checker.run(suite, build(suite, path), rows, rows.num_rows)}
        older_files: dict[str, Sequence[NewFile]] = {}
        # Keys that are unique among the new rows may repeat older ones.
        unique = [one for one in suite.expectations if one.type in UNIQUE]
        older = OlderRows(versions, added, rows, version) if unique else None
        for expectation in unique:
            assert older is not None
            try:
                repeated = older.repeated(expectation, suite.meta.keys)
            except QueryError as error:
                found[expectation.meta.id] = unevaluated(expectation, f"older rows: {error}")
                continue
            if repeated is not None:
                alone = suite.only([repeated.expectation])
                (result,) = checker.run(alone, build(alone, path), repeated.rows, rows.num_rows)
                found[result.id] = result.model_copy(update={"arguments": expectation.arguments})
                older_files[result.id] = repeated.files
        return Judged(rows.num_rows, found, _sources(rows), older_files)

    def _other(self, name: str, column: str | None, begin: Any) -> pa.Table:
        """Return another table's rows, from a time on."""
        versions = TableVersions(self._workspace, name)
        version = versions.log.latest
        if version is None:
            raise StreamwardenError("TABLE_NOT_FOUND", f"{name}: no Delta table, which a query reads")
        if column is None or begin is None:
            return all_rows(versions, version)
        return rows_since(versions, version, column, begin)

    def _path(self, suite: Suite) -> Path:
        return self._expectations / f"{suite.name}.json"

    def _arrow(self) -> ArrowChecker:
        if self._checker is None:
            self._checker = ArrowChecker(examples=_EXAMPLES)
        return self._checker


def _without_accepted(item: ExpectationResult, record: GateRecord | None) -> ExpectationResult:
    """Return a result as met if a person has accepted each of its failing rows."""
    accepted = [one.row for one in (record.accepted if record else []) if one.expectation == item.id]
    if item.success or item.unexpected_count != len(item.examples) or not item.examples:
        return item
    if not all(row in accepted for row in item.examples):
        return item
    return item.model_copy(update={"success": True, "notes": f"{item.notes} A person has accepted the failing rows."})


def _sources(rows: pa.Table) -> list[str]:
    if SOURCE_FILE not in rows.schema.names:
        return []
    return sorted(str(one) for one in pc.unique(rows[SOURCE_FILE]).to_pylist() if one is not None)[:_SOURCES]
