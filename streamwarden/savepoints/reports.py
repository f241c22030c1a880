"""What the newest drivers of a generation have reported of their batches."""

from __future__ import annotations

from collections.abc import Iterator

from streamwarden.model.progress import Progress
from streamwarden.model.status import Heartbeat
from streamwarden.store.documents import JobDocuments

__all__ = ["newest_reports"]

_DRIVERS = 10
"""Newest drivers whose reports are read. 10: each of them may have ended before its first batch."""


def newest_reports(documents: JobDocuments, generation: int) -> Iterator[tuple[Heartbeat, Progress]]:
    """Yield heartbeat and progress of each of a job's newest drivers that ran a generation, newest first."""
    for incarnation in reversed(documents.incarnations()[-_DRIVERS:]):
        beat, progress = documents.heartbeat(incarnation).read(), documents.progress(incarnation).read()
        if beat is not None and progress is not None and beat.generation == generation:
            yield beat, progress
