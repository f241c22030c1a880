"""The no-data batch that Spark owes after a batch that moved the watermark, and forgets on a restart.

In that batch windows become final and late state is removed. A running query plans it from its memory of the last
batch. A restarted query has no such memory: overdue windows wait for the next input, which may never come. So this
module begins the batch: it writes the offsets of the batch before and the watermark after it, as if the query had died
right after planning. Spark finishes a batch that has begun.

Source: Spark 4.2's ``MicroBatchExecution``. ``constructNextBatch`` asks ``lastExecution``, which is null after a start,
whether another batch should run. ``populateStartOffsets`` runs a batch that was begun and not committed, with its
recorded offsets.
"""

from __future__ import annotations

import time
from typing import Any

from streamwarden.formats.checkpoint import CheckpointReader, changed_offsets, next_watermark_ms
from streamwarden.storage import Conflict, Storage

__all__ = ["begin_no_data_batch"]


def begin_no_data_batch(storage: Storage, checkpoint: str) -> int | None:
    """Begin the no-data batch that a checkpoint owes, and return its id; None if it owes none.

    For the holder of the job's lease, while no query runs on the checkpoint. Leaves formats other than Spark 4.2's
    unchanged: there the batch comes with the next input.

    Parameters
    ----------
    storage
        The storage of the checkpoint.
    checkpoint
        The checkpoint's folder, relative to the storage's root.
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
