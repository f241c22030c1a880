"""The end of a driver's logs, as text for a task's log."""

from __future__ import annotations

from collections import deque

from airflow.configuration import conf

from streamwarden.airflow.pages.links import page_address
from streamwarden.model.operation import Operation
from streamwarden.model.record import ErrorInfo
from streamwarden.operations.diagnosis import describe, diagnose
from streamwarden.redaction import redacted
from streamwarden.runtime.launchers.launch import launcher_of
from streamwarden.runtime.log_lines import readable
from streamwarden.store.workspace import Workspace
from streamwarden.supervision.observe import Observation

__all__ = ["describe_error", "describe_operation", "log_tail"]

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
    if address := _page("streams", seen.job):
        parts.append(f"The same with curves and events: {address}")
    if error.traceback:
        parts.append(f"Traceback of the driver:\n{error.traceback.rstrip()}")
    if seen.incarnation is not None:
        parts.append(log_tail(workspace, seen.job, seen.incarnation))
    return "\n".join(parts)


def describe_operation(workspace: Workspace, operation: Operation, *, logs: bool) -> str:
    """Return where to look at a failed operation: the address of its page, and the ends of its driver's logs.

    Parameters
    ----------
    logs
        Whether its driver's logs say why it failed.
    """
    parts = []
    if logs and operation.plan.incarnation:
        incarnation = operation.plan.incarnation
        parts.append(f"driver {incarnation}:\n{log_tail(workspace, operation.job, incarnation)}")
    if address := _page("operations", operation.job, operation.id):
        parts.append(f"The steps of the {operation.kind}: {address}")
    return "\n".join(parts)


def _page(*parts: str) -> str | None:
    """Return the address of a page; None without ``[api] base_url``: nobody knows how a browser reaches Airflow."""
    base_url = conf.get("api", "base_url", fallback=None)
    return page_address(base_url, *parts) if base_url else None


def log_tail(workspace: Workspace, job: str, incarnation: str, *, lines: int = 30) -> str:
    """Return the last lines of an incarnation's log files, without secrets; a missing file adds nothing."""
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
    if not parts and (kept := launcher_of(workspace).logs(job, incarnation, lines)):
        # The driver's files are on another machine.
        parts.append("".join(map(readable, kept.splitlines(keepends=True))).rstrip())
    # The launcher and the JVM write to them, too.
    return redacted("\n".join(parts)) or f"--- no log files in {folder}"
