"""Which rows are judged in memory, and which ones by Spark."""

from __future__ import annotations

from collections.abc import Sequence

from streamwarden.quality.table_versions import NewFile, UnreadableHereError

__all__ = ["BYTES", "ROWS", "check_counts", "check_size"]

ROWS, BYTES = 5_000_000, 512 * 2**20
"""Up to these, rows and bytes of files are judged in memory: it takes about 3 GB then."""


def check_size(files: Sequence[NewFile]) -> None:
    """Return if the rows of some files fit into memory.

    Raises
    ------
    UnreadableHereError
        They do not.
    """
    check_counts(sum(one.rows or 0 for one in files), sum(one.size for one in files))


def check_counts(rows: int, size: int) -> None:
    """Return if so many rows, in files of so many bytes, fit into memory; for errors see :func:`check_size`."""
    if rows > ROWS or size > BYTES:
        raise UnreadableHereError(f"{rows:,} rows in {size / 2**20:,.0f} MiB are too many for memory")
