"""The state that an earlier version of a job has left, for the job's ``migrate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from streamwarden.keyed_state.chunks import BucketState, StoredChunk
from streamwarden.keyed_state.layout import HASH, StateField, StateLayout
from streamwarden.keyed_state.processor import STATE_NAME

__all__ = ["PreviousState"]


class PreviousState:
    """Reads a checkpoint's state with Spark's state data source.

    Parameters
    ----------
    session
        A session that has run, or could run, streaming queries.
    path
        The checkpoint's folder, in the form that Spark reads.
    batch
        The batch after which the state is read.
    version
        The ``VERSION`` of the module that wrote it.
    """

    def __init__(self, session: SparkSession, path: str, batch: int, version: int) -> None:
        self._session = session
        self._path = path
        self._batch = batch
        self.version = version

    def variable(self, name: str, *, operator: int = 0) -> DataFrame:
        """Return a state variable of transformWithState, a row for each value, list item or map entry.

        Parameters
        ----------
        name
            The name that the processor gave it.
        operator
            The stateful operator, numbered in the order of the query.

        Returns
        -------
        DataFrame
            ``key`` (a struct) and ``value``, ``list_element``, or ``user_map_key`` and ``user_map_value``. With a time
            to live, the value is a struct of ``value`` and ``ttlExpirationMs``.
        """
        return self._read(operator, stateVarName=name)

    def timers(self, *, operator: int = 0) -> DataFrame:
        """Return the registered timers: ``key`` (a struct) and ``expiration_timestamp_ms``."""
        return self._read(operator, readRegisteredTimers="true")

    def rows(self, *, operator: int = 0) -> DataFrame:
        """Return the state of an aggregation or deduplication: ``key`` and ``value`` (structs)."""
        return self._read(operator)

    def keyed(
        self, key: Mapping[str, pa.DataType], fields: Mapping[str, StateField], *, operator: int = 0
    ) -> DataFrame:
        """Return rows of keyed state: the key's columns, ``expires_at`` and ``timer_at`` (milliseconds), the fields.

        Parameters
        ----------
        key, fields
            Types of the key's columns, and the job's ``fields``, as the earlier version had them. A time that is not
            set is the largest long.
        """
        layout = StateLayout(key, fields)
        buckets = self._read(operator, stateVarName=STATE_NAME, flattenCollectionTypes="false")
        chunks = buckets.select(
            F.transform("list_value", lambda one: F.struct(one["version"], one["blob"])).alias("chunks")
        )
        rows = [one for one in layout.schema if one.name != HASH]
        schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in rows])
        return chunks.mapInArrow(_decode(layout, [one.name for one in rows]), schema)

    def _read(self, operator: int, **options: str) -> DataFrame:
        reader = self._session.read.format("statestore").option("batchId", self._batch).option("operatorId", operator)
        return reader.options(**options).load(self._path)


def _decode(
    layout: StateLayout, names: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunks in batch.column("chunks").to_pylist():
                stored = [StoredChunk(*one.values()) for one in chunks]
                yield BucketState.read(layout, stored).whole().select(names)

    return decode
