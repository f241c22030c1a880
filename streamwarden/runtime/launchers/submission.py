"""The process that submits a driver to a cluster; :mod:`streamwarden.driver.submission` is what it runs."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from datetime import timedelta

from streamwarden.runtime.launchers.local import driver_process
from streamwarden.store.layout import SUBMISSION_LOG
from streamwarden.store.workspace import Workspace

__all__ = ["SUBMISSION", "await_submissions", "start_submission"]

SUBMISSION = timedelta(seconds=110)
"""How long a submission may take. It takes ten seconds, and took 80 on a machine under heavy load."""

_started: list[subprocess.Popen[str]] = []


def start_submission(workspace: Workspace, job: str, incarnation: str) -> None:
    """Start the process, detached, and don't wait: `spark-submit` takes ten seconds or more.

    Who starts drivers may be a supervisor with many jobs, and it may end at any time. The process writes a refusal as
    the driver's exit. If the process itself dies, nobody finds the driver, which counts as a failed start after a time.
    """
    logs = workspace.log_dir(job, incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / SUBMISSION_LOG).open("ab") as log:
        process = driver_process(
            workspace,
            job,
            incarnation,
            module="streamwarden.driver.submission",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    # To look at the others reaps those that have ended: this process may be a supervisor that lives for weeks.
    _started[:] = [*(one for one in _started if one.poll() is None), process]


def await_submissions() -> None:
    """Wait until the submissions that this process has started have ended, or should have.

    For a process that may take its children with it when it ends, such as an Airflow task in a pod of its own.
    """
    deadline = time.monotonic() + SUBMISSION.total_seconds()
    while _started:
        with suppress(subprocess.TimeoutExpired):
            _started.pop().wait(max(deadline - time.monotonic(), 0))
