"""A driver's JVM: its process, its exit cause, and its shutdown.

PySpark has started it as a child, or, in Spark's cluster deploy mode, it has started this process.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamwarden.errors import ErrorCode
from streamwarden.model.process_ref import ProcessRef
from streamwarden.runtime.failure_signatures import OUT_OF_HEAP_EXITS
from streamwarden.runtime.polling import Deadline
from streamwarden.runtime.postmortem import last_words
from streamwarden.runtime.processes import process_of
from streamwarden.spark.cluster_mode import container_logs, parent_jvm

__all__ = [
    "end_jvm",
    "is_context_stopped",
    "is_orphaned",
    "is_unanswered",
    "jvm_end",
    "jvm_of",
    "kill_jvm",
    "stop_jvm",
]

_log = logging.getLogger(__name__)

_CONSOLE_S = 0.5
"""Seconds until the JVM's last output is in console.log: it passes a pipe and a thread."""

_GONE_S = 5
"""Seconds that a JVM which seems gone may take to exit: it closes its sockets before it exits."""

_STOP_S = 30
"""Seconds that Spark may take to stop. It needs a few; if its cluster manager is unavailable, it waits for minutes."""

_END_S = 30
"""Seconds that a JVM may take for an orderly exit. 30 s: its shutdown hooks remove scratch folders."""


def jvm_of(process: ProcessRef) -> ProcessRef | None:
    """Return the JVM among a driver process's children, or its parent in cluster mode; None without one."""
    parent = parent_jvm()
    if parent is not None:
        return process_of(parent.pid) if _lives(parent) else None
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name() == "java":
            return process_of(child.pid)
    return None


def is_unanswered(error: BaseException) -> bool:
    """Return whether an error of a call to the JVM only means that there was no answer."""
    # Py4J has a class for what Java threw; its other errors mean a missing answer, also for an interrupted call.
    return isinstance(error, OSError | Py4JError) and not isinstance(error, Py4JJavaError)


def is_context_stopped(session: SparkSession | None) -> bool:
    """Return whether a session's SparkContext was stopped, though its JVM runs: no query can run in it any more."""
    if session is None:
        return False
    context: Any = session.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (OSError, Py4JError):
        # The JVM is going: its end tells more.
        return False


def jvm_end(session: SparkSession | None, logs: Path, *, gone: bool) -> tuple[ErrorCode, str] | None:
    """Return the catalogue code for how a session's JVM ended, and its last output; None while it runs.

    Parameters
    ----------
    session
        None: there is no JVM yet.
    logs
        The folder of this driver's log files.
    gone
        Whether the JVM seems gone; then this waits a moment for its exit.
    """
    ended = _end(session, gone=gone)
    if ended is None:
        return None
    container = container_logs()
    words = last_words(container or logs)
    # A container's JVM writes its files itself, and YARN kills this process 250 ms after SIGTERM.
    if words.code is None and container is None:
        time.sleep(_CONSOLE_S)
        words = last_words(logs)
    if words.code == "OUT_OF_MEMORY" or ended.code in OUT_OF_HEAP_EXITS:
        return "OUT_OF_MEMORY", words.evidence or f"the JVM ended {ended}"
    if words.code is not None:
        return words.code, words.evidence
    return "JVM_DIED", f"the JVM ended {ended}: {words.evidence or 'no error in its log'}"


def is_orphaned() -> bool:
    """Return whether the JVM that has started this process has ended; False if PySpark starts the JVM."""
    parent = parent_jvm()
    return parent is not None and not _lives(parent)


def end_jvm(session: SparkSession) -> None:
    """Stop Spark and its JVM in any state: kill the JVM if :func:`stop_jvm` fails."""
    if not stop_jvm(session):
        kill_jvm(session)


def stop_jvm(session: SparkSession) -> bool:
    """Stop Spark, then its JVM; return whether that succeeded in time. If not, call :func:`kill_jvm`.

    In cluster mode the JVM ends after this process, and reports its exit code to the cluster.
    """
    if is_orphaned():
        return True
    process = _started(session)
    try:
        _stop(session)
        if process is not None:
            # The JVM exits when its standard input closes.
            process.stdin.close()
            process.wait(timeout=_END_S)
    except Exception:
        # A dead JVM is often the reason why the driver ends.
        _log.warning("Spark failed to stop; its JVM will be killed", exc_info=True)
        return False
    return True


def kill_jvm(session: SparkSession) -> None:
    """Kill a session's JVM and wait for its end. In cluster mode, the cluster may then kill this process too."""
    process = _started(session)
    if process is not None:
        process.kill()
        process.wait()
    elif (parent := parent_jvm()) is not None:
        with suppress(psutil.NoSuchProcess):
            parent.kill()
        _await_end(parent, _END_S)


def _stop(session: SparkSession) -> None:
    """Stop a session, or raise TimeoutError: the call goes on in its thread until the JVM or this process ends."""
    raised: list[Exception] = []

    def stop() -> None:
        try:
            session.stop()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=stop, name="spark-stop", daemon=True)
    thread.start()
    thread.join(_STOP_S)
    if thread.is_alive():
        raise TimeoutError(f"Spark has not stopped within {_STOP_S} s")
    if raised:
        raise raised[0]


@dataclass(frozen=True)
class _End:
    """How a JVM ended; without a code for one that is no child of this process."""

    code: int | None = None

    def __str__(self) -> str:
        if self.code is None:
            return "before its driver"
        return f"with signal {-self.code}" if self.code < 0 else f"with code {self.code}"


def _end(session: SparkSession | None, *, gone: bool) -> _End | None:
    parent = parent_jvm()
    if parent is not None:
        # Also before there is a session.
        return _End() if _await_end(parent, _GONE_S if gone else 0) else None
    process = _started(session)
    if process is None:
        return None
    try:
        code: int | None = process.wait(timeout=_GONE_S) if gone else process.poll()
    except subprocess.TimeoutExpired:
        return None
    return None if code is None else _End(code)


def _await_end(process: psutil.Process, seconds: float) -> bool:
    """Wait for the end of a process that is no child; return whether it has ended, also as a zombie."""
    deadline = Deadline(seconds)
    while _lives(process):
        if not deadline.pause(0.05):
            return False
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _started(session: SparkSession | None) -> Any:
    """Return the Popen of the JVM that PySpark has started; None if it already existed, or does not exist yet."""
    gateway: Any = session.sparkContext._gateway if session is not None else None
    return getattr(gateway, "proc", None)
