"""Read rows of a Parquet file, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.trip_columns import Rows, match_columns

__all__ = ["parquet_rows"]

_BATCH_ROWS: Final = 16_384

# Read buffer of a column. Without it, or with pre_buffer, all columns of a row group are in memory.
_BUFFER_BYTES: Final = 1024 * 1024


def parquet_rows(source: Any) -> Iterator[Rows]:
    """Read a Parquet file.

    Parameters
    ----------
    source
        A Python file, open for random access.

    Raises
    ------
    FileRefusedError
        If the columns are not those of trips.
    """
    file = _open(source)
    columns = match_columns(file.schema_arrow.names)
    batches = file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
    if old_times := _int96(file):
        batches = _with_exact_times(batches, source, old_times)
    first = 0
    for batch in batches:
        yield Rows(_without_views(batch), columns, pa.array(np.arange(first, first + batch.num_rows)))
        first += batch.num_rows


def _open(source: Any, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(source, mode="r"),
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,
        **options,
    )


def _int96(file: pq.ParquetFile) -> list[str]:
    """Return the names of the columns with the old 96-bit times."""
    leaves = (file.schema.column(place) for place in range(len(file.schema)))
    names = [leaf.name for leaf in leaves if leaf.physical_type == "INT96" and leaf.path == leaf.name]
    return [name for name in names if file.schema_arrow.names.count(name) == 1]


def _with_exact_times(batches: Iterator[pa.RecordBatch], source: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Replace times that pyarrow reads as nanoseconds: before 1678 and after 2262 they overflow silently."""
    in_micros = _open(source, coerce_int96_timestamp_unit="us").iter_batches(
        batch_size=_BATCH_ROWS, columns=names, use_threads=False
    )
    for batch, micros in zip(batches, in_micros, strict=True):
        for name in names:
            exact = _exact(batch.column(name), micros.column(name))
            batch = batch.set_column(batch.schema.get_field_index(name), name, exact)
        yield batch


def _exact(nanos: pa.Array, micros: pa.Array) -> pa.Array:
    """Return exact times: `nanos` has the low 64 bits, and `micros` all but the last three digits."""
    low, high = (np.asarray(pc.fill_null(ticks.cast(pa.int64()), 0)) for ticks in (nanos, micros))
    rest = low - high * 1000
    if not rest.any():
        return micros
    if (np.abs(high) < 2**63 // 1000).all():
        return nanos
    # Text can hold both parts.
    texts = micros.cast(pa.string()).to_pylist()
    return pa.array(
        [None if text is None else f"{text}{more:03}" for text, more in zip(texts, rest.tolist(), strict=True)],
        pa.string(),
    )


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with text and byte views converted to plain types: arrow has few functions for views."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    columns = [column.cast(plain.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
