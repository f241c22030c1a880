"""A standby driver: its session starts before it owns the job, and works on checkpoints meanwhile.

It reads a JSON command per line and answers each with a line. The first is ``{"do": "prepare", "spec": SPEC, "state":
BOOL}``: it rehearses the job, with work on its state if BOOL is true, and ends if its JVM dies of that. Then follow
``{"do": "executor", "within": SECONDS}``, which waits for a cluster's executor; ``{"do": "digest", "checkpoint": KEY,
"batch": N, "partitions": P}``; ``{"do": "repartition", "checkpoint": KEY, "partitions": P}``; ``{"do": "replay",
"checkpoint": KEY}``, which finishes the batch that was begun there without writing its rows; and ``{"do": "start
ahead", "checkpoint": KEY}``, which does so with the job's future query. After the last command, ``{"do": "run"}``, it
is a driver like any other. If its input ends before that, its parent process is gone: it ends at once, with its JVM.
Until it runs it holds no lease, and writes only to the checkpoint that it is given, and a rehearsal's rows to a
temporary folder.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from pyspark.sql import SparkSession

from streamwarden.driver.ahead import QueryAhead
from streamwarden.driver.causes import headline
from streamwarden.driver.commands import Commands
from streamwarden.driver.executors import Executors
from streamwarden.driver.job_session import adapt_session, start_session
from streamwarden.driver.jvm import end_jvm, is_unanswered, jvm_end
from streamwarden.driver.pipeline.module import load_module
from streamwarden.driver.rehearsal import rehearse
from streamwarden.driver.repartition import repartition
from streamwarden.driver.state_digest import state_digests
from streamwarden.driver.state_only_batch import Replay
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import current_process, kill
from streamwarden.store.workspace import Workspace

__all__ = ["Prepared", "stand_by"]

_log = logging.getLogger(__name__)

_SLOTS_S = 120.0
"""Seconds that a cluster may take to provide an executor for work on state. The old driver, which may hold these slots,
ends Spark for some more seconds. 120 s, not the hour that the work may take: the job is stopped meanwhile."""

_POLL_S = 0.5


@dataclass
class Prepared:
    """What a standby driver has prepared.

    Parameters
    ----------
    session
        A session with the job's settings.
    ahead
        The query that was started ahead, if any.
    """

    session: SparkSession
    ahead: QueryAhead | None = None


def stand_by(
    workspace: Workspace,
    incarnation: str,
    output: int,
    *,
    commands_from: IO[str],
    warm: SparkSession | None = None,
    rehearsed: Sequence[JobSpec] = (),
) -> Prepared | None:
    """Perform commands until this driver is to run; return what it has prepared, or None if it is not to run.

    Parameters
    ----------
    output
        The file descriptor for the answers. Not standard output, to which the JVM and others print.
    commands_from
        The stream of commands.
    warm
        The session of a spare; default a new one.
    rehearsed
        The specs of the jobs that the spare has rehearsed.
    """
    answers = os.fdopen(output, "w", encoding="utf-8")
    commands = Commands(commands_from, last="run", abandoned=_end_at_once)

    def answer(value: dict[str, Any]) -> None:
        # Before the answer: its reader may be gone a moment later.
        commands.performed()
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    standby: _Standby | None = None
    for command in commands:
        if command["do"] == "prepare":
            standby = _Standby(workspace, JobSpec.model_validate(command["spec"]), incarnation, warm)
            ready = standby.rehearse(state=command["state"], rehearsed=rehearsed)
            answer(ready)
            if "code" in ready:
                return None
        elif command["do"] == "executor":
            assert standby is not None
            answer({"missing": _missing_executor(standby.prepared.session, command["within"])})
        elif command["do"] == "run":
            answer({"running": True})
            answers.close()
            return standby.prepared if standby is not None else None
        else:
            assert standby is not None
            answer(standby.perform(command))
    if standby is not None:
        standby.end()
    return None


def _end_at_once() -> None:
    """End this process and its JVM at once. Its scratch folder is swept later."""
    _log.warning("the process that started this one is gone; stopping, with the JVM")
    kill(current_process())


def _await_executor(session: SparkSession) -> None:
    """Wait until a cluster has given this session an executor.

    Raises
    ------
    StreamwardenError
        ``RESCALE_FAILED``.
    """
    missing = _missing_executor(session, _SLOTS_S)
    if missing is not None:
        raise StreamwardenError("RESCALE_FAILED", f"after {_SLOTS_S:.0f} s: {missing}")


def _missing_executor(session: SparkSession, seconds: float) -> str | None:
    """Wait for an executor, for some seconds; return why there may be none, or None if there is one."""
    executors, deadline = Executors(session), Deadline(seconds)
    while (missing := executors.missing()) is not None and deadline.pause(_POLL_S):
        pass
    return missing


def _is_among(spec: JobSpec, rehearsed: Sequence[JobSpec]) -> bool:
    """Return whether one of these specs is the same but for its partitions, which need no other classes and plans."""
    partitions = {"partitions": spec.state.partitions}
    return any(one.model_copy(update={"state": one.state.model_copy(update=partitions)}) == spec for one in rehearsed)


class _Standby:
    def __init__(self, workspace: Workspace, spec: JobSpec, incarnation: str, warm: SparkSession | None = None) -> None:
        self._workspace = workspace
        self._spec = spec
        self._logs = workspace.log_dir(spec.name, incarnation)
        self._session = warm or start_session(workspace, spec, incarnation)
        if warm is not None:
            adapt_session(warm, workspace, spec)
        self._replay = Replay(self._session, workspace, spec)
        self.prepared = Prepared(self._session)

    def rehearse(self, *, state: bool, rehearsed: Sequence[JobSpec]) -> dict[str, Any]:
        if not _is_among(self._spec, rehearsed):
            module, warm = load_module(self._spec), bool(rehearsed)
            rehearse(self._session, self._workspace, self._spec, module, state=state, warm=warm)
        try:
            # Any call: a failed rehearsal does not matter, but a dead JVM does.
            _ = self._session.version
        except Exception as error:
            return self._failed("RESCALE_REHEARSAL_FAILED", error)
        return {"ready": True}

    def perform(self, command: dict[str, Any]) -> dict[str, Any]:
        path = self._workspace.uri(command["checkpoint"])
        try:
            _await_executor(self._session)
            match command["do"]:
                case "repartition":
                    repartition(self._session, path, command["partitions"])
                    return {"done": True}
                case "replay":
                    return {"rows": self._replay(path)}
                case "start ahead":
                    return {"rows": self._start_ahead(command["checkpoint"])}
                case "digest":
                    digests = state_digests(self._session, path, command["batch"], command["partitions"])
                    return {"digests": digests}
                case unknown:
                    raise StreamwardenError("RESCALE_FAILED", f"a spare has no command {unknown!r}")
        except StreamwardenError as error:
            return {"code": error.code, "what": error.what}
        except Exception as error:
            # Any exception: the caller must still roll the job back.
            return self._failed("RESCALE_FAILED", error)

    def end(self) -> None:
        if self.prepared.ahead is not None:
            self.prepared.ahead.drop()
        end_jvm(self._session)

    def _failed(self, code: str, error: Exception) -> dict[str, Any]:
        ended = jvm_end(self._session, self._logs, gone=is_unanswered(error))
        words = headline(error) if ended is None else ": ".join(ended)
        return {"code": code, "what": f"{self._spec.name}: {words}"}

    def _start_ahead(self, checkpoint: str) -> list[int] | None:
        rows, mode = self._replay.rows, self._replay.mode
        self.prepared.ahead = QueryAhead(self._session, self._workspace, self._spec, rows, checkpoint, mode)
        return self.prepared.ahead.rows()
