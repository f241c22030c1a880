"""Whether a job that was stopped has caught up with its input."""

from __future__ import annotations

from streamwarden.model.progress import BatchProgress

__all__ = ["has_caught_up", "pending"]


def pending(batch: BatchProgress | None) -> int | None:
    """Return how much of the source a batch has left; None if unknown."""
    return batch.source.pending if batch is not None and batch.source is not None else None


def has_caught_up(batches: list[BatchProgress], backlog: int) -> bool:
    """Return whether a job's backlog is no larger than before it was stopped.

    Input that arrives during a batch is left after it. A steady stream always leaves some; with fewer cores, batches
    take longer and leave more. So the job has caught up under two conditions. The batches after the first have taken
    what the first batch left beyond the earlier backlog. No more is left now than after the first batch.

    Parameters
    ----------
    batches
        The batches since the job runs again, oldest first.
    backlog
        How much was left when the job was stopped.
    """
    if not batches:
        return False
    left = pending(batches[-1])
    if left is None or left <= backlog:
        return True
    first = pending(batches[0])
    if first is None:
        return False
    taken = sum(map(_finished, batches[1:]))
    return len(batches) > 1 and taken >= first - backlog and left <= first


def _finished(batch: BatchProgress) -> int:
    if batch.source is None:
        return 0
    # A version that is read in parts counts as taken with each part, and stays pending until its last part.
    return batch.source.taken if batch.source.finished is None else batch.source.finished
