"""Redistributing a stopped query's state over another number of partitions: the one place that calls Spark for it.

Spark 4.2's ``StreamingCheckpointManager.repartition`` is private and evolving. It writes a batch N+1 that reads no
input and holds the state of batch N in the other number of partitions. A try that was killed is to be repeated with the
same number. Only ever given a copy.
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
    """Redistribute the state of a checkpoint, in place. Done already, it does nothing.

    Parameters
    ----------
    session
        A session with the job's settings.
    checkpoint
        Its folder, as Spark writes to it.
    partitions
        How many there shall be.

    Raises
    ------
    StreamwardenError
        ``RESCALE_UNSUPPORTED`` for an operator, a provider or a version that Spark refuses; ``RESCALE_FAILED`` for
        whatever else it says.
    Exception
        Py4J's, where no answer came: see :func:`~streamwarden.driver.jvm.is_unanswered`.
    """
    try:
        with plain_path(checkpoint) as path:
            session._streamingCheckpointManager.repartition(path, partitions)
    except Exception as error:
        if is_unanswered(error):
            # Not Spark's word: the JVM may be gone, and who asks for it knows by what it ended.
            raise
        condition = _CONDITION.search(str(error))
        if condition is not None and condition[1] == _DONE:
            # A try that was killed after its commit.
            return
        refused = condition is not None and condition[1].startswith(_UNSUPPORTED)
        raise StreamwardenError("RESCALE_UNSUPPORTED" if refused else "RESCALE_FAILED", headline(error)) from error
