"""Scratch folders: the files of a driver's Spark on local disk while it runs, with working copies of its state.

Spark removes them at a regular end. A killed process leaves all of them, each time: with a large state, a job that
fails repeatedly fills the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from streamwarden.store.layout import SPARES
from streamwarden.store.workspace import Workspace

__all__ = ["any_running", "claim", "left", "newest_start", "remove", "sweep"]

_log = logging.getLogger(__name__)
_LOCK = ".lock"
_RUN = "run.json"
"""In a spare's folder, once it is a driver; see :mod:`streamwarden.runtime.spares`."""


def claim(workspace: Workspace, job: str, incarnation: str) -> Path:
    """Create a driver's scratch folder, and lock it until this process ends, by whatever cause.

    The lock is a kernel lock (flock), which no child process inherits. If the root is on a network file system with
    locks local to each machine, drivers on several machines cannot share it.
    """
    folder = workspace.scratch_dir(job, incarnation)
    lock = folder / _LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Never closed: the lock ends with the process.
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Between the lines above, a sweep may have removed the folder as a dead process's.
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return folder
        except FileNotFoundError:
            continue


def remove(folder: Path) -> None:
    """Remove a scratch folder as far as possible: a JVM may still write to it, and a later sweep removes the rest."""
    shutil.rmtree(folder, ignore_errors=True)


def any_running(workspace: Workspace) -> bool:
    """Return whether a driver of any job runs on this machine; spares that wait do not count."""
    for lock in workspace.scratch.glob(f"*/*/{_LOCK}"):
        if lock.parent.parent.name == SPARES and not (lock.parent / _RUN).exists():
            continue
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def newest_start(workspace: Workspace) -> float:
    """Return when the last driver of any job was started on this machine, seconds since the epoch; 0 for never."""
    starts = [
        *(lock for lock in workspace.scratch.glob(f"*/*/{_LOCK}") if lock.parent.parent.name != SPARES),
        *workspace.scratch.glob(f"{SPARES}/*/{_RUN}"),
    ]
    found = 0.0
    for path in starts:
        with suppress(OSError):
            found = max(found, path.stat().st_mtime)
    return found


def left(workspace: Workspace, job: str) -> list[str]:
    """Return the ended drivers of a job on this machine whose scratch folders are still there. Changes nothing."""
    found = []
    for folder in sorted(workspace.scratch.glob(f"{job}/*/")):
        try:
            with (folder / _LOCK).open("rb") as lock:
                # Shared, and given back at once: a driver that claims the folder just now waits for a moment.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # Its driver lives, or has not locked it yet.
            continue
        found.append(folder.name)
    return found


def sweep(workspace: Workspace, job: str, *, but: Collection[str] = ()) -> list[str]:
    """Remove the scratch folders of a job's ended drivers on this machine; return the drivers' incarnations.

    Parameters
    ----------
    but
        Incarnations that are left alone: they may not have locked their folder yet.
    """
    removed = []
    for folder in sorted(workspace.scratch.glob(f"{job}/*/")):
        if folder.name in but:
            continue
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            # Another sweep was faster, or the folder belongs to another user.
            _log.info("%s can't be removed: %s", folder, error)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove(folder)
            removed.append(folder.name)
        finally:
            os.close(descriptor)
    return removed
