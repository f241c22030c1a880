"""How much input a batch took, and how much is left.

Spark reports offsets: where a batch began, where it ended, and of Kafka where the topic ended when it was planned. Of
a Delta table the rest is looked up.
"""

from __future__ import annotations

import json
from typing import Protocol

from streamwarden.control.delta_log import DeltaLog
from streamwarden.control.documents import SourceProgress
from streamwarden.control.spec import DeltaSource, KafkaSource
from streamwarden.control.workspace import Workspace

__all__ = ["Backlog", "DeltaBacklog", "KafkaBacklog", "backlog_of"]

_COUNTED = 200
"""Pending versions of a Delta table that are looked into. Of more than 200 all are counted: by then it does not matter
that some, such as those of OPTIMIZE, bring no rows."""


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
    """Commits of a Delta table that add rows and were not read to their end."""

    def __init__(self, workspace: Workspace, source: DeltaSource) -> None:
        self._workspace = workspace
        self._table = f"tables/{source.table}"
        self._adds: dict[int, bool] = {}

    def after(self, start: str | None, end: str | None, *_: object) -> SourceProgress | None:
        """See :class:`Backlog`."""
        # The offset names the version to go on with: Delta steps to the next one behind a version's last file.
        next_version = _field(end, "reservoirVersion")
        if next_version is None:
            return None
        began = _field(start, "reservoirVersion")
        log = DeltaLog(self._workspace.files, self._table)
        pending = [version for version in log.versions if version >= next_version]
        counted = len(pending) if len(pending) > _COUNTED else sum(self._has_rows(log, version) for version in pending)
        self._adds = {version: adds for version, adds in self._adds.items() if version >= next_version}
        # A batch that reads on within one version has taken a part of it; the first one has no start.
        finished = next_version - (0 if began is None else began)
        taken = 0 if start == end else max(finished, 1)
        return SourceProgress(unit="versions", taken=taken, finished=finished, pending=counted)

    def _has_rows(self, log: DeltaLog, version: int) -> bool:
        if version not in self._adds:
            adds = (action["add"] for action in log.actions(version) if "add" in action)
            self._adds[version] = any(add.get("dataChange", True) for add in adds)
        return self._adds[version]


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
        return SourceProgress(unit="offsets", taken=taken, pending=pending)


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
