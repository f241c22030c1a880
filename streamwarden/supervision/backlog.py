"""Whether a job that was away for a while has caught up with its input."""

from __future__ import annotations

from streamwarden.model.status import BatchProgress

__all__ = ["has_caught_up", "pending"]


def pending(batch: BatchProgress | None) -> int | None:
    """Return what a batch has left of the source; None where nobody can tell."""
    return batch.source.pending if batch is not None and batch.source is not None else None


def has_caught_up(batches: list[BatchProgress], backlog: int) -> bool:
    """Tell whether a job's input is where it stood before it was stopped.

    What is left after a batch is what came while it was computed: of a steady stream never nothing, and more than
    before where fewer cores take longer for a batch. So it is enough that the batches after the first have taken what
    that has left, beyond the backlog of before, as long as no more is left now.

    Parameters
    ----------
    batches
        Those since it is back, oldest first.
    backlog
        What was left when it was stopped.
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
    # A version that is read in parts counts as taken with each, and is left until its last.
    return batch.source.taken if batch.source.finished is None else batch.source.finished
