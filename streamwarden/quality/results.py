"""Results of a run: plain records, which are also the documents of ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorText
from streamwarden.quality.arguments import ROWS

__all__ = ["ExpectationResult", "QualityRun", "Severity", "TableResult", "TableStatus", "table_status"]

Severity = Literal["critical", "warning", "info"]
TableStatus = Literal["passed", "warned", "failed", "no_rows", "not_found", "unreadable"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ExpectationResult(_Record):
    """Result of one expectation on one version of a table."""

    id: str
    type: str
    columns: tuple[str, ...]
    severity: Severity
    description: str = Field(description="The expectation, as a sentence.")
    notes: str = Field(description="Why.")
    arguments: dict[str, Any]
    success: bool
    observed: Any = Field(default=None, description="The observed value, if it is one value and not a count of rows.")
    checked: int | None = Field(
        default=None, description="Number of checked rows; nulls only count if the expectation is about them."
    )
    unexpected_count: int | None = None
    unexpected_percent: float | None = Field(default=None, description="Share of the checked rows.")
    examples: tuple[dict[str, Any], ...] = Field(
        default=(), description="Some failing rows: their keys and the columns in question. Failed ones only."
    )
    error: ErrorText | None = Field(
        default=None, description="Why it could not be evaluated. It then counts as failed."
    )

    @property
    def fails_table(self) -> bool:
        """Whether this failure fails the table."""
        return not self.success and self.severity == "critical"

    def summary(self) -> str:
        """Return expectation, columns and finding in one line."""
        where = f" on {', '.join(self.columns)}" if self.columns else ""
        return f"{self.id} [{self.type}]{where}: {self.finding()}"

    def finding(self) -> str:
        """Return the finding as text."""
        if self.error is not None:
            return f"could not be evaluated: {self.error}"
        if self.unexpected_count is not None:
            if self.unexpected_count == 0:
                return f"all {self.checked:,} rows" if self.checked is not None else "no failing row"
            if self.type == ROWS:
                # They need not be rows of the table: a drift's query returns one row of figures.
                if self.unexpected_count > 1 or not self.examples:
                    return f"its query finds {self.unexpected_count:,} rows"
                return "its query finds " + ", ".join(f"{name}={_words(at)}" for name, at in self.examples[0].items())
            share = f" ({_percent(self.unexpected_percent)})" if self.unexpected_percent is not None else ""
            rows = f"{self.checked:,} rows" if self.checked is not None else "the rows"
            return f"{self.unexpected_count:,} of {rows} {'fails' if self.unexpected_count == 1 else 'fail'}{share}"
        return f"found {_words(self.observed)}"


class TableResult(_Record):
    """Result of one suite on one version of its table."""

    table: str
    status: TableStatus
    version: int | None = Field(default=None, description="The Delta version that was checked.")
    after: int | None = Field(
        default=None, description="Only the rows that later versions than this one added were checked. None: all rows."
    )
    version_time: str | None = Field(default=None, description="When that version was committed, if it is the latest.")
    rows: int | None = None
    seconds: float = 0.0
    code: str | None = Field(default=None, description="An error code, where the table could not be checked.")
    what: ErrorText | None = Field(default=None, description="Why the table could not be checked, in words.")
    notes: str = ""
    suite: str = Field(default="", description="The first digits of the SHA-256 of the suite's file.")
    expectations: tuple[ExpectationResult, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def success(self) -> bool:
        """Whether the table exists with rows, and no critical expectation failed."""
        return self.status in ("passed", "warned")

    @property
    def failures(self) -> list[ExpectationResult]:
        """The failed expectations that fail the table."""
        return [result for result in self.expectations if result.fails_table]

    @property
    def warnings(self) -> list[ExpectationResult]:
        """The failed expectations that do not fail the table."""
        return [result for result in self.expectations if not result.success and not result.fails_table]


def table_status(found: Sequence[ExpectationResult]) -> TableStatus:
    """Return the verdict on a table that has rows."""
    if any(item.fails_table for item in found):
        return "failed"
    return "passed" if all(item.success for item in found) else "warned"


class QualityRun(_Record):
    """Results of all suites of one run.

    The run does not publish, quarantine or stop anything: that is the caller's task.
    """

    format: Literal[1] = 1
    run_id: str
    started: str
    ended: str
    seconds: float
    seconds_to_spark: float = Field(default=0.0, description="Part of that: until the Spark session was ready.")
    tables_dir: str
    great_expectations: str = Field(description="Its version.")
    spark: str | None = Field(default=None, description="Its version; None if the rows were checked without Spark.")
    tables: tuple[TableResult, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def success(self) -> bool:
        """Whether every table passed, warnings aside."""
        return all(table.success for table in self.tables)

    def raise_for_failures(self) -> None:
        """Return if the run succeeded; raise otherwise.

        Raises
        ------
        StreamwardenError
            ``TABLE_NOT_FOUND`` if missing tables are the only problem; else ``EXPECTATIONS_FAILED``, whose text has
            table, expectation and columns of every critical failure.
        """
        failed = [table for table in self.tables if not table.success]
        if not failed:
            return
        if all(table.status == "not_found" for table in failed):
            raise StreamwardenError("TABLE_NOT_FOUND", "; ".join(table.what or table.table for table in failed))
        lines = [f"run {self.run_id}"]
        for table in failed:
            if table.failures:
                at = f"{table.table}@{table.version}"
                lines += [f"  {at}: {failure.summary()}" for failure in table.failures]
            else:
                lines.append(f"  {table.table}: {table.what}")
        raise StreamwardenError("EXPECTATIONS_FAILED", "\n".join(lines))

    def rows(self) -> list[dict[str, Any]]:
        """Return the run as rows of :mod:`streamwarden.formats.quality_table`."""
        return [
            {
                "table": table.table,
                "at": datetime.fromisoformat(self.started),
                "run": self.run_id,
                "after": table.after,
                "version": table.version,
                "rows": table.rows,
                "passed": table.success,
                "expectation": item.id,
                "severity": item.severity,
                "success": item.success,
                "checked": item.checked,
                "unexpected": item.unexpected_count,
                "observed": None if item.observed is None else json.dumps(item.observed),
                "error": item.error,
                "seconds": table.seconds,
            }
            for table in self.tables
            for item in table.expectations
        ]

    def brief(self) -> dict[str, Any]:
        """Return a short JSON verdict for a command's output, which can't hold the whole document."""

        def line(item: ExpectationResult) -> dict[str, Any]:
            return {
                "expectation": item.id,
                "column": ", ".join(item.columns) or None,
                "severity": item.severity,
                "detail": item.finding(),
            }

        tables = []
        for table in self.tables:
            failures = [line(item) for item in table.failures]
            if table.what is not None:
                failures.append(
                    {"expectation": table.status, "column": None, "severity": "critical", "detail": table.what}
                )
            tables.append(
                {
                    "table": table.table,
                    "success": table.success,
                    "status": table.status,
                    "version": table.version,
                    "rows": table.rows,
                    "expectations": len(table.expectations),
                    "failures": failures,
                    "warnings": [line(item) for item in table.warnings],
                }
            )
        return {"run": self.run_id, "success": self.success, "seconds": self.seconds, "tables": tables}


def _words(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _percent(value: float) -> str:
    # A single row of millions must not appear as 0 %.
    if 0 < value < 0.01:
        return "under 0.01 %"
    return f"{value:.2f} %"
