"""The history of a job's source, in its spec."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from streamwarden.model.spec_base import Strict
from streamwarden.names import Name

__all__ = ["FILES", "HistorySpec"]

FILES = 256
"""Files of a Delta table in a batch, by default."""


class HistorySpec(Strict):
    """A Delta table of earlier rows, which a new job reads before its source: see docs/history.md."""

    table: Name = Field(description="A table name; it stands in the profile's tables folder.")
    where: str | None = Field(
        default=None,
        description="An SQL condition on the table's columns: other rows are not read. For rows that the source has,"
        " too. None: all rows.",
    )
    live_from: AwareDatetime | None = Field(
        default=None,
        description="Kafka only, and needed there: after the history, the topic is read from the first record of this"
        " time on, by Kafka's timestamps. Such as 2026-03-01T00:00:00Z.",
    )
    max_files_per_batch: int = Field(default=FILES, ge=1, description="256: as for a source that is a Delta table.")
