"""Counting the rows of a checkpoint's state by Spark's state data source.

``python -m streamwarden.driver.state_rows … ID=KEY@BATCH …`` prints one JSON line for each checkpoint:
``{"savepoint": ID, "rows": {"0": 12}}`` or ``{"savepoint": ID, "error": "…"}``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession

from streamwarden.control.workspace import open_workspace
from streamwarden.driver.causes import headline
from streamwarden.spark.java_options import SHORT_LIVED
from streamwarden.spark.session import build_session

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

    Of a folder on this machine; elsewhere the path is left as it is.
    """
    if quote(checkpoint) == checkpoint or "://" in checkpoint:
        yield checkpoint
        return
    with TemporaryDirectory(prefix="streamwarden-") as folder:
        link = Path(folder) / "checkpoint"
        link.symlink_to(checkpoint.removeprefix("file:"), target_is_directory=True)
        yield str(link)


def main() -> int:
    """Count, and print."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver.state_rows")
    for name in ("profile", "config", "root"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("checkpoint", nargs="+", help="ID=KEY@BATCH")
    given = parser.parse_args()
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    session = build_session(
        "streamwarden state rows",
        # It reads on its own machine, wherever the jobs run.
        master="local[2]",
        settings=workspace.profile.spark if workspace.profile.master.startswith("local") else None,
        java_options=SHORT_LIVED,
        s3=workspace.s3,
    )
    session.sparkContext.setLogLevel("ERROR")
    for text in given.checkpoint:
        name, _, rest = text.partition("=")
        key, _, batch = rest.rpartition("@")
        answer: dict[str, Any] = {"savepoint": name}
        try:
            answer["rows"] = count_state_rows(session, workspace.uri(key), int(batch))
        except Exception as error:
            # Whatever it is: that this state can't be read is the answer, and the next one is still looked at.
            answer["error"] = headline(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
