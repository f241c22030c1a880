"""A checkpoint's state as one table: each key, value, time to live and timer, decoded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from streamwarden.driver.keyed_rows import has_keyed_state, keyed_rows
from streamwarden.driver.state_metadata import state_metadata, state_variables
from streamwarden.errors import StreamwardenError
from streamwarden.keyed_state.chunks import NEVER
from streamwarden.keyed_state.layout import EXPIRES, TIMER, StateLayout
from streamwarden.keyed_state.processor import STATE_NAME

__all__ = ["COLUMNS", "state_entries"]

COLUMNS = (
    "operator int, variable string, partition int, key string, value string, expires_at timestamp, timer_at timestamp"
)
"""Columns of the table. Key and value are JSON; a timer without a value has none. The times are null if not set."""

_JOIN = "symmetricHashJoin"


def state_entries(
    session: SparkSession, checkpoint: str, batch: int, layouts: Callable[[], Sequence[StateLayout]]
) -> DataFrame:
    """Return the state after a batch.

    Parameters
    ----------
    session
        A session; the state's backend and format come from the checkpoint.
    checkpoint
        The checkpoint's folder, in the form that Spark reads.
    batch
        The batch after which the state is read.
    layouts
        Returns the columns of the query's keyed state; called only if there is some.

    Returns
    -------
    DataFrame
        :data:`COLUMNS`. A list has a row for each element, and a map one for each entry, whose key is in the value.

    Raises
    ------
    StreamwardenError
        ``STATE_UNREADABLE`` if the query has other keyed state than the checkpoint.
    """
    # State stores report to a coordinator that is created with the session's streaming side.
    _ = session.streams.active
    tables = list(_tables(session, checkpoint, batch, layouts))
    if not tables:
        return session.createDataFrame([], COLUMNS)
    return functools.reduce(DataFrame.unionByName, tables)


def _tables(
    session: SparkSession, checkpoint: str, batch: int, layouts: Callable[[], Sequence[StateLayout]]
) -> Iterator[DataFrame]:
    keyed = 0
    seen: set[tuple[int, str]] = set()
    for described in state_metadata(session, checkpoint, batch).orderBy("operatorId").collect():
        operator = described.operatorId
        if has_keyed_state(described):
            known = layouts()
            if keyed >= len(known):
                what = f"operator {operator} has keyed state, and the job's query has it {len(known)} times"
                raise StreamwardenError("STATE_UNREADABLE", what)
            load = functools.partial(_load, session, checkpoint, batch, operator)
            yield _named(operator, STATE_NAME, _keyed(keyed_rows(load, described, known[keyed]), known[keyed]))
            keyed += 1
            continue
        for name, options in _parts(described):
            if (operator, name) not in seen:
                seen.add((operator, name))
                yield _named(operator, name, _plain(_load(session, checkpoint, batch, operator, options)))


def _named(operator: int, variable: str, rows: DataFrame) -> DataFrame:
    return rows.select(F.lit(operator).alias("operator"), F.lit(variable).alias("variable"), *rows.columns)


def _load(session: SparkSession, checkpoint: str, batch: int, operator: int, options: Mapping[str, str]) -> DataFrame:
    # A reader keeps its options: use a new one for each table.
    reader = session.read.format("statestore").option("batchId", batch).option("operatorId", operator)
    return reader.options(**options).load(checkpoint)


def _parts(described: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each table of an operator, and the reader's options for it."""
    variables = state_variables(described)
    if described.operatorName == _JOIN:
        for side in ("left", "right"):
            yield side, {"joinSide": side}
    elif variables is None:
        yield described.stateStoreName, {"storeName": described.stateStoreName}
    else:
        for one in variables:
            if one["stateVariableType"] == "TimerState":
                yield "timers", {"readRegisteredTimers": "true"}
            else:
                yield one["stateName"], {"stateVarName": one["stateName"]}


def _plain(rows: DataFrame) -> DataFrame:
    columns = set(rows.columns)
    value, expires, timer = F.lit(None).cast("string"), _moment(F.lit(None)), _moment(F.lit(None))
    if "expiration_timestamp_ms" in columns:
        timer = _moment(F.col("expiration_timestamp_ms"))
    else:
        held = next(name for name in ("value", "list_element", "user_map_value") if name in columns)
        kind = rows.schema[held].dataType
        of = _whole(rows, held)
        if isinstance(kind, StructType) and kind.names == ["value", "ttlExpirationMs"]:
            of, expires = of["value"], _moment(F.col(held)["ttlExpirationMs"])
        value = (
            _json(F.struct(F.col("user_map_key").alias("key"), of.alias("value")))
            if "user_map_key" in columns
            else _json(of)
        )
    return rows.select(
        F.col("partition_id").cast("int").alias("partition"),
        _json(_whole(rows, "key")).alias("key"),
        value.alias("value"),
        expires.alias("expires_at"),
        timer.alias("timer_at"),
    )


def _whole(rows: DataFrame, name: str) -> Column:
    """Return a column as its schema says: a join's stored values have one field more, whether they were matched."""
    kind = rows.schema[name].dataType
    if not isinstance(kind, StructType):
        return F.col(name)
    if len(set(kind.names)) < len(kind.names):
        # An average beside a count: Spark keeps two fields `count`. A cast goes by place, not by name.
        return F.col(name).cast(_distinct(kind))
    return F.when(F.col(name).isNotNull(), F.struct(*[F.col(name)[one].alias(one) for one in kind.names]))


def _distinct(kind: StructType) -> StructType:
    """Return the type with a number behind each name that is there before."""
    fields: list[StructField] = []
    for field in kind.fields:
        before = sum(one == field.name for one in kind.names[: len(fields)])
        fields.append(StructField(f"{field.name}_{before + 1}" if before else field.name, field.dataType))
    return StructType(fields)


def _json(value: Column) -> Column:
    return F.to_json(value, {"ignoreNullFields": "false"})


def _moment(milliseconds: Column) -> Column:
    return F.timestamp_millis(milliseconds.cast("long"))


def _keyed(rows: DataFrame, layout: StateLayout) -> DataFrame:
    # The timers of the operator are the layer's own, of buckets; those of keys are in the rows.
    times = [F.when(F.col(name) != NEVER, _moment(F.col(name))).alias(name) for name in (EXPIRES, TIMER)]
    return rows.select(
        "partition",
        _json(F.struct(*layout.key)).alias("key"),
        _json(F.struct(*layout.fields)).alias("value"),
        *times,
    )
