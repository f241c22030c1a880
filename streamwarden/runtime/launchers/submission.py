"""The process that submits a driver to a cluster; :mod:`streamwarden.driver.submission` is what it runs."""

from __future__ import annotations

import subprocess

from streamwarden.runtime.launchers.local import driver_process
from streamwarden.store.layout import SUBMISSION_LOG
from streamwarden.store.workspace import Workspace

__all__ = ["start_submission"]


def start_submission(workspace: Workspace, job: str, incarnation: str) -> None:
    """Start the process, detached, and don't wait: `spark-submit` takes ten seconds or more.

    Who starts drivers may be a supervisor with many jobs, and it may end at any time. The process writes a refusal as
    the driver's exit. If the process itself dies, nobody finds the driver, which counts as a failed start after a time.
    """
    logs = workspace.log_dir(job, incarnation)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / SUBMISSION_LOG).open("ab") as log:
        driver_process(
            workspace,
            job,
            incarnation,
            module="streamwarden.driver.submission",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
