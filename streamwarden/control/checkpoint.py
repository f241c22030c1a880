"""Reading what Spark wrote into a checkpoint: offsets, commits, watermarks, the settings it was made with.

Sources: ``OffsetSeqLog`` and ``CommitLog`` of Spark 4.2: a file a batch, named by its id; ``offsets/N`` holds a version
line, one JSON line of metadata, then one line a source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamwarden.storage import Storage

__all__ = ["BatchOffsets", "CheckpointReader", "changed_offsets", "next_watermark_ms"]

_VERSION = "v1"


@dataclass(frozen=True)
class BatchOffsets:
    """What ``offsets/N`` says of a batch.

    Parameters
    ----------
    batch
        Its id.
    watermark_ms
        The watermark that the batch began with, milliseconds since the epoch; 0 before any.
    conf
        Settings that the checkpoint fixes, such as ``spark.sql.shuffle.partitions``.
    sources
        Where each source stands after the batch, as the source itself writes it; None for one that had no data yet.
    planned_ms
        When the batch was planned, milliseconds since the epoch.
    """

    batch: int
    watermark_ms: int
    conf: dict[str, str] = field(default_factory=dict)
    sources: tuple[str | None, ...] = ()
    planned_ms: int = 0


class CheckpointReader:
    """Reads one checkpoint.

    Parameters
    ----------
    storage
        The storage that the checkpoint lies in.
    path
        Its folder, relative to the storage's root.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path

    def last_offset(self) -> int | None:
        """Return the newest batch that was begun."""
        return self._newest("offsets")

    def last_commit(self) -> int | None:
        """Return the newest batch that was finished."""
        return self._newest("commits")

    def is_committed(self, batch: int) -> bool:
        """Tell whether a batch was finished."""
        return self._storage.read(f"{self._path}/commits/{batch}") is not None

    def offsets(self, batch: int) -> BatchOffsets | None:
        """Return what is written of a batch, or None where there is nothing."""
        entry = self._storage.read(f"{self._path}/offsets/{batch}")
        if entry is None:
            return None
        lines = entry.data.decode().splitlines()
        metadata = json.loads(lines[1])
        return BatchOffsets(
            batch,
            int(metadata.get("batchWatermarkMs", 0)),
            dict(metadata.get("conf", {})),
            # Spark writes "-" for a source without an offset.
            tuple(None if line == "-" else line for line in lines[2:]),
            int(metadata.get("batchTimestampMs", 0)),
        )

    def has_state(self) -> bool:
        """Tell whether a stateful operator wrote here."""
        return bool(self._storage.list(f"{self._path}/state"))

    def _newest(self, log: str) -> int | None:
        names = (key.rsplit("/", 1)[1] for key in self._storage.list(f"{self._path}/{log}"))
        return max((int(name) for name in names if name.isdigit()), default=None)


def changed_offsets(entry: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return an entry of the offset log with its metadata changed: watermark, time, settings. The sources stay.

    Raises
    ------
    ValueError
        If the entry has another format than Spark 4.2's.
    """
    version, metadata, *sources = entry.decode().split("\n")
    if version != _VERSION:
        raise ValueError(f"format {version!r}")
    content = json.loads(metadata)
    change(content)
    return "\n".join([version, json.dumps(content, separators=(",", ":")), *sources]).encode()


def next_watermark_ms(entry: bytes) -> int:
    """Return the watermark that an entry of the commit log says the batch came to, milliseconds since the epoch."""
    _, _, content = entry.decode().partition("\n")
    return int(json.loads(content).get("nextBatchWatermarkMs", 0))
