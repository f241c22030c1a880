"""Counting the rows of a checkpoint's state by Spark's state data source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from urllib.parse import quote

from pyspark.sql import SparkSession

__all__ = ["count_state_rows", "plain_path"]

_JOIN = "symmetricHashJoin"
_JOIN_STORES = ("left-", "right-")


def count_state_rows(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    """Count the state's rows by operator, as Spark's own progress counts them.

    For a join the rows of both sides; for transformWithState the values of all state variables, a list as one, timers
    and Spark's own indexes left out.

    Parameters
    ----------
    session
        A session; the state's backend and format come from the checkpoint.
    checkpoint
        Its folder, as Spark reads it.
    batch
        The batch after which.
    """
    # The coordinator that state stores report to is made with the session's streaming side, which a reader of state
    # never touches otherwise.
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        return _count(session, path, batch)


def _count(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    rows: dict[int, int] = {}
    for described in session.read.format("state-metadata").load(checkpoint).collect():
        stored = session.read.format("statestore").option("batchId", batch).option("operatorId", described.operatorId)
        counted = 0
        properties = json.loads(described.operatorProperties or "{}")
        if described.operatorName == _JOIN and described.stateStoreName == "default":
            # Join state of format 3: the four stores are column families of one, and have no names of their own.
            for side in ("left", "right"):
                counted += stored.option("joinSide", side).load(checkpoint).count()
        elif "stateVariables" in properties:
            for variable in properties["stateVariables"]:
                if variable["stateVariableType"] != "TimerState":
                    whole = str(variable["stateVariableType"] != "ListState").lower()
                    values = stored.option("stateVarName", variable["stateName"])
                    counted += values.option("flattenCollectionTypes", whole).load(checkpoint).count()
        elif described.stateStoreName.startswith(_JOIN_STORES):
            if not described.stateStoreName.endswith("-keyWithIndexToValue"):
                # A side's other stores are indexes to this one.
                continue
            counted = stored.option("joinSide", described.stateStoreName.split("-")[0]).load(checkpoint).count()
        else:
            counted = stored.option("storeName", described.stateStoreName).load(checkpoint).count()
        rows[described.operatorId] = rows.get(described.operatorId, 0) + counted
    return rows


@contextmanager
def plain_path(checkpoint: str) -> Iterator[str]:
    """Give a path that reads the same as a URI: Spark's reader of state looks for ``a%20b`` where ``a b`` is.

    Of a folder on this machine; elsewhere the path is left as it is. The link that is given lies outside of the root,
    whose own path may be the odd one: a driver's folder for what is temporary is below it.

    Raises
    ------
    OSError
        If there is no folder for such a link.
    """
    if quote(checkpoint) == checkpoint or "://" in checkpoint:
        yield checkpoint
        return
    with TemporaryDirectory(prefix="streamwarden-", dir=_plain_folder()) as folder:
        link = Path(folder) / "checkpoint"
        link.symlink_to(checkpoint.removeprefix("file:"), target_is_directory=True)
        yield str(link)


def _plain_folder() -> str:
    given = gettempdir()
    for folder in (given, "/tmp", "/var/tmp"):
        if quote(folder) == folder and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OSError(f"no folder for a link whose path has no odd character: not {given}, /tmp, nor /var/tmp")
