"""Warm spares: driver processes without a job, whose Spark session is started and rehearsed; see decision 38.

A running driver keeps spares of its own size on its machine. Whatever starts a driver there takes a fitting one. All
they share is files below ``ROOT/scratch/_spares/SPARE``, on local disk:

``spec.json``
    The job that it rehearses.
``starting.json``
    The process, and what it fits. Written by whoever ordered it.
``ready.json``
    The same, from the spare, once its session is started. To take it is to rename this file: one taker succeeds.
``rehearsed``
    It has rehearsed: the first batch will be as quick as any.
``run.json``
    The job and the incarnation, from the taker. The spare answers with ``answer.json`` and is that driver from now on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, TypeVar

import psutil

from streamwarden import __version__
from streamwarden.model.process_ref import ProcessRef
from streamwarden.model.record import Record
from streamwarden.model.spec import JobSpec
from streamwarden.runtime import work_dirs
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.processes import is_alive, kill
from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace

__all__ = [
    "ANSWER",
    "ANSWERS",
    "CLAIMED",
    "COMMANDS",
    "READY",
    "REHEARSED",
    "RUN",
    "SPARES_ENV",
    "SPEC",
    "STARTING",
    "Answer",
    "Assignment",
    "Spare",
    "Taken",
    "end_waiting",
    "fit_of",
    "living",
    "lock",
    "sweep",
    "take",
    "wanted",
    "write",
]

_log = logging.getLogger(__name__)

SPARES_ENV = "STREAMWARDEN_SPARES"
"""Replaces the profile's ``spares``."""

SPEC, STARTING, READY = "spec.json", "starting.json", "ready.json"
CLAIMED, RUN, ANSWER = "claimed.json", "run.json", "answer.json"
COMMANDS, ANSWERS, REHEARSED = "commands", "answers", "rehearsed"

_ANSWER_S = 3.0
"""Seconds in which a spare must answer the order to run. It looks for one twenty times a second."""

_POLL_S = 0.02

_R = TypeVar("_R", bound=Record)

# Variables that differ from one shell or task to the next, and mean nothing to a driver.
_IGNORED = re.compile(
    # The allocator's: polars sets it in each process that imports it.
    "_|_RJEM_MALLOC_CONF|PWD|OLDPWD|SHLVL|TERM|LINES|COLUMNS|TMPDIR|TZ|PYTHONUNBUFFERED|PYTHONHASHSEED"
    "|(_?AIRFLOW|SSH|XDG|LC|LESS|MAKE|MFLAGS|PYTEST|STREAMWARDEN_(?!KAFKA)).*"
)


class Spare(Record):
    """A spare's description.

    Parameters
    ----------
    id
        Its name, which sorts by time.
    process
        Its process.
    fit
        What it can be used for: see :func:`fit_of`.
    memory
        The heap of its JVM, as in a spec: ``1g``.
    """

    id: str
    process: ProcessRef
    fit: str
    memory: str


class Assignment(Record):
    """What a spare is to be: the driver of a job, or a standby driver for it.

    Parameters
    ----------
    job, incarnation
        The job, and the driver's incarnation.
    standby
        Whether it waits for commands, in the pipe ``commands`` of its folder, and answers in ``answers``; see
        :mod:`streamwarden.driver.standby`.
    """

    job: str
    incarnation: str
    standby: bool = False


class Taken:
    """A spare that was taken, as a process: with the interface of Popen as far as a standby driver needs it.

    Parameters
    ----------
    process
        The process.
    stdin, stdout
        Its commands and answers; None for a spare that is a driver.
    """

    def __init__(self, process: ProcessRef, stdin: IO[str] | None = None, stdout: IO[str] | None = None) -> None:
        self.process = process
        self.pid = process.pid
        self.stdin = stdin
        self.stdout = stdout

    def poll(self) -> int | None:
        """Return None while it lives; how it ended is not known."""
        return None if is_alive(self.process) else -1

    def wait(self, timeout: float) -> int:
        """Wait for its end."""
        deadline = Deadline(timeout)
        while self.poll() is None:
            if not deadline.pause(_POLL_S):
                raise subprocess.TimeoutExpired("spare", timeout)
        return -1


class Answer(Record):
    """Whether a spare does as it is told; if not, why."""

    do: Literal["run", "refuse"]
    why: str = ""


def wanted(workspace: Workspace, spec: JobSpec) -> int:
    """Return how many spares of a job's size its driver keeps, by the profile and the free memory.

    None on a cluster: a waiting session would occupy its slots.
    """
    number = _given(workspace)
    if number is not None:
        return number
    # A spare needs its heap and, with Python, about as much again.
    needed = 2 * spec.resources.memory_bytes + 2**30
    return int(psutil.virtual_memory().available > needed)


def _given(workspace: Workspace) -> int | None:
    if workspace.profile.on_cluster:
        return 0
    given = os.environ.get(SPARES_ENV)
    return int(given) if given else workspace.profile.spares


def fit_of(workspace: Workspace, spec: JobSpec, environment: Mapping[str, str]) -> str:
    """Return what must be equal for a spare to run a job: size, fixed settings, environment and version.

    Parameters
    ----------
    environment
        What the process is started with. It may hold credentials: the result is a hash.
    """
    parts = [
        __version__,
        spec.resources.model_dump(mode="json"),
        workspace.profile.model_dump(mode="json"),
        str(workspace.config),
        spec.spark,
        spec.uses_kafka,
        sorted((name, value) for name, value in environment.items() if not _IGNORED.fullmatch(name)),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def living(workspace: Workspace) -> dict[Spare, bool]:
    """Return the spares that wait or start on this machine, and whether each is ready."""
    found: dict[Spare, bool] = {}
    for folder in _folders(workspace):
        if (folder / CLAIMED).exists():
            continue
        spare = _read(folder / READY, Spare) or _read(folder / STARTING, Spare)
        if spare is not None and is_alive(spare.process):
            found[spare] = (folder / READY).exists()
    return found


@contextmanager
def lock(workspace: Workspace) -> Iterator[None]:
    """Hold the lock under which spares are counted and ordered on this machine."""
    place = workspace.scratch / SPARES
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep(workspace: Workspace) -> None:
    """Remove the folders of spares that have ended, and of drivers that were spares; call it under the lock."""
    for spare in work_dirs.sweep(workspace, SPARES, but={spare.id for spare in living(workspace)}):
        logs = workspace.log_dir(SPARES, spare)
        with suppress(OSError):
            if logs.is_symlink():
                logs.unlink()
            else:
                # It never was a driver. The last one's log may say why it ended.
                last = workspace.log_dir(SPARES, "last")
                shutil.rmtree(last, ignore_errors=True)
                logs.rename(last)


def take(workspace: Workspace, spec: JobSpec, assignment: Assignment) -> Taken | None:
    """Return a fitting spare, which now runs the job or is its standby driver; None if there is none.

    The spare's log files become those of the incarnation.

    Parameters
    ----------
    spec
        The job's spec.
    assignment
        The job and the incarnation, whose log folder must not exist.
    """
    if _given(workspace) == 0:
        return None
    fit = fit_of(workspace, spec, os.environ)
    for folder in _folders(workspace):
        spare = _read(folder / READY, Spare)
        if spare is None or spare.fit != fit or not is_alive(spare.process):
            continue
        try:
            (folder / READY).rename(folder / CLAIMED)
        except FileNotFoundError:
            # Another job was quicker.
            continue
        taken = _assigned(workspace, folder, spare, assignment)
        if taken is not None:
            return taken
        kill(spare.process)
    return None


def end_waiting(workspace: Workspace) -> None:
    """End all spares that wait or start on this machine."""
    for spare in living(workspace):
        with suppress(FileNotFoundError):
            folder = workspace.scratch_dir(SPARES, spare.id)
            (folder / (READY if (folder / READY).exists() else STARTING)).rename(folder / CLAIMED)
            kill(spare.process)


def _assigned(workspace: Workspace, folder: Path, spare: Spare, assignment: Assignment) -> Taken | None:
    ours, theirs = workspace.log_dir(assignment.job, assignment.incarnation), workspace.log_dir(SPARES, spare.id)
    ours.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        theirs.rename(ours)
        # Its JVM opens new log files by the old name.
        theirs.symlink_to(ours, target_is_directory=True)
    pipes = _pipes(folder) if assignment.standby else None
    write(folder / RUN, assignment)
    deadline = time.monotonic() + _ANSWER_S
    while (answer := _read(folder / ANSWER, Answer)) is None:
        if time.monotonic() > deadline or not is_alive(spare.process):
            _log.warning("spare %s does not answer; %s starts without it", spare.id, assignment.job)
            answer = Answer(do="refuse", why="it does not answer")
            break
        time.sleep(_POLL_S)
    if answer.do == "refuse":
        _log.info("spare %s is not used for %s: %s", spare.id, assignment.job, answer.why)
    taken = Taken(spare.process)
    if pipes is not None:
        # It has opened both by now. Only the writer stays here: the spare sees its end.
        taken.stdin = (folder / COMMANDS).open("w", encoding="utf-8") if answer.do == "run" else None
        os.close(pipes[0])
        os.set_blocking(pipes[1], True)
        taken.stdout = os.fdopen(pipes[1], encoding="utf-8")
    return taken if answer.do == "run" else None


def _pipes(folder: Path) -> tuple[int, int]:
    """Make the pipes of a standby driver, open so that neither side waits for the other."""
    for name in (COMMANDS, ANSWERS):
        os.mkfifo(folder / name, 0o600)
    return os.open(folder / COMMANDS, os.O_RDWR), os.open(folder / ANSWERS, os.O_RDONLY | os.O_NONBLOCK)


def write(path: Path, record: Record) -> None:
    """Write a file that appears whole."""
    part = path.with_suffix(".part")
    part.write_text(record.model_dump_json(), encoding="utf-8")
    part.rename(path)


def _read(path: Path, kind: type[_R]) -> _R | None:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _folders(workspace: Workspace) -> list[Path]:
    return sorted(path for path in (workspace.scratch / SPARES).glob("*/") if path.is_dir())
