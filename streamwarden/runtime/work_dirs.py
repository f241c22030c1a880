"""Scratch folders: what a driver's Spark puts on local disk while it runs, working copies of its state included.

Spark removes it when it ends in order. A process that is killed leaves all of it, each time: with a large state, a job
that fails again and again fills the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path

from streamwarden.store.workspace import Workspace

__all__ = ["claim", "remove", "sweep"]

_log = logging.getLogger(__name__)
_LOCK = ".lock"


def claim(workspace: Workspace, job: str, incarnation: str) -> Path:
    """Make a driver's scratch folder, and mark it as in use until this process ends, however it ends.

    The mark is a lock of the kernel's (flock), which no process started from here inherits. Where the root lies on a
    network's file system that keeps locks to one machine, drivers of several machines can't share it.
    """
    folder = workspace.scratch_dir(job, incarnation)
    lock = folder / _LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Never closed: the lock goes with the process.
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A sweep may have taken the folder for a dead process's between two of these lines.
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return folder
        except FileNotFoundError:
            continue


def remove(folder: Path) -> None:
    """Remove a scratch folder, as far as that is possible while a JVM may still write to it; a sweep does the rest."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep(workspace: Workspace, job: str) -> list[str]:
    """Remove what a job's drivers that no longer run have left on this machine's disk; return their incarnations."""
    removed = []
    for folder in sorted(workspace.scratch.glob(f"{job}/*/")):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            # Another sweep was faster, or it is another user's.
            _log.info("%s is left: %s", folder, error)
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
