"""Rows of a Parquet file, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.trip_columns import Rows, match_columns

__all__ = ["parquet_rows"]

_BATCH_ROWS: Final = 16_384

# Read from a column at a time. Without it, or with pre_buffer, a row group's columns are in memory whole.
_BUFFER_BYTES: Final = 1024 * 1024


def parquet_rows(source: Any) -> Iterator[Rows]:
    """Read a file.

    Parameters
    ----------
    source
        A Python file, open for random access.

    Raises
    ------
    FileRefusedError
        If its columns are not those of trips.
    """
    file = pq.ParquetFile(
        pa.PythonFile(source, mode="r"), buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )
    columns = match_columns(file.schema_arrow.names)
    first = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        yield Rows(batch, columns, pa.array(np.arange(first, first + batch.num_rows)))
        first += batch.num_rows
