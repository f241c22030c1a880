"""A table at one version, opened to be checked as a whole; and the result of its check."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamwarden.model.row_rules import QUARANTINE_SUFFIX
from streamwarden.quality.results import ExpectationResult, TableResult, TableStatus, table_status
from streamwarden.quality.suites import Suite

__all__ = ["OpenedTable", "TableUnreadable", "judged"]


class TableUnreadable(Exception):
    """The rows of an opened table can't be read, for the reason in the message."""


@dataclass(frozen=True)
class OpenedTable:
    """A table at its version, not read yet, or the reason for its absence."""

    seconds: float
    version: int | None = None
    version_time: str | None = None
    status: TableStatus = "unreadable"
    code: str | None = None
    what: str | None = None


def judged(
    table: OpenedTable,
    suite: Suite,
    digest: str,
    check: Callable[[], tuple[int, tuple[ExpectationResult, ...]]] | None,
) -> TableResult:
    """Return what a suite finds in a table.

    Parameters
    ----------
    table, suite, digest
        The table, the suite, and its file's digest.
    check
        Counts the rows, and evaluates the suite if there are any. Raises `TableUnreadable`. None: there is no table.
    """
    began = time.monotonic()

    def result(status: TableStatus, **fields: Any) -> TableResult:
        return TableResult(
            table=suite.name,
            status=status,
            version=table.version,
            version_time=table.version_time,
            seconds=round(table.seconds + time.monotonic() - began, 3),
            notes=suite.notes,
            suite=digest,
            **fields,
        )

    if check is None:
        return result(table.status, code=table.code, what=table.what)
    try:
        rows, found = check()
    except TableUnreadable as error:
        return result("unreadable", what=f"the table cannot be read: {error}")
    if not rows:
        if suite.name.endswith(QUARANTINE_SUFFIX):
            return result("passed", rows=0, what="nothing is quarantined at this version")
        # Most expectations hold for zero rows, but an empty table means a job that does not work.
        return result("no_rows", rows=0, what="the table has no rows at this version; nothing was checked")
    return result(table_status(found), rows=rows, expectations=found)
