"""Results on their way to the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.quality_table import QualityTable
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace

__all__ = ["WAITING", "KeptResults"]

WAITING = 20_000
"""Results that wait if the table cannot be written. 20,000: about 20 MB, some hundred decisions."""


class KeptResults:
    """Collects results, and appends many at once: a commit for each check would be a file and some milliseconds.

    Results of a process that is killed before are in its reports only. So are the oldest of more than 20,000.

    Parameters
    ----------
    workspace
        Where the table is.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._table = QualityTable(workspace)
        self._waiting: list[dict[str, Any]] = []
        self._lost = 0

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Collect rows of :meth:`~streamwarden.quality.results.QualityRun.rows`."""
        self._waiting += rows
        if (over := len(self._waiting) - WAITING) > 0:
            self._waiting, self._lost = self._waiting[over:], self._lost + over

    def keep(self) -> int:
        """Append the collected rows to the table; return how many.

        Raises
        ------
        StreamwardenError
            ``QUALITY_TABLE_FAILED``; the next call appends them. The message says how many are lost for the table.
        """
        rows = self._waiting
        try:
            done = self._table.append(rows)
        except StreamwardenError as error:
            if not self._lost:
                raise
            what = f"{error.what}; {self._lost:,} older results are in the reports in {QUALITY}/ only"
            raise StreamwardenError(error.code, what) from error
        self._waiting = self._waiting[len(rows) :]
        self._lost = 0
        return done
