"""The end of a driver's logs, as text for a task's log."""

from __future__ import annotations

from collections import deque

from airflow.configuration import conf

from streamwarden.airflow.pages.links import stream_address
from streamwarden.model.record import ErrorInfo
from streamwarden.operations.diagnosis import describe, diagnose
from streamwarden.runtime.log_lines import readable
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation

__all__ = ["describe_error", "log_tail"]

_FILES = ("driver.log", "console.log")


def describe_error(workspace: Workspace, seen: Observation, error: ErrorInfo) -> str:
    """Return an error as readable text: catalogue entry, diagnosis, traceback, the ends of the logs.

    Parameters
    ----------
    workspace
        The workspace of the job.
    seen
        The observation of the job.
    error
        The error that fails the task: the driver's own error, or ``RESTART_BUDGET_SPENT``.
    """
    parts = [str(error.to_exception())]
    diagnosis = diagnose(workspace, seen)
    if diagnosis is not None:
        parts.append(describe(diagnosis))
    # Without it nobody knows how a browser reaches Airflow.
    if base_url := conf.get("api", "base_url", fallback=None):
        parts.append(f"The same with curves and events: {stream_address(base_url, seen.job)}")
    if error.traceback:
        parts.append(f"Traceback of the driver:\n{error.traceback.rstrip()}")
    if seen.incarnation is not None:
        parts.append(log_tail(workspace, seen.job, seen.incarnation))
    return "\n".join(parts)


def log_tail(workspace: Workspace, job: str, incarnation: str, *, lines: int = 30) -> str:
    """Return the last lines of an incarnation's log files; a missing file adds nothing."""
    folder = workspace.log_dir(job, incarnation)
    parts = []
    for name in _FILES:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as stream:
                last = deque(stream, maxlen=lines)
        except OSError:
            continue
        if last:
            parts.append(f"--- the end of {folder / name}\n{''.join(map(readable, last)).rstrip()}")
    return "\n".join(parts) or f"--- no log files in {folder}"
