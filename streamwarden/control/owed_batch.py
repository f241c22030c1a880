"""The batch without input that Spark owes after one that moved the watermark, and forgets over a restart.

In that batch windows become final and late state is removed. A running query plans it by what it remembers of its last
batch; one that was started anew remembers none, and what should have become final waits for the next input, which may
never come. So the batch is begun for it: written down with the offsets of the batch before and the watermark that this
one came to, as a query leaves it that died right after planning it. Spark finishes what was begun.

Source: Spark 4.2's ``MicroBatchExecution``: ``constructNextBatch`` asks ``lastExecution``, which is null after a start,
whether another batch should be run; ``populateStartOffsets`` runs one that was begun and not committed with the offsets
that are written of it.
"""

from __future__ import annotations

import json
import time

from streamwarden.control.checkpoint import CheckpointReader
from streamwarden.storage import Conflict, Storage

__all__ = ["begin_owed_batch"]

_VERSION = "v1"


def begin_owed_batch(storage: Storage, checkpoint: str) -> int | None:
    """Begin the batch that is owed in a checkpoint, and return its id; None where none is.

    For the holder of the job's lease, while no query runs on the checkpoint. Formats other than Spark 4.2's are left
    alone: there the batch comes with the next input.

    Parameters
    ----------
    storage
        Where the checkpoint lies.
    checkpoint
        Its folder, relative to the storage's root.
    """
    reader = CheckpointReader(storage, checkpoint)
    last = reader.last_commit()
    if last is None or last != reader.last_offset():
        return None
    offsets, commit = (storage.read(f"{checkpoint}/{log}/{last}") for log in ("offsets", "commits"))
    if offsets is None or commit is None:
        return None
    version, metadata, *sources = offsets.data.decode().split("\n")
    if version != _VERSION:
        return None
    begun = json.loads(metadata)
    watermark = int(json.loads(commit.data.decode().split("\n", 1)[1]).get("nextBatchWatermarkMs", 0))
    if watermark <= int(begun.get("batchWatermarkMs", 0)) or not reader.has_state():
        return None
    begun |= {"batchWatermarkMs": watermark, "batchTimestampMs": int(time.time() * 1000)}
    lines = [version, json.dumps(begun, separators=(",", ":")), *sources]
    try:
        storage.create(f"{checkpoint}/offsets/{last + 1}", "\n".join(lines).encode())
    except Conflict:
        return None
    return last + 1
