"""The state that an earlier version of a job has left, for the job's ``migrate``."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.keyed_rows import keyed_rows
from streamwarden.driver.state_metadata import state_metadata
from streamwarden.keyed_state.layout import StateField, StateLayout

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
        metadata = state_metadata(self._session, self._path, self._batch)
        described = metadata.where(F.col("operatorId") == operator).first()
        rows = keyed_rows(lambda options: self._read(operator, **options), described, StateLayout(key, fields))
        return rows.drop("partition")

    def _read(self, operator: int, **options: str) -> DataFrame:
        reader = self._session.read.format("statestore").option("batchId", self._batch).option("operatorId", operator)
        return reader.options(**options).load(self._path)
