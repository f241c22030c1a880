"""Data quality: what is published and held, the last checks of each table, and one check in full."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from streamwarden.airflow.pages.charts import sparkline
from streamwarden.errors import StreamwardenError
from streamwarden.formats.quality_table import QualityTable
from streamwarden.names import is_part
from streamwarden.quality.data_docs.files import KINDS, docs_key
from streamwarden.quality.documents import read_run
from streamwarden.quality.gate_state import GateState, gate_state
from streamwarden.quality.gate_words import state_words
from streamwarden.quality.results import ExpectationResult, TableResult
from streamwarden.storage import LocalStorage
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import CONTROL, QUALITY
from streamwarden.store.workspace import Workspace

__all__ = [
    "Check",
    "TableQuality",
    "TableRun",
    "Trend",
    "checks_of",
    "data_docs_page",
    "jobs_by_table",
    "table_quality",
    "table_run",
]

_COLUMNS = ("table", "at", "run", "passed", "rows", "success", "expectation")

_SHOWN = 12
"""Checks of a table in the list."""


@dataclass(frozen=True)
class Check:
    """A check of a table, as the table of results has it.

    Parameters
    ----------
    run, at
        The run, and when it began.
    passed
        Whether the table passed.
    rows
        Checked rows.
    failed
        The expectations that were not met.
    """

    run: str
    at: datetime
    passed: bool
    rows: int | None
    failed: tuple[str, ...]

    @property
    def tone(self) -> str:
        """Its colour: a table also passes with warnings."""
        return "bad" if not self.passed else "warn" if self.failed else "good"


@dataclass(frozen=True)
class TableQuality:
    """A table in the list.

    Parameters
    ----------
    table
        Its name.
    jobs
        The jobs that write it.
    state
        What the gate says; None if it can't be read.
    checks
        The last checks, oldest first.
    error
        Why the gate's state can't be read.
    """

    table: str
    jobs: list[str]
    state: GateState | None
    checks: list[Check]
    error: StreamwardenError | None = None

    @property
    def words(self) -> str:
        """The gate's state in words."""
        return state_words(self.state) if self.state is not None else "unknown"

    @property
    def tone(self) -> str:
        """The colour of the gate's state."""
        if self.state is None:
            return "bad"
        if self.state.error is not None or self.state.record.trouble is not None:
            return "bad"
        if self.state.hold is not None:
            return "warn"
        if self.state.latest is None or self.state.published.content < 0:
            return "off"
        return "busy" if self.state.waiting else "good"

    @property
    def exists(self) -> bool:
        """Whether there is anything to show of it."""
        return bool(self.checks) or self.state is None or self.state.latest is not None

    @property
    def rank(self) -> tuple[int, str]:
        """Its place in the list: held and failed ones first, tables that do not exist last."""
        if self.tone in ("bad", "warn"):
            return 0, self.table
        if self.checks and not self.checks[-1].passed:
            return 1, self.table
        return (3 if self.state is None or self.state.latest is None else 2), self.table


@dataclass(frozen=True)
class Trend:
    """How an expectation fared in the last checks.

    Parameters
    ----------
    path
        The share of failing rows, as the path of a small curve.
    checks, failed
        The number of checks, and of failed ones.
    """

    path: str
    checks: int
    failed: int


@dataclass(frozen=True)
class TableRun:
    """One check of a table.

    Parameters
    ----------
    run
        The run.
    started
        When it began.
    result
        Its result.
    trends
        By expectation.
    has_docs
        Whether its Data Docs were written.
    """

    run: str
    started: str
    result: TableResult
    trends: dict[str, Trend]
    has_docs: bool

    def groups(self) -> list[tuple[str, str, list[ExpectationResult]]]:
        """Return tone, title and expectations, failed ones first."""
        passed = [one for one in self.result.expectations if one.success]
        found = [("bad", "Not met", self.result.failures), ("warn", "Warnings", self.result.warnings),
                 ("good", "Met", passed)]  # fmt: skip
        return [one for one in found if one[2]]


def jobs_by_table(workspace: Workspace) -> dict[str, list[str]]:
    """Return the jobs that write each table, from the specs in force. Jobs with damaged documents are left out."""
    found: dict[str, list[str]] = {}
    for job in workspace.files.folders(CONTROL):
        try:
            desired = JobDocuments(workspace.storage, job).desired.read()
        except StreamwardenError:
            continue
        for sink in desired.spec.delta_sinks if desired is not None else ():
            found.setdefault(sink.table, []).append(job)
    return found


def suites_of(workspace: Workspace) -> list[str]:
    """Return the tables that have a suite. Reads file names only."""
    return sorted(path.stem for path in Path(workspace.config.parent / "expectations").glob("*.json"))


def table_quality(
    workspace: Workspace, tables: dict[str, list[str]], since: datetime
) -> tuple[list[TableQuality], StreamwardenError | None]:
    """Return tables for the list, worst first, and why there are no checks if their table can't be read.

    Parameters
    ----------
    tables
        The tables, with the jobs that write them.
    since
        From when on checks are shown.
    """
    problem, rows = None, []
    try:
        rows = QualityTable(workspace).since(
            since, columns=("table", "at", "run", "passed", "rows", "success", "expectation")
        )
    except StreamwardenError as error:
        problem = error
    checks = checks_of(rows)
    found = []
    for table, jobs in tables.items():
        mine = checks.get(table, [])[-_SHOWN:]
        try:
            found.append(TableQuality(table, jobs, gate_state(workspace, table), mine))
        except StreamwardenError as error:
            found.append(TableQuality(table, jobs, None, mine, error))
    return sorted(found, key=lambda one: one.rank), problem


def checks_of(rows: list[dict[str, Any]]) -> dict[str, list[Check]]:
    """Return the checks of each table, oldest first, from rows of the table of results."""
    runs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["table"], row["run"]), {})[row["expectation"]] = row
    found: dict[str, list[Check]] = {}
    for (table, run), each in runs.items():
        first = next(iter(each.values()))
        failed = tuple(name for name, row in each.items() if not row["success"])
        found.setdefault(table, []).append(Check(run, first["at"], bool(first["passed"]), first["rows"], failed))
    for checks in found.values():
        checks.sort(key=lambda one: (one.at, one.run))
    return found


def table_run(workspace: Workspace, table: str, run: str, since: datetime) -> TableRun | None:
    """Return one check of a table with trends; None if there is no such check.

    Parameters
    ----------
    since
        From when on trends are shown.

    Raises
    ------
    StreamwardenError
        ``DOCUMENT_INVALID`` if its results can't be read.
    """
    storage = LocalStorage(workspace.root)
    if not is_part(run) or storage.read(f"{QUALITY}/{run}/results.json") is None:
        return None
    document = read_run(storage, QUALITY, run)
    result = next((one for one in document.tables if one.table == table), None)
    if result is None:
        return None
    try:
        rows = QualityTable(workspace).read(table, since=since)
    except StreamwardenError:
        # The check is shown without trends.
        rows = []
    return TableRun(run, document.started, result, _trends(rows), (workspace.root / docs_key(run)).exists())


def data_docs_page(workspace: Workspace, kind: str, table: str, run: str) -> bytes | None:
    """Return a page of the Data Docs of a check; None if there is none.

    Parameters
    ----------
    kind
        ``validations`` or ``expectations``.
    """
    if kind not in KINDS or not is_part(run):
        return None
    entry = LocalStorage(workspace.root).read(docs_key(run, f"{kind}/{table}.html"))
    return entry.data if entry is not None else None


def _trends(rows: list[dict[str, Any]]) -> dict[str, Trend]:
    by: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault(row["expectation"], []).append(row)
    found = {}
    for name, each in by.items():
        shares: list[float | None] = [
            row["unexpected"] / row["checked"] if row["checked"] and row["unexpected"] is not None
            else float(not row["success"])
            for row in each
        ]  # fmt: skip
        path = sparkline(shares[-60:]) if len(shares) > 1 else ""
        found[name] = Trend(path, len(each), sum(not row["success"] for row in each))
    return found


SINCE = timedelta(days=30)
"""How far back checks and trends are shown."""
