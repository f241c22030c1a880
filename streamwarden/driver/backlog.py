"""How much input a batch read, how much is pending, and whether its limit is the reason.

Spark reports offsets: the start and end of a batch, and for Kafka the end of the topic when the batch was planned. For
a Delta table the rest is looked up in its log.

A batch is cut if it read as much as its limit allows and left some input. Input that arrives while it runs does not
make it cut: otherwise a job with continuous input would run batch after batch, even with little input in each.
"""

from __future__ import annotations

import json
from typing import Protocol

from streamwarden.formats.delta_log import ChangeCommit, DeltaLog
from streamwarden.model.progress import SourceProgress
from streamwarden.model.source_spec import DeltaSource, KafkaSource
from streamwarden.store.workspace import Workspace

__all__ = ["Backlog", "DeltaBacklog", "KafkaBacklog", "backlog_of"]

_COUNTED = 200
"""Pending versions of a Delta table that are read. Beyond 200, all versions count. Then it does not matter that some of
them, such as OPTIMIZE's, bring no rows, and while one batch runs, fewer versions arrive."""


class Backlog(Protocol):
    """Measures the backlog of one source."""

    def after(
        self, start: str | None, end: str | None, latest: str | None = None, rows: int = 0, /
    ) -> SourceProgress | None:
        """Return the source's progress after a batch.

        Parameters
        ----------
        start, end
            The offsets between which the batch read, JSON as Spark reports it.
        latest
            The newest offsets when the batch was planned, if the source reports them.
        rows
            The number of rows that Spark read.
        """
        ...


def backlog_of(workspace: Workspace, source: DeltaSource | KafkaSource) -> Backlog:
    """Return the backlog of a table or a topic. For landed files, the planner measures it."""
    return KafkaBacklog() if isinstance(source, KafkaSource) else DeltaBacklog(workspace, source)


class DeltaBacklog:
    """Commits of a Delta table that add rows and are not fully read, and commits that a batch skipped."""

    def __init__(self, workspace: Workspace, source: DeltaSource) -> None:
        self._workspace = workspace
        self._source = source
        self._limit = source.max_files_per_batch
        self._adds: dict[int, int] = {}

    def after(self, start: str | None, end: str | None, *_: object) -> SourceProgress | None:
        """See :class:`Backlog`."""
        # The offset names the next version to read: after a version's last file, Delta advances to the next version.
        next_version = _field(end, "reservoirVersion")
        if next_version is None:
            return None
        began = _field(start, "reservoirVersion")
        log = DeltaLog(self._workspace.files, self._source.table, published=self._source.published)
        pending = log.since(next_version)
        many = len(pending) > _COUNTED
        counted = len(pending) if many else sum(self._files(log, version) > 0 for version in pending)
        # A batch without input is not cut, whatever is pending: commits without rows stay pending forever.
        cut = start != end and (many or (counted > 0 and self._is_full(log, start, end, next_version)))
        self._adds = {version: adds for version, adds in self._adds.items() if version >= next_version}
        # A batch that starts and ends within a version has read a part of it; the first batch has no start.
        finished = next_version - (0 if began is None else began)
        taken = 0 if start == end else max(finished, 1)
        skipped = self._skipped(log, start, next_version)
        return SourceProgress(
            unit="versions",
            taken=taken,
            finished=finished,
            pending=counted,
            cut=cut,
            skipped=len(skipped),
            skipped_last=skipped[-1].passed_over(self._source.table) if skipped else "",
        )

    def _is_full(self, log: DeltaLog, start: str | None, end: str | None, next_version: int) -> bool:
        """Return whether a batch ended at its limit of files, and not at the end of the table."""
        first = _field(start, "reservoirVersion")
        # If a table is read from its current state on, no commits list the files of that state.
        if first is None or _field(start, "isStartingVersion") or _field(end, "isStartingVersion"):
            return True
        index = _field(end, "index")
        if index is not None and index >= 0:
            # The batch ended within a version.
            return True
        files = 0
        for version in log.since(first):
            if version < next_version:
                files += self._files(log, version)
                if files >= self._limit:
                    return True
        return False

    def _files(self, log: DeltaLog, version: int) -> int:
        """Return how many files with new rows a version adds, counted as Delta does for a batch's limit."""
        if version not in self._adds:
            adds = (action["add"] for action in log.actions(version) if "add" in action)
            passed_over = self._source.on_change == "skip" and log.change(version) is not None
            self._adds[version] = 0 if passed_over else sum(bool(add.get("dataChange", True)) for add in adds)
        return self._adds[version]

    def _skipped(self, log: DeltaLog, start: str | None, until: int) -> list[ChangeCommit]:
        """Return the commits that a batch has skipped, from its start to before a given version."""
        began = _field(start, "reservoirVersion")
        if self._source.on_change != "skip" or start is None or began is None:
            # The first batch reads the table's current state and skips nothing.
            return []
        # While that state is read, the offset names the state's version, independent of what created it.
        first = began + 1 if json.loads(start).get("isStartingVersion") else began
        there = [version for version in log.since(first) if version < until]
        return [change for version in there if (change := log.change(version)) is not None]


class KafkaBacklog:
    """Offsets of a topic's partitions. A compacted or transactional topic has more offsets than records."""

    def after(
        self, start: str | None, end: str | None, latest: str | None = None, rows: int = 0
    ) -> SourceProgress | None:
        """See :class:`Backlog`."""
        began, ended, there = _offsets(start), _offsets(end), _offsets(latest)
        if ended is None:
            return None
        taken = rows
        if began is not None:
            # A new partition is read from its beginning. The start of a first batch is not reported.
            taken = sum(offset - began.get(partition, 0) for partition, offset in ended.items())
        if there is None:
            return SourceProgress(unit="offsets", taken=taken, pending=None)
        pending = sum(max(offset - ended.get(partition, 0), 0) for partition, offset in there.items())
        # These records existed when the batch was planned.
        return SourceProgress(unit="offsets", taken=taken, pending=pending, cut=taken > 0 and pending > 0)


def _offsets(text: str | None) -> dict[tuple[str, str], int] | None:
    """Parse ``{"topic": {"partition": offset}}``."""
    try:
        topics = json.loads(text) if text else None
        if topics is None:
            return None
        return {(topic, number): int(at) for topic, found in topics.items() for number, at in found.items()}
    except (ValueError, AttributeError):
        return None


def _field(offset: str | None, name: str) -> int | None:
    try:
        value = json.loads(offset)[name] if offset else None
    except (ValueError, KeyError, TypeError):
        return None
    return None if value is None else int(value)
