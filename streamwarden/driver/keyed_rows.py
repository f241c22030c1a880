"""The rows of keyed state in a checkpoint, decoded from the chunks of its buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from streamwarden.driver.state_metadata import state_variables
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.bases import BASE_APART, BASE_NAME
from streamwarden.keyed_state.chunks import BucketState, StoredChunk
from streamwarden.keyed_state.layout import HASH, StateLayout
from streamwarden.keyed_state.processor import STATE_NAME

__all__ = ["decoder", "has_keyed_state", "keyed_rows"]


def has_keyed_state(described: Any) -> bool:
    """Return whether a row of Spark's state metadata is of an operator with keyed state."""
    return any(one["stateName"] == STATE_NAME for one in state_variables(described) or ())


def keyed_rows(load: Callable[[Mapping[str, str]], DataFrame], described: Any, layout: StateLayout) -> DataFrame:
    """Return the rows of an operator's keyed state.

    Parameters
    ----------
    load
        Reads a table of the operator with these options of Spark's state data source.
    described
        The operator's row of Spark's state metadata.
    layout
        The columns of the state.

    Returns
    -------
    DataFrame
        ``partition`` (int), and the columns of a chunk without the hash.
    """
    lists = load({"stateVarName": STATE_NAME, "flattenCollectionTypes": "false"})
    chunks = F.transform("list_value", lambda one: F.struct(one["version"], one["blob"]))
    buckets = lists.select("key", F.col("partition_id").cast("int").alias("partition"), chunks.alias("chunks"))
    # A release without bases of their own has left no such variable.
    if any(one["stateName"] == BASE_NAME for one in state_variables(described) or ()):
        bases = load({"stateVarName": BASE_NAME}).select("key", F.struct("value.version", "value.blob").alias("base"))
        buckets = buckets.join(bases, "key", "left")
    else:
        buckets = buckets.withColumn("base", F.lit(None).cast("struct<version:int,blob:binary>"))
    own = [one for one in layout.schema if one.name != HASH]
    schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in (_PARTITION, *own)])
    return buckets.select("partition", "chunks", "base").mapInArrow(decoder(layout), schema)


_PARTITION = pa.field("partition", pa.int32())


def decoder(layout: StateLayout) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that decodes buckets in Spark's workers.

    It gets rows of ``partition`` (int), ``chunks`` (a list of ``version`` and ``blob``) and ``base`` (such a pair, or
    null). It raises ``STATE_UNREADABLE`` for a bucket that can't be decoded.
    """
    own = [one for one in layout.schema if one.name != HASH]

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch.to_pylist():
                rows = _rows(layout, bucket).select([one.name for one in own])
                number = pa.repeat(pa.scalar(bucket["partition"], pa.int32()), rows.num_rows)
                yield pa.RecordBatch.from_arrays([number, *rows.columns], schema=pa.schema([_PARTITION, *own]))

    return decode


def _rows(layout: StateLayout, bucket: Mapping[str, Any]) -> pa.RecordBatch:
    try:
        stored = [StoredChunk(**one) for one in bucket["chunks"]]
        if stored[0].version == BASE_APART:
            stored[0] = StoredChunk(**bucket["base"])
        state = BucketState.read(layout, stored)
        for chunk in state.chunks:
            # Arrow decodes damaged bytes without a complaint, and the process dies once it uses them. A batch does not
            # check: RocksDB's checksums cover what it reads, and it reads each time.
            chunk.validate(full=True)
        return state.whole()
    except (pa.ArrowException, LookupError, TypeError, ValueError, OSError, EOFError) as error:
        what = f"keyed state of partition {bucket['partition']} can't be decoded: {type(error).__name__}: {error}"
        raise StreamwardenError("STATE_UNREADABLE", what) from error
