"""An order-independent digest of a checkpoint's state, computed by Spark where the state is.

Two checkpoints with the same set of keys and values have the same digest, independent of how it is spread over
partitions. Each row, as JSON with all its fields, is hashed by MD5. A store's digest is the number of its rows, and the
sum and the exclusive or of both halves of the hashes. The sum detects duplicate rows; the exclusive or alone would not.
Only these few numbers leave the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.state_metadata import state_variables
from streamwarden.driver.state_rows import plain_path
from streamwarden.errors import StreamwardenError

__all__ = ["state_digests"]

_WHOLE = {
    "ignoreNullFields": "false",
    # Spark's own formats end at milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of a row's JSON, which omits nothing."""

_HALF = 15
"""Hexadecimal digits of a half: 60 bits, so that a half fits a signed long."""

_AT_ONCE = 4
"""Tables that are digested at once. A small state's digest mostly waits: for planning, and on S3 for requests. Four,
since a transformWithState job rarely has more variables, and each reads all of its partitions' state anew."""


def state_digests(session: SparkSession, checkpoint: str, batch: int, partitions: int) -> dict[str, str]:
    """Return the digest of each store of each stateful operator, after a batch.

    Parameters
    ----------
    session
        A session; the state's backend and format come from the checkpoint.
    checkpoint
        The checkpoint's folder, in the form that Spark reads.
    batch
        The batch after which the state is digested.
    partitions
        The state's number of partitions. If the checkpoint's own metadata contain another number, the reader would miss
        some of the state.

    Returns
    -------
    dict
        By ``OPERATOR/STORE``; for transformWithState by ``OPERATOR/VARIABLE``, timers included.

    Raises
    ------
    StreamwardenError
        ``RESCALE_FAILED`` if the metadata contain another number of partitions.
    """
    # State stores report to a coordinator that is created with the session's streaming side; reading state alone does
    # not create it.
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        for described in session.read.format("state-metadata").load(path).collect():
            if described.numPartitions != partitions:
                said = f"operator {described.operatorId} says {described.numPartitions} partitions"
                raise StreamwardenError("RESCALE_FAILED", f"{checkpoint}: {said}, and there are {partitions}")
        tables = dict(_tables(session, path, batch))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="digest") as pool:
            return dict(zip(tables, pool.map(lambda opened: _digest(opened()), tables.values()), strict=True))


def _tables(session: SparkSession, checkpoint: str, batch: int) -> Iterator[tuple[str, Callable[[], DataFrame]]]:
    """Yield for each store what opens its rows as a table, without their partition numbers."""

    def load(operator: int, **options: str) -> DataFrame:
        # A reader keeps its options: use a new reader for each table.
        reader = session.read.format("statestore").option("batchId", batch).option("operatorId", operator)
        # A rescale changes a row's partition.
        return reader.options(**options).load(checkpoint).drop("partition_id")

    for described in session.read.format("state-metadata").load(checkpoint).collect():
        operator, store = described.operatorId, described.stateStoreName
        variables = state_variables(described)
        if variables is not None:
            for variable in variables:
                name = variable["stateName"]
                if variable["stateVariableType"] == "TimerState":
                    yield f"{operator}/{name}", partial(load, operator, readRegisteredTimers="true")
                else:
                    # Count like Spark: a list is one row, and has an order; a map has as many rows as keys.
                    flat = str(variable["stateVariableType"] != "ListState").lower()
                    options = {"stateVarName": name, "flattenCollectionTypes": flat}
                    yield f"{operator}/{name}", partial(load, operator, **options)
        else:
            yield f"{operator}/{store}", partial(load, operator, storeName=store)


def _digest(rows: DataFrame) -> str:
    text = F.to_json(F.struct(*[F.col(f"`{name}`") for name in rows.columns]), _WHOLE)
    halves = rows.select(F.md5(text).alias("md5")).select(
        *[
            F.conv(F.substring("md5", start, _HALF), 16, 10).cast("bigint").alias(name)
            for name, start in (("a", 1), ("b", 1 + _HALF))
        ]
    )
    found = halves.agg(
        F.count(F.lit(1)),
        *[F.sum(F.col(half).cast("decimal(38,0)")) for half in ("a", "b")],
        *[F.bit_xor(half) for half in ("a", "b")],
    ).first()
    assert found is not None
    return ":".join(format(int(value or 0), "x") for value in found)
