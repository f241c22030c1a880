"""An order-independent digest of a checkpoint's state, computed by Spark where the state is.

Two checkpoints whose state is the same set of keys and values have the same digest, however it is spread over
partitions. Each row, as JSON with all its fields, is hashed by MD5; a store's digest is the number of its rows, the sum
of both halves of the hashes, and their exclusive or. The sum tells rows that come twice, which the exclusive or alone
would not. Nothing but these few numbers leaves the executors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.state_rows import plain_path
from streamwarden.errors import StreamwardenError

__all__ = ["state_digests"]

_WHOLE = {
    "ignoreNullFields": "false",
    # Spark's own formats end at milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of a row's JSON: nothing of it is left out."""

_HALF = 15
"""Hexadecimal digits of a half: 60 bits, so that a half fits a signed long."""


def state_digests(session: SparkSession, checkpoint: str, batch: int, partitions: int) -> dict[str, str]:
    """Return the digest of each store of each stateful operator, after a batch.

    Parameters
    ----------
    session
        A session; the state's backend and format come from the checkpoint.
    checkpoint
        Its folder, as Spark reads it.
    batch
        The batch after which.
    partitions
        How many the state lies in. Where the checkpoint's own metadata say another number, the reader would see less
        than there is.

    Returns
    -------
    dict
        By ``OPERATOR/STORE``; for transformWithState by ``OPERATOR/VARIABLE``, timers included.

    Raises
    ------
    StreamwardenError
        ``RESCALE_FAILED`` if the metadata say another number of partitions.
    """
    # The coordinator that state stores report to is made with the session's streaming side, which a reader of state
    # never touches otherwise.
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        for described in session.read.format("state-metadata").load(path).collect():
            if described.numPartitions != partitions:
                said = f"operator {described.operatorId} says {described.numPartitions} partitions"
                raise StreamwardenError("RESCALE_FAILED", f"{checkpoint}: {said}, and there are {partitions}")
        return {name: _digest(rows) for name, rows in _tables(session, path, batch)}


def _tables(session: SparkSession, checkpoint: str, batch: int) -> Iterator[tuple[str, DataFrame]]:
    """Return every store's rows as a table, without the number of their partition."""

    def load(operator: int, **options: str) -> DataFrame:
        # A reader keeps the options that it was given: each table has its own.
        reader = session.read.format("statestore").option("batchId", batch).option("operatorId", operator)
        # Which partition a row lies in is what a rescale changes.
        return reader.options(**options).load(checkpoint).drop("partition_id")

    for described in session.read.format("state-metadata").load(checkpoint).collect():
        operator, store = described.operatorId, described.stateStoreName
        properties = json.loads(described.operatorProperties or "{}")
        if "stateVariables" in properties:
            for variable in properties["stateVariables"]:
                name = variable["stateName"]
                if variable["stateVariableType"] == "TimerState":
                    yield f"{operator}/{name}", load(operator, readRegisteredTimers="true")
                else:
                    # As Spark counts rows: a list is one, and has an order; a map is as many as it has keys.
                    flat = str(variable["stateVariableType"] != "ListState").lower()
                    yield f"{operator}/{name}", load(operator, stateVarName=name, flattenCollectionTypes=flat)
        else:
            yield f"{operator}/{store}", load(operator, storeName=store)


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
