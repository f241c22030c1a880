"""The no-data batch that Spark owes after one that moved the watermark, and forgets over a restart.

In that batch windows become final and late state is removed. A running query plans it by what it remembers of its last
batch; one that was started anew remembers none, and what should have become final waits for the next input, which may
never come. So the batch is begun for it: written down with the offsets of the batch before and the watermark that this
one came to, as a query leaves it that died right after planning it. Spark finishes what was begun.

Source: Spark 4.2's ``MicroBatchExecution``: ``constructNextBatch`` asks ``lastExecution``, which is null after a start,
whether another batch should be run; ``populateStartOffsets`` runs one that was begun and not committed with the offsets
that are written of it.
"""

from __future__ import annotations

import time
from typing import Any

from streamwarden.formats.checkpoint import CheckpointReader, changed_offsets, next_watermark_ms
from streamwarden.storage import Conflict, Storage

__all__ = ["begin_no_data_batch"]


def begin_no_data_batch(storage: Storage, checkpoint: str) -> int | None:
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
    before, entry = reader.offsets(last), storage.read(f"{checkpoint}/offsets/{last}")
    commit = storage.read(f"{checkpoint}/commits/{last}")
    if before is None or entry is None or commit is None:
        return None
    watermark_ms = next_watermark_ms(commit.data)
    if watermark_ms <= before.watermark_ms or not reader.has_state():
        return None

    def planned_now(metadata: dict[str, Any]) -> None:
        metadata |= {"batchWatermarkMs": watermark_ms, "batchTimestampMs": int(time.time() * 1000)}

    try:
        storage.create(f"{checkpoint}/offsets/{last + 1}", changed_offsets(entry.data, planned_now))
    except (Conflict, ValueError):
        return None
    return last + 1
