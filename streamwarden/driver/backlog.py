"""How much input a batch took, how much is left, and whether its limit is why.

Spark reports offsets: where a batch began, where it ended, and of Kafka where the topic ended when it was planned. Of
a Delta table the rest is looked up.

A batch is cut if it took as much as its limit allows and left some. What came while it ran does not make it cut: a job
whose input never ends would else run batch after batch, however little each of them has.
"""

from __future__ import annotations

import json
from typing import Protocol

from streamwarden.formats.delta_log import ChangeCommit, DeltaLog
from streamwarden.model.spec import DeltaSource, KafkaSource
from streamwarden.model.status import SourceProgress
from streamwarden.store.workspace import Workspace

__all__ = ["Backlog", "DeltaBacklog", "KafkaBacklog", "backlog_of"]

_COUNTED = 200
"""Pending versions of a Delta table that are looked into. Of more than 200 all are counted: by then it does not matter
that some, such as those of OPTIMIZE, bring no rows. Nor do so many come while one batch runs."""


class Backlog(Protocol):
    """Measures one source."""

    def after(
        self, start: str | None, end: str | None, latest: str | None = None, rows: int = 0, /
    ) -> SourceProgress | None:
        """Return how far the source is after a batch.

        Parameters
        ----------
        start, end
            The offsets between which the batch read, JSON as Spark reports it.
        latest
            What there was to read when it was planned, likewise, of a source that tells.
        rows
            How many rows Spark read.
        """
        ...


def backlog_of(workspace: Workspace, source: DeltaSource | KafkaSource) -> Backlog:
    """Return the measure of a table or a topic. Of landed files their planner is the measure."""
    return KafkaBacklog() if isinstance(source, KafkaSource) else DeltaBacklog(workspace, source)


class DeltaBacklog:
    """Commits of a Delta table that add rows and were not read to their end; and those that a batch passed over."""

    def __init__(self, workspace: Workspace, source: DeltaSource) -> None:
        self._workspace = workspace
        self._source = source
        self._table = f"tables/{source.table}"
        self._limit = source.max_files_per_batch
        self._adds: dict[int, int] = {}

    def after(self, start: str | None, end: str | None, *_: object) -> SourceProgress | None:
        """See :class:`Backlog`."""
        # The offset names the version to go on with: Delta steps to the next one behind a version's last file.
        next_version = _field(end, "reservoirVersion")
        if next_version is None:
            return None
        began = _field(start, "reservoirVersion")
        log = DeltaLog(self._workspace.files, self._table)
        pending = log.since(next_version)
        many = len(pending) > _COUNTED
        counted = len(pending) if many else sum(self._files(log, version) > 0 for version in pending)
        # A batch without input has not been cut, whatever waits: commits that bring no rows wait for ever.
        cut = start != end and (many or (counted > 0 and self._is_full(log, start, end, next_version)))
        self._adds = {version: adds for version, adds in self._adds.items() if version >= next_version}
        # A batch that reads on within one version has taken a part of it; the first one has no start.
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
        """Tell whether a batch ended where its limit of files was reached, and not where the table did."""
        first = _field(start, "reservoirVersion")
        # A table that is read from its present state on has no commits that tell of that state's files.
        if first is None or _field(start, "isStartingVersion") or _field(end, "isStartingVersion"):
            return True
        index = _field(end, "index")
        if index is not None and index >= 0:
            # Within a version.
            return True
        files = 0
        for version in log.since(first):
            if version < next_version:
                files += self._files(log, version)
                if files >= self._limit:
                    return True
        return False

    def _files(self, log: DeltaLog, version: int) -> int:
        """Return how many files with new rows a version adds, as Delta counts them for a batch's limit."""
        if version not in self._adds:
            adds = (action["add"] for action in log.actions(version) if "add" in action)
            passed_over = self._source.on_change == "skip" and log.change(version) is not None
            self._adds[version] = 0 if passed_over else sum(bool(add.get("dataChange", True)) for add in adds)
        return self._adds[version]

    def _skipped(self, log: DeltaLog, start: str | None, until: int) -> list[ChangeCommit]:
        """Return the commits that a batch has passed over, from its start on and before a version."""
        began = _field(start, "reservoirVersion")
        if self._source.on_change != "skip" or start is None or began is None:
            # The first batch reads the table as it is; nothing of it is passed over.
            return []
        # While that is read, the offset names the version that it is of, whatever made it.
        first = began + 1 if json.loads(start).get("isStartingVersion") else began
        there = [version for version in log.since(first) if version < until]
        return [change for version in there if (change := log.change(version)) is not None]


class KafkaBacklog:
    """Offsets of a topic's partitions. Of a compacted topic, or one with transactions, there are more than records."""

    def after(
        self, start: str | None, end: str | None, latest: str | None = None, rows: int = 0
    ) -> SourceProgress | None:
        """See :class:`Backlog`."""
        began, ended, there = _offsets(start), _offsets(end), _offsets(latest)
        if ended is None:
            return None
        taken = rows
        if began is not None:
            # A partition that was added since is read from its beginning. Of a first batch nobody says where it began.
            taken = sum(offset - began.get(partition, 0) for partition, offset in ended.items())
        if there is None:
            return SourceProgress(unit="offsets", taken=taken, pending=None)
        pending = sum(max(offset - ended.get(partition, 0), 0) for partition, offset in there.items())
        # They were there when the batch was planned.
        return SourceProgress(unit="offsets", taken=taken, pending=pending, cut=taken > 0 and pending > 0)


def _offsets(text: str | None) -> dict[tuple[str, str], int] | None:
    """Read ``{"topic": {"partition": offset}}``."""
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
