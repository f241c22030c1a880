"""Count the rows and the keys of a checkpoint's state with Spark's state data source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamwarden.driver.keyed_rows import has_keyed_state
from streamwarden.driver.state_metadata import state_metadata, state_variables
from streamwarden.keyed_state.processor import STATE_NAME

__all__ = ["count_keys", "count_state_rows", "plain_path"]

_JOIN = "symmetricHashJoin"
_JOIN_STORES = ("left-", "right-")


def count_state_rows(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    """Return the number of state rows by operator, as Spark's own progress counts them.

    For a join, counts the rows of both sides. For transformWithState, counts the values of all state variables, a list
    as one; timers and Spark's own indexes are left out.

    Parameters
    ----------
    session
        A session; the state's backend and format come from the checkpoint.
    checkpoint
        The checkpoint's folder, in the form that Spark reads.
    batch
        The batch after which the rows are counted.
    """
    # State stores report to a coordinator that is created with the session's streaming side; reading state alone does
    # not create it.
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        return _count(session, path, batch)


def count_keys(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    """Return the number of keys of keyed state by operator; operators with other state are left out.

    Parameters
    ----------
    session, checkpoint, batch
        As for :func:`count_state_rows`.
    """
    _ = session.streams.active
    with plain_path(checkpoint) as path:
        return _count_keys(session, path, batch)


def _count_keys(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    keys = {}
    for described in state_metadata(session, checkpoint, batch).collect():
        if not has_keyed_state(described):
            continue
        stored = session.read.format("statestore").option("batchId", batch).option("operatorId", described.operatorId)
        buckets = stored.option("stateVarName", STATE_NAME).option("flattenCollectionTypes", "false").load(checkpoint)
        # A bucket's newest chunk has the number of its keys.
        found = buckets.agg(F.sum(F.element_at("list_value", -1)["keys"])).first()
        assert found is not None
        keys[described.operatorId] = int(found[0] or 0)
    return keys


def _count(session: SparkSession, checkpoint: str, batch: int) -> dict[int, int]:
    rows: dict[int, int] = {}
    for described in state_metadata(session, checkpoint, batch).collect():
        stored = session.read.format("statestore").option("batchId", batch).option("operatorId", described.operatorId)
        counted = 0
        variables = state_variables(described)
        if described.operatorName == _JOIN and described.stateStoreName == "default":
            # Join state of format 3: the four stores are column families of one store, without their own names.
            for side in ("left", "right"):
                counted += stored.option("joinSide", side).load(checkpoint).count()
        elif variables is not None:
            for variable in variables:
                if variable["stateVariableType"] != "TimerState":
                    whole = str(variable["stateVariableType"] != "ListState").lower()
                    values = stored.option("stateVarName", variable["stateName"])
                    counted += values.option("flattenCollectionTypes", whole).load(checkpoint).count()
        elif described.stateStoreName.startswith(_JOIN_STORES):
            if not described.stateStoreName.endswith("-keyWithIndexToValue"):
                # A side's other stores are indexes to this store.
                continue
            counted = stored.option("joinSide", described.stateStoreName.split("-")[0]).load(checkpoint).count()
        else:
            counted = stored.option("storeName", described.stateStoreName).load(checkpoint).count()
        rows[described.operatorId] = rows.get(described.operatorId, 0) + counted
    return rows


@contextmanager
def plain_path(checkpoint: str) -> Iterator[str]:
    """Yield a path that equals its URI form: Spark's state reader looks for ``a%20b`` if the path is ``a b``.

    For a folder on this machine; other paths are yielded unchanged. The yielded link lies outside of the root, because
    the root's own path may need escaping, and a driver's temporary folder is below it.

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
    raise OSError(f"no folder found for a link whose path has no special characters: not {given}, /tmp, nor /var/tmp")
