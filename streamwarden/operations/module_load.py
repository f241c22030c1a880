"""Load a job's module before a deploy changes anything, as its driver will before it starts Spark."""

from __future__ import annotations

import os

from streamwarden.formats.column_changes import declared_outputs
from streamwarden.model.spec import JobSpec
from streamwarden.runtime.launchers.local import DRIVER_MODULE_ENV
from streamwarden.store.workspace import Workspace

__all__ = ["check_module"]


def check_module(workspace: Workspace, spec: JobSpec) -> None:
    """Reject a module that no driver could use. Takes some seconds: a process imports it, and pyspark.

    Does nothing if drivers run elsewhere (`launcher` of the profile): they may have packages that are missing here.
    They check the same, also before they start Spark.

    Raises
    ------
    StreamwardenError
        ``JOB_MODULE_INVALID``, ``CONFIG_INVALID`` or ``JOIN_WITHOUT_WATERMARK``.
    """
    if workspace.profile.launcher == "local" and not os.environ.get(DRIVER_MODULE_ENV):
        declared_outputs(workspace, spec)
