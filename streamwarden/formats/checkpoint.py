"""Read a Spark checkpoint: offsets, commits, watermarks, and its fixed settings.

Sources: ``OffsetSeqLog`` and ``CommitLog`` of Spark 4.2: a file a batch, named by its id; ``offsets/N`` holds a version
line, one JSON line of metadata, then one line a source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.foreign_json import parse, parse_object
from streamwarden.formats.damage import checkpoint_damaged
from streamwarden.storage import Storage

__all__ = [
    "MOST_PARTITIONS",
    "BatchOffsets",
    "CheckpointReader",
    "changed_offsets",
    "continued_offsets",
    "moved_offsets",
    "next_watermark_ms",
]

_VERSION = "v1"

_COMPACT = ".compact"
"""Suffix of an entry of a file source's log that also holds all earlier entries."""


_PARTITIONS = "spark.sql.shuffle.partitions"
MOST_PARTITIONS = 1_000_000
"""A larger number is damage: to look for the files of so many partitions takes minutes."""


@dataclass(frozen=True)
class BatchOffsets:
    """The contents of ``offsets/N``.

    Parameters
    ----------
    batch
        The batch's id.
    watermark_ms
        The watermark that the batch began with, milliseconds since the epoch; 0 before the first watermark.
    conf
        Settings that the checkpoint fixes, such as ``spark.sql.shuffle.partitions``.
    sources
        Each source's offset after the batch, in the source's own format; None for a source without data yet.
    planned_ms
        When the batch was planned, milliseconds since the epoch.
    """

    batch: int
    watermark_ms: int
    conf: dict[str, str] = field(default_factory=dict)
    sources: tuple[str | None, ...] = ()
    planned_ms: int = 0


class CheckpointReader:
    """A reader of one checkpoint.

    Parameters
    ----------
    storage
        The storage of the checkpoint.
    path
        Its folder, relative to the storage's root.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path

    def last_offset(self) -> int | None:
        """Return the newest batch that has begun."""
        return self._newest("offsets")

    def last_commit(self) -> int | None:
        """Return the newest batch that was committed."""
        return self._newest("commits")

    def is_committed(self, batch: int) -> bool:
        """Return whether a batch was committed."""
        return self._storage.read(f"{self._path}/commits/{batch}") is not None

    def offsets(self, batch: int) -> BatchOffsets | None:
        """Return the offsets of a batch, or None if there is no file.

        Raises
        ------
        StreamwardenError
            ``CHECKPOINT_DAMAGED`` if the file is empty, truncated, or not an entry of the offset log.
        """
        found = self._lines(f"offsets/{batch}")
        if found is None:
            return None
        # Spark writes "-" for a source without an offset.
        metadata, sources = found[0], tuple(None if line == "-" else line for line in found[1:])
        try:
            if not sources:
                raise ValueError("it names no source")
            for source in sources:
                # A source may write any text; but text that begins as a JSON object must be valid JSON.
                parse(source if source and source.startswith("{") else "null")
            content = parse_object(metadata)
            conf = {str(name): str(value) for name, value in dict(content.get("conf", {})).items()}
            if not 1 <= int(conf.get(_PARTITIONS, 1)) <= MOST_PARTITIONS:
                raise ValueError(f"{_PARTITIONS} is {conf[_PARTITIONS][:20]}")
            return BatchOffsets(
                batch,
                int(content.get("batchWatermarkMs", 0)),
                conf,
                sources,
                int(content.get("batchTimestampMs", 0)),
            )
        except (TypeError, ValueError) as error:
            raise self._damaged(f"offsets/{batch}", f"it is cut, or another's: {error}") from error

    def has_state(self) -> bool:
        """Return whether a stateful operator has written here."""
        return bool(self._storage.list(f"{self._path}/state"))

    def check(self) -> None:
        """Check that the files of the logs and file sources that Spark resumes from exist and are complete.

        Spark itself checks only some of them. It silently repeats a batch with other boundaries if the newest offsets
        are missing, and silently reads files again if the newest entry of their source's log is missing. State is not
        checked here: Spark reports its damage.

        Raises
        ------
        StreamwardenError
            ``CHECKPOINT_DAMAGED``, naming the file.
        """
        # In this order: a query that runs on the checkpoint writes the offsets first.
        done, begun = self.last_commit(), self.last_offset()
        if begun is None and done is None:
            return
        newest = max(-1 if begun is None else begun, -1 if done is None else done)
        identity = self._storage.read(f"{self._path}/metadata")
        if identity is None or not _is_json(identity.data):
            raise self._damaged("metadata", "it is missing" if identity is None else "it is empty or cut")
        sources = self.check_offsets(newest)
        if newest > 0 and (done is None or done < newest - 1):
            raise self._damaged(f"commits/{newest - 1}", "it is missing")
        if done is not None:
            commit = self._lines(f"commits/{done}")
            if not commit or not _is_json(commit[0].encode()):
                raise self._damaged(f"commits/{done}", "it is empty or cut")
        for number, source in enumerate(sources):
            position = parse(source) if source and source.startswith("{") else {}
            if "logOffset" in position:
                if not isinstance(position["logOffset"], int):
                    raise self._damaged(f"offsets/{newest}", f"its source {number} has no number as logOffset")
                self._check_file_log(f"sources/{number}", position["logOffset"])

    def check_offsets(self, newest: int) -> tuple[str | None, ...]:
        """Check that the offsets exist from which Spark begins after a batch; return those of its sources.

        Raises
        ------
        StreamwardenError
            ``CHECKPOINT_DAMAGED``, naming the file.
        """
        sources: tuple[str | None, ...] = ()
        # Spark also reads the offsets of the batch before: they are the start of the newest batch.
        for batch in range(max(newest - 1, 0), newest + 1):
            offsets = self.offsets(batch)
            if offsets is None:
                raise self._damaged(f"offsets/{batch}", "it is missing")
            sources = offsets.sources
        return sources

    def _check_file_log(self, folder: str, position: int) -> None:
        """Check that the files a file source has read are logged, from the newest complete compact entry on."""
        names = [key.rsplit("/", 1)[1] for key in self._storage.list(f"{self._path}/{folder}")]
        entries = {int(name.removesuffix(_COMPACT)): name for name in names if name.removesuffix(_COMPACT).isdecimal()}
        whole = max((number for number, name in entries.items() if name.endswith(_COMPACT)), default=0)
        for number in range(whole, max(position, *entries, -1) + 1):
            path = f"{folder}/{entries.get(number, number)}"
            lines = self._lines(path)
            if lines is None:
                raise self._damaged(path, "it is missing")
            # A compact entry may have very many lines.
            if not (_is_json(lines[0].encode()) and _is_json(lines[-1].encode())):
                raise self._damaged(path, "it is cut")

    def _lines(self, name: str) -> list[str] | None:
        """Return the lines of a log's entry after its version, or None if there is no entry."""
        entry = self._storage.read(f"{self._path}/{name}")
        if entry is None:
            return None
        version, *lines = entry.data.decode(errors="replace").splitlines() or [""]
        # A later format is not damage: its readers report it as unknown.
        if not re.fullmatch(r"v\d+", version) or not lines:
            what = "it is empty" if not entry.data else f"it is cut, or another's: {len(entry.data)} bytes"
            raise self._damaged(name, what)
        return lines

    def _damaged(self, name: str, what: str) -> StreamwardenError:
        return checkpoint_damaged(self._storage, self._path, f"{name}: {what}")

    def _newest(self, log: str) -> int | None:
        names = (key.rsplit("/", 1)[1] for key in self._storage.list(f"{self._path}/{log}"))
        return max((int(name) for name in names if name.isdecimal()), default=None)


def _is_json(data: bytes) -> bool:
    try:
        parse(data)
    except ValueError:
        return False
    return True


def changed_offsets(entry: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return an entry of the offset log with changed metadata: watermark, time, settings. The sources stay.

    Raises
    ------
    ValueError
        If the entry has another format than Spark 4.2's.
    """
    version, metadata, *sources = entry.decode().split("\n")
    if version != _VERSION:
        raise ValueError(f"format {version!r}")
    content = parse(metadata)
    change(content)
    return "\n".join([version, json.dumps(content, separators=(",", ":")), *sources]).encode()


def continued_offsets(before: bytes, entry: bytes) -> bytes:
    """Return an entry of the offset log whose sources and watermark are those of an earlier one.

    Parameters
    ----------
    before
        The earlier entry.
    entry
        The entry whose settings stay.

    Raises
    ------
    ValueError
        If the entry has another format than Spark 4.2's.
    """
    _, old, *sources = before.decode().split("\n")

    def change(metadata: dict[str, Any]) -> None:
        metadata["batchWatermarkMs"] = parse(old).get("batchWatermarkMs", 0)

    version, metadata, *_ = changed_offsets(entry, change).decode().split("\n")
    return "\n".join([version, metadata, *sources]).encode()


def moved_offsets(entry: bytes, source: str) -> bytes:
    """Return an entry of the offset log of a query with one source at another position. The metadata stays.

    A query with two branches over its source has two lines for it.

    Raises
    ------
    ValueError
        If the entry has another format than Spark 4.2's.
    """
    version, metadata, *sources = changed_offsets(entry, lambda _: None).decode().split("\n")
    return "\n".join([version, metadata, *[source for line in sources if line]]).encode()


def next_watermark_ms(entry: bytes) -> int:
    """Return the watermark after a batch from its commit log entry, milliseconds since the epoch."""
    _, _, content = entry.decode().partition("\n")
    return int(parse(content).get("nextBatchWatermarkMs", 0))
