"""What a changed suite would have decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamwarden.errors import StreamwardenError
from streamwarden.formats.quality_table import QualityTable
from streamwarden.quality.range_judge import RangeJudge
from streamwarden.quality.suites import Suite
from streamwarden.quality.table_versions import TableVersions
from streamwarden.store.workspace import Workspace

__all__ = ["Replayed", "what_if"]


@dataclass(frozen=True)
class Replayed:
    """What another suite decides about a range.

    Parameters
    ----------
    after, version
        The range.
    passed
        Whether it passed when it was decided.
    failed
        The expectations that would hold it.
    """

    after: int
    version: int
    passed: bool
    failed: tuple[str, ...]


def what_if(workspace: Workspace, suite: Suite, expectations: Path, *, last: int = 100) -> list[Replayed]:
    """Return what a suite would decide about the ranges that were decided, oldest first. Publishes nothing.

    Parameters
    ----------
    workspace
        Where the table is.
    suite
        Of the same table; such as the shipped one with another limit.
    expectations
        Its folder, for messages.
    last
        The number of newest ranges. Those whose files or commits are gone are left out.
    """
    versions, judge = TableVersions(workspace, suite.name), RangeJudge(workspace, expectations)
    ranges = {
        (row["after"], row["version"]): row["passed"]
        for row in QualityTable(workspace).read(suite.name)
        if row["after"] is not None and row["after"] < row["version"]
    }
    found = []
    for (after, version), passed in list(ranges.items())[-last:]:
        try:
            added = versions.whole(version) if after < 0 else versions.added(after, version)
            judged = judge.judge(suite, versions, added, version)
        except StreamwardenError:
            continue
        failed = tuple(item.id for item in judged.of(suite) if item.fails_table)
        found.append(Replayed(after, version, passed, failed))
    return found
