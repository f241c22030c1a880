"""Process references: identify a process, so that another process can check later whether it still lives."""

from __future__ import annotations

import os
import signal
import socket
from functools import cache
from pathlib import Path

import psutil

from streamwarden.model.process_ref import ProcessRef

__all__ = ["current_process", "end_of", "is_alive", "kill", "process_of"]


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@cache
def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()


def process_of(pid: int) -> ProcessRef:
    """Return the reference of a living process on this machine."""
    return ProcessRef(
        host=socket.gethostname(),
        boot=_boot_id(),
        pid=pid,
        started=_started(psutil.Process(pid)),
        namespace=_namespace(),
    )


def current_process() -> ProcessRef:
    """Return the reference of this process."""
    return process_of(os.getpid())


def is_alive(process: ProcessRef) -> bool | None:
    """Return whether a process lives; None for a process on another machine or in another PID namespace.

    The state of such a process is unknown: the lease decides. A zombie counts as dead: it writes nothing any more.
    """
    if process.host != socket.gethostname():
        return None
    if process.boot != _boot_id():
        return False
    if process.namespace and process.namespace != _namespace():
        return None
    try:
        found = psutil.Process(process.pid)
        with found.oneshot():
            # Start times have a resolution of one clock tick, 10 ms.
            return abs(_started(found) - process.started) < 0.05 and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_of(process: ProcessRef) -> int | None:
    """Return a file descriptor that is readable once a process has ended, also as a zombie; the caller closes it.

    Returns None if the process has ended already or is on another machine, or if the kernel has no pidfd (Linux has it
    since 5.3).
    """
    if not hasattr(os, "pidfd_open") or not is_alive(process):
        return None
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if is_alive(process):
        return handle
    # The pid may belong to another process by now.
    os.close(handle)
    return None


def kill(process: ProcessRef) -> bool:
    """Kill (SIGKILL) a process on this machine with its children; return whether the process was alive.

    Does not kill a process on another machine: the lease fences that process.
    """
    if not is_alive(process):
        return False
    try:
        root = psutil.Process(process.pid)
        for member in [*root.children(recursive=True), root]:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        return False
    return True
