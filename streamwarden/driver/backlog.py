"""How much input a batch took, and how much is left.

Spark reports offsets: where a batch began, where it ended, and of Kafka where the topic ended when it was planned. For
files and Delta tables the rest is looked up.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from streamwarden.control.delta_log import ChangeCommit, DeltaLog
from streamwarden.control.documents import SourceProgress
from streamwarden.control.spec import DeltaSource, FileSource, JobSpec, KafkaSource
from streamwarden.control.workspace import Workspace
from streamwarden.storage import Bucket

__all__ = ["Backlog", "DeltaBacklog", "FileBacklog", "KafkaBacklog", "backlog_of"]

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


def backlog_of(workspace: Workspace, spec: JobSpec, checkpoint: str) -> Backlog:
    """Return the measure of a job's source.

    Parameters
    ----------
    checkpoint
        The checkpoint's folder, relative to the root.
    """
    if isinstance(spec.source, FileSource):
        return FileBacklog(workspace, spec.source, checkpoint)
    if isinstance(spec.source, KafkaSource):
        return KafkaBacklog()
    return DeltaBacklog(workspace, spec.source)


class FileBacklog:
    """Files of a folder that are younger than the last one taken: Spark takes them oldest first.

    A file that lands with an older time than one already taken is not counted while it waits. Folders that are neither
    on this machine's disk nor on S3 are not looked into: what is pending is then None.
    """

    def __init__(self, workspace: Workspace, source: FileSource, checkpoint: str) -> None:
        self._workspace = workspace
        self._folder = _folder_of(workspace, source)
        self._log = f"{checkpoint}/sources/0"

    def after(self, start: str | None, end: str | None, *_: object) -> SourceProgress | None:
        """See :class:`Backlog`."""
        last = _field(end, "logOffset")
        if last is None:
            return None
        began = _field(start, "logOffset")
        first = 0 if began is None else began + 1
        taken = [entry for batch in range(first, last + 1) for entry in self._entries(batch)]
        # A batch without input, such as the one that Spark owes after a restart, has left what the one before it left.
        newest_taken = taken or self._entries(last)
        if not newest_taken:
            return SourceProgress(unit="files", taken=0, pending=None)
        newest = max(int(entry["timestamp"]) for entry in newest_taken)
        known = {_name(entry) for entry in [*taken, *self._before(first, newest)] if int(entry["timestamp"]) == newest}
        return SourceProgress(unit="files", taken=len(taken), pending=self._younger(newest, known))

    def _before(self, batch: int, newest_ms: int) -> Iterator[dict[str, Any]]:
        # Files that land together may have one time, and be taken by several batches.
        while batch > 0:
            batch -= 1
            entries = self._entries(batch)
            yield from entries
            if not entries or any(int(entry["timestamp"]) < newest_ms for entry in entries):
                return

    def _entries(self, batch: int) -> list[dict[str, Any]]:
        # Every tenth is a compacted one, which repeats those before it.
        for name in (str(batch), f"{batch}.compact"):
            entry = self._workspace.storage.read(f"{self._log}/{name}")
            if entry is not None:
                lines = [json.loads(line) for line in entry.data.decode().splitlines()[1:]]
                return [line for line in lines if int(line.get("batchId", batch)) == batch]
        return []

    def _younger(self, newest_ms: int, known: set[str]) -> int | None:
        files = self._folder() if self._folder is not None else None
        if files is None:
            return None
        return sum(landed > newest_ms or (landed == newest_ms and name not in known) for name, landed in files)


_Folder = Callable[[], Iterable[tuple[str, int]] | None]
"""Looks into a folder: the name of each file that Spark would take, and when it landed (ms). None: there is none."""


def _folder_of(workspace: Workspace, source: FileSource) -> _Folder | None:
    # As Hadoop reads addresses: nothing in them is escaped.
    scheme, is_address, rest = (address := workspace.source_path(source.path)).partition("://")
    if not is_address or scheme == "file":
        return partial(_on_disk, Path(rest or address))
    if scheme == "s3a" and workspace.s3 is not None:
        bucket, _, prefix = rest.partition("/")
        # Spark reads every bucket from the profile's server.
        location = replace(workspace.s3, bucket=bucket, prefix=prefix.strip("/"))
        return partial(_on_s3, Bucket(location, connections=1, attempts=3, read_timeout_s=20))
    return None


def _on_disk(root: Path) -> Iterable[tuple[str, int]] | None:
    return _walked(root) if root.is_dir() else None


def _walked(root: Path) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(root):
        folders[:] = filter(_is_partition, folders)
        for name in itertools.filterfalse(_is_hidden, names):
            try:
                yield name, (Path(folder) / name).stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:
                continue


def _on_s3(bucket: Bucket) -> Iterator[tuple[str, int]]:
    for item in bucket.list():
        *folders, name = item["Key"].split("/")
        # What ends with a slash is the mark of a folder.
        if name and not _is_hidden(name) and all(map(_is_partition, folders)):
            at = item["LastModified"]
            yield name, int(at.timestamp()) * 1000 + at.microsecond // 1000


# What Spark's file source takes, by its InMemoryFileIndex and HadoopFSUtils: empty files, too, which bring no rows.


def _is_partition(folder: str) -> bool:
    return "=" in folder and not _is_hidden(folder)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


class DeltaBacklog:
    """Commits of a Delta table that add rows and were not read to their end; and those that a batch passed over."""

    def __init__(self, workspace: Workspace, source: DeltaSource) -> None:
        self._workspace = workspace
        self._source = source
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
        skipped = self._skipped(log, start, next_version)
        return SourceProgress(
            unit="versions",
            taken=taken,
            finished=finished,
            pending=counted,
            skipped=len(skipped),
            skipped_last=skipped[-1].passed_over(self._source.table) if skipped else "",
        )

    def _has_rows(self, log: DeltaLog, version: int) -> bool:
        if version not in self._adds:
            adds = (action["add"] for action in log.actions(version) if "add" in action)
            brings = any(add.get("dataChange", True) for add in adds)
            passed_over = self._source.on_change == "skip" and log.change(version) is not None
            self._adds[version] = brings and not passed_over
        return self._adds[version]

    def _skipped(self, log: DeltaLog, start: str | None, until: int) -> list[ChangeCommit]:
        """Return the commits that a batch has passed over, from its start on and before a version."""
        began = _field(start, "reservoirVersion")
        if self._source.on_change != "skip" or start is None or began is None:
            # The first batch reads the table as it is; nothing of it is passed over.
            return []
        # While that is read, the offset names the version that it is of, whatever made it.
        first = began + 1 if json.loads(start).get("isStartingVersion") else began
        there = [version for version in log.versions if first <= version < until]
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


def _name(entry: dict[str, Any]) -> str:
    return unquote(str(entry["path"]).rsplit("/", 1)[-1])
