"""A driver's last words, as text for a task's log."""

from __future__ import annotations

from collections import deque

from streamwarden.control.documents import ErrorInfo
from streamwarden.control.workspace import Workspace

__all__ = ["describe_error", "log_tail"]

_FILES = ("driver.log", "console.log")


def describe_error(workspace: Workspace, job: str, incarnation: str | None, error: ErrorInfo) -> str:
    """Return an error as a person wants to read it: catalogue words, traceback, then the ends of the driver's logs."""
    parts = [str(error.to_exception())]
    if error.traceback:
        parts.append(f"Traceback of the driver:\n{error.traceback.rstrip()}")
    if incarnation is not None:
        parts.append(log_tail(workspace, job, incarnation))
    return "\n".join(parts)


def log_tail(workspace: Workspace, job: str, incarnation: str, *, lines: int = 30) -> str:
    """Return the last lines of an incarnation's log files; of a file that is not there, nothing."""
    folder = workspace.log_dir(job, incarnation)
    parts = []
    for name in _FILES:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as stream:
                last = deque(stream, maxlen=lines)
        except OSError:
            continue
        if last:
            parts.append(f"--- the end of {folder / name}\n{''.join(last).rstrip()}")
    return "\n".join(parts) or f"--- no log files in {folder}"
