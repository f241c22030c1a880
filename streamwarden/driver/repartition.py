"""Redistribute a stopped query's state over another number of partitions; only this module calls Spark for it.

Spark 4.2's ``StreamingCheckpointManager.repartition`` is private and evolving. It writes a batch N+1 that reads no
input and holds the state of batch N in the new number of partitions. A killed try must be repeated with the same
number. Use it only on a copy.
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from streamwarden.driver.causes import headline
from streamwarden.driver.jvm import is_unanswered
from streamwarden.driver.state_rows import plain_path
from streamwarden.errors import StreamwardenError

__all__ = ["repartition"]

_CONDITION = re.compile(r"\[STATE_REPARTITION_INVALID_(?:CHECKPOINT|PARAMETER)\.(\w+)\]")
_DONE = "SHUFFLE_PARTITIONS_ALREADY_MATCH"
_UNSUPPORTED = ("UNSUPPORTED_", "MISSING_OFFSET_SEQ_METADATA")


def repartition(session: SparkSession, checkpoint: str, partitions: int) -> None:
    """Redistribute the state of a checkpoint, in place. Does nothing if this is already done.

    Parameters
    ----------
    session
        A session with the job's settings.
    checkpoint
        The checkpoint's folder, in the form that Spark writes to.
    partitions
        The new number of partitions.

    Raises
    ------
    StreamwardenError
        ``RESCALE_UNSUPPORTED`` for an operator, a provider or a version that Spark rejects; ``RESCALE_FAILED`` for
        its other errors.
    Exception
        Py4J's, if there was no answer: see :func:`~streamwarden.driver.jvm.is_unanswered`.
    """
    try:
        with plain_path(checkpoint) as path:
            session._streamingCheckpointManager.repartition(path, partitions)
    except Exception as error:
        if is_unanswered(error):
            # Not Spark's error: the JVM may be gone, and the caller determines how it ended.
            raise
        condition = _CONDITION.search(str(error))
        if condition is not None and condition[1] == _DONE:
            # An earlier try was killed after its commit.
            return
        refused = condition is not None and condition[1].startswith(_UNSUPPORTED)
        raise StreamwardenError("RESCALE_UNSUPPORTED" if refused else "RESCALE_FAILED", headline(error)) from error
