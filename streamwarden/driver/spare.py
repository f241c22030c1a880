"""A spare: a driver's process that has no job yet. It starts a session, rehearses, and waits to be taken.

See :mod:`streamwarden.runtime.spares` for the files by which it is taken. It holds no lease and writes nothing of any
job. It ends by itself when no driver is left on its machine, and when the code that it has loaded was changed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

import psutil
from pyspark.sql import SparkSession

from streamwarden.driver.job_session import start_session
from streamwarden.driver.pipeline.module import load_module
from streamwarden.driver.rehearsal import rehearse
from streamwarden.errors import StreamwardenError
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import spares, work_dirs
from streamwarden.runtime.processes import current_process
from streamwarden.runtime.spares import (
    ANSWER,
    ANSWERS,
    CLAIMED,
    COMMANDS,
    READY,
    REHEARSED,
    RUN,
    Answer,
    Assignment,
    Spare,
)
from streamwarden.store.documents import JobDocuments
from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.driver_control import deployed_jobs

__all__ = ["Given", "wait_for_job"]

_POLL_S = 0.05
_LOOK_S = 5.0
"""Seconds between two looks at the machine's drivers and at the code."""

_OTHERS = 3
"""Other jobs that a spare rehearses, at most: each takes some seconds."""

_ALONE_S = 120.0
"""Seconds without any driver on the machine until a spare ends: longer than a supervisor needs to restart a job."""

_CLAIMED_S = 10.0
"""Seconds until a spare that was taken must have its job: otherwise its taker has died."""


class Given(NamedTuple):
    """What a taken spare has: its job, session, pipes of a standby driver, and the jobs that it has rehearsed."""

    assignment: Assignment
    session: SparkSession
    pipes: tuple[IO[str], int] | None
    rehearsed: list[JobSpec]


def wait_for_job(workspace: Workspace, spec: JobSpec, spare: str) -> Given | None:
    """Become warm, then wait; return what is to be run, or None if this process is to end.

    Parameters
    ----------
    spec
        The job whose size the spare has. It rehearses this one first, then others of the size.
    spare
        The spare's id.
    """
    folder = workspace.scratch_dir(SPARES, spare)
    code = _Code()
    session = start_session(workspace, spec, spare, owner=SPARES)
    fit = spares.fit_of(workspace, spec, psutil.Process().environ())
    described = Spare(id=spare, process=current_process(), fit=fit, memory=spec.resources.memory)
    spares.write(folder / READY, described)
    # Ready before: a session alone saves most of a start, and on a busy machine rehearsals take a minute.
    rehearsed: list[JobSpec] = []
    threading.Thread(target=_rehearse, args=(session, workspace, spec, fit, folder, rehearsed), daemon=True).start()
    why = _wait(workspace, folder, code)
    given = None
    if why is None:
        why = code.changed() or _is_dead(session)
        if why is None:
            assignment = Assignment.model_validate_json((folder / RUN).read_text(encoding="utf-8"))
            # The taker has opened both.
            pipes = (
                ((folder / COMMANDS).open(encoding="utf-8"), os.open(folder / ANSWERS, os.O_WRONLY))
                if assignment.standby
                else None
            )
            given = Given(assignment, session, pipes, rehearsed)
        spares.write(folder / ANSWER, Answer(do="refuse", why=why) if why else Answer(do="run"))
    if why is not None:
        sys.stdout.write(f"this spare ends: {why}\n")
    return given


def _rehearse(
    session: SparkSession, workspace: Workspace, spec: JobSpec, fit: str, folder: Path, rehearsed: list[JobSpec]
) -> None:
    """Rehearse a job and others of its size, until this spare is taken; add the specs of those that were completed."""
    taken = (folder / CLAIMED).exists
    for one in (spec, *_others(workspace, spec, fit)):
        # As for a rescale.
        state = one.state.backend == "rocksdb"
        if not taken() and rehearse(session, workspace, one, load_module(one), state=state, needless=taken):
            rehearsed.append(one)
    (folder / REHEARSED).touch()


def _others(workspace: Workspace, spec: JobSpec, fit: str) -> list[JobSpec]:
    """Return further jobs that may need this spare: running ones of the same size."""
    found = []
    for job in deployed_jobs(workspace):
        try:
            desired = JobDocuments(workspace.storage, job).desired.read()
        except StreamwardenError:
            # Damaged: it is no matter of a spare.
            continue
        if desired is None or job == spec.name or desired.state != "running":
            continue
        if spares.fit_of(workspace, desired.spec, psutil.Process().environ()) == fit:
            found.append(desired.spec)
    return found[:_OTHERS]


def _wait(workspace: Workspace, folder: Path, code: _Code) -> str | None:
    """Wait for a job; return None when it is there, or why none is waited for any more."""
    alone_since = looked_at = time.monotonic()
    claimed_at: float | None = None
    while not (folder / RUN).exists():
        now = time.monotonic()
        if (folder / CLAIMED).exists():
            claimed_at = claimed_at or now
            if now - claimed_at > _CLAIMED_S:
                return "it was taken, and got no job"
        elif now - looked_at > _LOOK_S:
            looked_at = now
            if work_dirs.any_running(workspace):
                alone_since = now
            why = code.changed() or ("no driver is left here" if now - alone_since > _ALONE_S else None)
            if why is not None and _withdrawn(folder):
                return why
        time.sleep(_POLL_S)
    return None


def _withdrawn(folder: Path) -> bool:
    """Take the spare away from takers; return False if one was quicker."""
    try:
        (folder / READY).rename(folder / CLAIMED)
    except FileNotFoundError:
        return False
    return True


def _is_dead(session: SparkSession) -> str | None:
    try:
        _ = session.version
    except Exception as error:
        return f"its JVM is dead: {error}"
    return None


class _Code:
    """The Python files that this process has loaded, beside those of the installed packages."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._started = time.time()

    def changed(self) -> str | None:
        """Return which file has changed since the start of this process, if one has."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if not path or "site-packages" in path or path.startswith(sys.base_prefix):
                continue
            try:
                modified = Path(path).stat().st_mtime
            except OSError:
                return f"{path} is gone"
            if modified != self._seen.setdefault(path, modified) or modified > self._started:
                return f"{path} has changed"
        return None
