"""A driver that stands by: its session is there before the job is its own, and works on checkpoints meanwhile.

It reads a JSON command a line and answers each with a line: ``{"do": "prepare", "spec": SPEC, "state": BOOL}``, the
first one, after which it rehearses the job, work on its state included or not;
``{"do": "digest", "checkpoint": KEY, "batch": N, "partitions": P}``; ``{"do": "repartition", "checkpoint": KEY,
"partitions": P}``; ``{"do": "replay", "checkpoint": KEY}``, which finishes the batch that was begun there and writes
its rows nowhere; and at last ``{"do": "run"}``, from which on it is a driver like any other. Without that it ends with
its input: whoever started it is gone. Until then it holds no lease, and writes nothing but the checkpoint that it is
given, and a rehearsal's rows in a temporary folder.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from streamwarden.control.spec import JobSpec
from streamwarden.control.workspace import Workspace
from streamwarden.driver.causes import headline
from streamwarden.driver.job_session import start_session
from streamwarden.driver.module import load_module
from streamwarden.driver.rehearsal import rehearse
from streamwarden.driver.repartition import repartition
from streamwarden.driver.replay import Replay
from streamwarden.driver.state_digest import state_digests
from streamwarden.errors import StreamwardenError

__all__ = ["stand_by"]


def stand_by(workspace: Workspace, incarnation: str, output: int) -> SparkSession | None:
    """Answer commands until this driver is to run; return its session, or None if it is not to run at all.

    Parameters
    ----------
    output
        The file descriptor for the answers. Not standard output: what is printed there, also by the JVM, is no answer.
    """
    answers = os.fdopen(output, "w", encoding="utf-8")

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    session: SparkSession | None = None
    replay: Replay | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prepare":
            spec = JobSpec.model_validate(command["spec"])
            session = start_session(workspace, spec, incarnation)
            replay = Replay(session, workspace, spec)
            rehearse(session, workspace, spec, load_module(spec), state=command["state"])
            answer({"ready": True})
        elif command["do"] == "run":
            answer({"running": True})
            answers.close()
            return session
        else:
            assert session is not None and replay is not None
            answer(_perform(session, workspace, replay, command))
    if session is not None:
        session.stop()
    return None


def _perform(session: SparkSession, workspace: Workspace, replay: Replay, command: dict[str, Any]) -> dict[str, Any]:
    path = workspace.uri(command["checkpoint"])
    try:
        if command["do"] == "repartition":
            repartition(session, path, command["partitions"])
            return {"done": True}
        if command["do"] == "replay":
            return {"rows": replay(path)}
        return {"digests": state_digests(session, path, command["batch"], command["partitions"])}
    except StreamwardenError as error:
        return {"code": error.code, "what": error.what}
    except Exception as error:
        # Whatever it is, whoever asked has a job to put back where it was.
        return {"code": "RESCALE_FAILED", "what": headline(error)}
