"""The process that submits a driver to a cluster; :mod:`streamwarden.driver.submission` is what it runs."""

from __future__ import annotations

import os
import subprocess
import sys

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
    command = [sys.executable, "-m", "streamwarden.driver.submission", "--profile", workspace.profile.name]
    command += ["--config", str(workspace.config), "--root", str(workspace.root)]
    command += ["--job", job, "--incarnation", incarnation]
    with (logs / SUBMISSION_LOG).open("ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=workspace.config.parent,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
