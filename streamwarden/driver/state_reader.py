"""``python -m streamwarden.driver.state_reader``: read the state of checkpoints back, with Spark's state data source.

It prints one JSON line per argument: for ``NAME=KEY@BATCH`` ``{"name": NAME, "rows": {"0": 12}, "keys": {}}``; for
``NAME=KEY@BATCH/PARTITIONS`` ``{"name": NAME, "digests": {"0/default": "c:…"}}``; for unreadable state
``{"name": NAME, "error": "…", "code": …}``, with the code of a known failure or null. Called by
:mod:`streamwarden.runtime.state_reader`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streamwarden.driver.causes import Failure, headline
from streamwarden.driver.job_session import temporary
from streamwarden.driver.jvm import is_unanswered
from streamwarden.driver.state_digest import state_digests
from streamwarden.driver.state_rows import count_keys, count_state_rows
from streamwarden.runtime import work_dirs
from streamwarden.runtime.failure_signatures import recognise
from streamwarden.runtime.state_reader import SCRATCH
from streamwarden.spark.java_options import SHORT_LIVED
from streamwarden.spark.session import build_session
from streamwarden.store.ids import new_id
from streamwarden.store.workspace import Workspace, open_workspace


def main() -> int:
    """Read the states and print the results."""
    parser = argparse.ArgumentParser(prog="python -m streamwarden.driver.state_reader")
    for name in ("profile", "config", "root"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("checkpoint", nargs="+", help="NAME=KEY@BATCH, or NAME=KEY@BATCH/PARTITIONS")
    given = parser.parse_args()
    workspace = open_workspace(given.profile, config=Path(given.config), root=given.root)
    # Remove leftovers of killed readers. State is unpacked before it is read: on the disk checked for free space.
    work_dirs.sweep(workspace, SCRATCH)
    own = work_dirs.claim(workspace, SCRATCH, new_id())
    os.environ["TMPDIR"] = str(own)
    try:
        _answer(workspace, own, given.checkpoint)
    finally:
        work_dirs.remove(own)
    return 0


def _answer(workspace: Workspace, own: Path, asked: list[str]) -> None:
    session = build_session(
        "streamwarden state reader",
        # It reads on its own machine, independent of where the jobs run.
        master="local[2]",
        settings=workspace.profile.spark if workspace.profile.master.startswith("local") else None,
        java_options=f"{SHORT_LIVED} {temporary(own)}",
        s3=workspace.s3,
    )
    session.sparkContext.setLogLevel("ERROR")
    for text in asked:
        name, _, what = text.partition("=")
        try:
            answer = _read(session, workspace, what)
        except Exception as error:
            if is_unanswered(error):
                # Not Spark's error about the state.
                raise
            # Any exception: the answer is that this state is unreadable, and the next one is still read.
            known = recognise(Failure.of(error).text)
            answer = {"error": headline(error), "code": known.code if known else None}
        sys.stdout.write(json.dumps({"name": name, **answer}) + "\n")
        sys.stdout.flush()
    session.stop()


def _read(session: SparkSession, workspace: Workspace, what: str) -> dict[str, Any]:
    key, _, at = what.rpartition("@")
    batch, _, partitions = at.partition("/")
    uri = workspace.uri(key)
    if partitions:
        return {"digests": state_digests(session, uri, int(batch), int(partitions))}
    return {"rows": count_state_rows(session, uri, int(batch)), "keys": count_keys(session, uri, int(batch))}


if __name__ == "__main__":
    sys.exit(main())
