"""The JVM that a driver has started: which process it is, how it ended, and its end."""

from __future__ import annotations

import logging
import subprocess
from typing import Any

import psutil
from pyspark.sql import SparkSession

from streamwarden.control.processes import ProcessRef, process_of

__all__ = ["OUT_OF_MEMORY_EXITS", "end_jvm", "jvm_exit", "jvm_of"]

_log = logging.getLogger(__name__)

OUT_OF_MEMORY_EXITS = (3, 52)
"""Exit codes: of the JVM's own ExitOnOutOfMemoryError, and of Spark's handler of uncaught errors."""

_GONE_S = 5
"""How long a JVM that seems gone may take to be gone: it closes its sockets before it ends."""

_END_S = 30
"""How long a JVM may take to end in order. 30 s: shutdown hooks that remove scratch folders take some."""


def jvm_of(process: ProcessRef) -> ProcessRef | None:
    """Return the JVM among a process's children, or None."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name() == "java":
            return process_of(child.pid)
    return None


def jvm_exit(session: SparkSession | None, *, gone: bool) -> int | None:
    """Return the exit code of a session's JVM, or None while it runs.

    Parameters
    ----------
    session
        None: there is no JVM yet.
    gone
        Whether it seems gone; then a moment is waited for it.
    """
    process = _started(session)
    if process is None:
        return None
    try:
        code: int | None = process.wait(timeout=_GONE_S) if gone else process.poll()
    except subprocess.TimeoutExpired:
        return None
    return code


def end_jvm(session: SparkSession) -> None:
    """Stop Spark and its JVM, whatever state they are in: a JVM that died is often why the driver ends."""
    process = _started(session)
    try:
        session.stop()
        if process is not None:
            # The JVM ends when its standard input does.
            process.stdin.close()
            process.wait(timeout=_END_S)
    except Exception:
        _log.warning("Spark did not stop in order", exc_info=True)
        if process is not None:
            process.kill()
            process.wait()


def _started(session: SparkSession | None) -> Any:
    """Return the process that PySpark has started, a Popen; None if it was there before, or is not there yet."""
    gateway: Any = session.sparkContext._gateway if session is not None else None
    return getattr(gateway, "proc", None)
